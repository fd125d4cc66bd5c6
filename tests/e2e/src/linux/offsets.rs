//! Every byte of many functions: the product's answer to a probe there, compared with another decoder and with the
//! guest's own kprobes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use super::decision::{Answer, Decision};
use super::draw::{HAS_INT3, draw};
use super::guest::{Guest, VM, files};
use super::judge::{Function, Standing, Traps, is_traced};
use super::offer::{Offered, offer, place};
use super::own_list::OwnList;
use crate::context::Context;
use crate::note;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    test(
        "each_byte_of_functions_drawn_from_6_12_takes_a_probe_where_a_decoder_and_the_guest_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_12, Choice::Few),
    ),
    test(
        "each_byte_of_functions_1_to_50_of_200_of_6_1_takes_a_probe_where_others_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_1, Choice::Part(0..50)),
    ),
    test(
        "each_byte_of_functions_51_to_100_of_200_of_6_1_takes_a_probe_where_others_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_1, Choice::Part(50..100)),
    ),
    test(
        "each_byte_of_functions_101_to_150_of_200_of_6_1_takes_a_probe_where_others_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_1, Choice::Part(100..150)),
    ),
    test(
        "each_byte_of_functions_151_to_200_of_200_of_6_1_takes_a_probe_where_others_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_1, Choice::Part(150..200)),
    ),
    test(
        "each_byte_of_functions_1_to_50_of_200_of_6_12_takes_a_probe_where_others_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_12, Choice::Part(0..50)),
    ),
    test(
        "each_byte_of_functions_51_to_100_of_200_of_6_12_takes_a_probe_where_others_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_12, Choice::Part(50..100)),
    ),
    test(
        "each_byte_of_functions_101_to_150_of_200_of_6_12_takes_a_probe_where_others_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_12, Choice::Part(100..150)),
    ),
    test(
        "each_byte_of_functions_151_to_200_of_200_of_6_12_takes_a_probe_where_others_say_so",
        |cx| offsets(cx, files::BZIMAGE_6_12, Choice::Part(150..200)),
    ),
];

const fn test(name: &'static str, run: fn(&Context) -> TestResult) -> Test {
    Test {
        name,
        ids: &["KP01", "KP02"],
        needs: Needs::Linux,
        run,
    }
}

/// Functions that are drawn.
const DRAWN: usize = 200;
/// Functions of the short test: each byte takes it some 25 ms in the lab.
const FEW: usize = 4;
/// Sizes of these functions, in bytes.
const FEW_BYTES: Range<usize> = 64..256;
/// Characters of a line that the guest's terminal takes, at most.
const LINE: usize = 3000;

/// The most wrong places that are shown.
const TOLD: usize = 50;

/// Which of the functions that are drawn a test asks for.
#[derive(Debug)]
enum Choice {
    /// Some short functions that the kernel traces, one in which it takes no kprobe, and the one with an int3.
    Few,
    Part(Range<usize>),
}

impl Choice {
    fn of(self, mut functions: Vec<Function>) -> Vec<Function> {
        match self {
            Self::Few => {
                let int3 = functions.extract_if(.., |function| function.name == HAS_INT3);
                let int3: Vec<_> = int3.collect();
                functions.retain(|function| FEW_BYTES.contains(&function.size));
                let is_open = |function: &Function| function.standing == Standing::Open;
                let (mut few, mut closed): (Vec<_>, Vec<_>) =
                    functions.into_iter().partition(is_open);
                few.retain(|function| is_traced(&function.bytes));
                few.truncate(FEW);
                closed.truncate(1);
                few.extend(closed.into_iter().chain(int3));
                few
            }
            Self::Part(part) => functions.drain(part).collect(),
        }
    }
}

fn offsets(cx: &Context, kernel: &'static str, choice: Choice) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, kernel, 1).await?;
        let own = OwnList::of(&mut guest).await?;
        let functions = draw(&guest, &own, &mut cx.random(), DRAWN).await?;
        check_eq!(functions.len(), DRAWN, "functions drawn");
        let functions = choice.of(functions);
        let size: usize = functions.iter().map(|function| function.size).sum();
        check!(functions.len() > FEW, "only {} functions", functions.len());

        let begun = Instant::now();
        let mut ours = Vec::new();
        for function in &functions {
            ours.push(ask(&guest, function).await?);
        }
        let asked = begun.elapsed();
        let theirs = answers(&mut guest, &functions).await?;
        let answered = begun.elapsed() - asked;
        for Function {
            name, start, bytes, ..
        } in &functions
        {
            let now = guest.memory(*start, bytes.len()).await?;
            check!(now == *bytes, "{name} is not what it was");
        }
        guest.finish().await?;

        let traps = match kernel {
            files::BZIMAGE_6_1 => Traps::Copied,
            _ => Traps::NoPlace,
        };
        let counts = judge(&functions, &ours, &theirs, traps)?;
        for (kind, least) in [
            ("taken", size / 16),
            ("inside", size / 8),
            ("ftrace site", functions.len()),
        ] {
            let found = counts.get(kind).copied().unwrap_or_default();
            check!(found >= least, "only {found} places are {kind:?}");
        }
        let counts = counts.iter().map(|(kind, count)| format!("{kind} {count}"));
        let counts: Vec<String> = counts.collect();
        pass_with(format!(
            "seed {}: {} of {size} bytes in {} functions, {}; asked us in {:.1} s, the guest in {:.1} s",
            cx.seed,
            counts.join(", "),
            functions.len(),
            standings(&functions)?,
            asked.as_secs_f64(),
            answered.as_secs_f64()
        ))
    })
}

/// Fails unless all answers are right. Returns how many places there are of each kind, by our answers.
fn judge<'a>(
    functions: &[Function],
    ours: &'a [Vec<Decision>],
    theirs: &[Vec<Answer>],
    traps: Traps,
) -> Result<BTreeMap<&'a str, usize>, Failure> {
    let mut counts = BTreeMap::new();
    let mut wrong = Vec::new();
    for ((function, ours), theirs) in functions.iter().zip(ours).zip(theirs) {
        check_eq!(theirs.len(), function.size, "answers for {}", function.name);
        for (offset, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            *counts.entry(ours.name()).or_default() += 1;
            wrong.extend(function.judge(offset, ours, *theirs, traps).err());
        }
    }
    for error in wrong.iter().take(TOLD) {
        note(&error.to_string());
    }
    check!(
        wrong.is_empty(),
        "{} places, of which the first: {}",
        wrong.len(),
        wrong[0]
    );
    Ok(counts)
}

/// Fails unless the guest looks at each place in most of the functions. Returns how many functions of each standing
/// there are.
fn standings(functions: &[Function]) -> Result<String, Failure> {
    let mut standings: BTreeMap<Standing, usize> = BTreeMap::new();
    for function in functions {
        *standings.entry(function.standing).or_default() += 1;
    }
    let open = standings.get(&Standing::Open).copied().unwrap_or_default();
    check!(
        open > functions.len() / 2,
        "the guest answers for too few functions: {standings:?}"
    );
    Ok(format!("{standings:?}"))
}

/// Asks the product about each byte of a function. No probe stays.
async fn ask(guest: &Guest, function: &Function) -> Result<Vec<Decision>, Failure> {
    let (likely, others): (Vec<usize>, Vec<usize>) =
        (0..function.size).partition(|offset| function.is_likely(*offset));
    // Places that are likely to be taken are offered together, the others one by one.
    let mut offered = vec![offer(guest, &texts(function, &likely)).await?];
    for offset in others {
        offered.push(offer(guest, &texts(function, &[offset])).await?);
    }
    let ids: Vec<u64> = offered.iter().flat_map(Offered::ids).collect();
    if !ids.is_empty() {
        guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    }

    let mut decisions = BTreeMap::new();
    for (text, probe) in offered.iter().flat_map(|offered| &offered.taken) {
        decisions.insert(place(text), Decision::Taken(probe.address));
    }
    for (text, message) in offered.iter().flat_map(|offered| &offered.refused) {
        let decision = Decision::refused(place(text), message);
        let decision = decision.ok_or_else(|| wrong!("a refusal of another kind: {message}"))?;
        decisions.insert(place(text), decision);
    }
    let all = (0..function.size).map(|offset| {
        let place = function.place(offset);
        let decision = decisions.get(&*place).cloned();
        decision.ok_or_else(|| wrong!("no answer for {place}"))
    });
    all.collect()
}

/// Texts of probes at some bytes of a function. They are disabled: the kernel can't make headway with probes in some
/// functions.
fn texts(function: &Function, offsets: &[usize]) -> Vec<String> {
    let places = offsets.iter().map(|offset| function.place(*offset));
    places.map(|place| format!("{place} disabled")).collect()
}

/// Asks the guest's kernel about each byte of the functions.
async fn answers(guest: &mut Guest, functions: &[Function]) -> Result<Vec<Vec<Answer>>, Failure> {
    let mut answers = Vec::new();
    let mut rest = functions;
    while !rest.is_empty() {
        let mut line = String::new();
        let mut count = 0;
        while count < rest.len() && line.len() < LINE {
            let Function { start, size, .. } = &rest[count];
            let comma = if line.is_empty() { "" } else { "," };
            line += &format!("{comma}{start:#x}+{size:#x}");
            count += 1;
        }
        let done = guest.work(&format!("probeable at={line}")).await?;
        let (asked, others) = rest.split_at(count);
        for function in asked {
            let text = done["answers"][&*format!("{:#x}", function.start)].as_str();
            let text = text.ok_or_else(|| wrong!("no answers for {}: {done}", function.name))?;
            answers.push(Answer::parse(text)?);
        }
        rest = others;
    }
    Ok(answers)
}
