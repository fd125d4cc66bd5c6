//! By which strategy the engine passes function entries and instructions, and how many of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use guest_state::GuestVirtAddr;
use iced_x86::{Decoder, DecoderOptions};
use probe_engine::engine::Engine;
use probe_engine::error::ChangeError;

use crate::fate::{self, Fate, is_one_exit};
use crate::functions::{self, Function};
use crate::guest::{Guest, GuestError};
use crate::image::{Image, ImageError};
use crate::report::Entry;
use crate::sinks::Nobody;

/// Reasons that a note names.
const TOP: usize = 8;
/// The arena has room for 262,144 copies; those of removed probes stay until it is installed again.
const REGISTRATIONS: u64 = 200_000;
/// The kernel's padding of functions.
const INT3: u8 = 0xcc;
/// Least share of entries that cost one exit, in percent (BN01).
const LIMIT: f64 = 99.0;

/// Why shares can't be told.
#[derive(Debug, thiserror::Error)]
pub enum SharesError {
    /// The kernel can't be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It can't be loaded.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// A probe can't be removed.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// The state of the kernel's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing: the guest has not run.
    BeforeBoot,
    /// Init text is freed, and one-time patches are done. (The bytes are still those of the image: as nothing runs
    /// here, that can't be helped.)
    Started,
}

impl Moment {
    /// Both.
    pub const ALL: [Self; 2] = [Self::BeforeBoot, Self::Started];

    fn text(self) -> &'static str {
        match self {
            Self::BeforeBoot => "before the first instruction",
            Self::Started => "once it has started",
        }
    }
}

/// Counts by strategy, with its reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares {
    /// Counts by strategy and reason.
    ways: BTreeMap<(String, String), u64>,
    /// Refused, by the kind of refusal.
    refused: BTreeMap<String, u64>,
    /// Probed with one exit a hit.
    one_exit: u64,
}

impl Shares {
    fn add(&mut self, fate: Fate) {
        match fate {
            Fate::Refused(why) => *self.refused.entry(why).or_default() += 1,
            Fate::Probed(probe) => {
                let way = (probe.strategy.to_string(), probe.reason);
                *self.ways.entry(way).or_default() += 1;
                self.one_exit += u64::from(is_one_exit(probe.strategy));
            }
        }
    }

    fn probed(&self) -> u64 {
        self.ways.values().sum()
    }

    fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    fn of(&self, strategy: &str) -> BTreeMap<String, u64> {
        let ways = self.ways.iter().filter(|((found, _), _)| found == strategy);
        ways.map(|((_, why), count)| (why.clone(), *count))
            .collect()
    }

    /// The report's entries. `what` says what was counted.
    fn entries(&self, what: &str) -> Vec<Entry> {
        let (probed, refused) = (self.probed(), self.refusals());
        let all = probed + refused;
        let one_exit = percent(self.one_exit, probed);
        let verdict = if one_exit >= LIMIT { "kept" } else { "missed" };
        let mut entries = vec![
            Entry::native(
                "BN01",
                one_exit,
                "%",
                format!(
                    "{what}: one exit a hit (emulated or boosted), of those that can be probed"
                ),
            )
            .note(format!(
                "{} of {probed}; limit for function entries >= {LIMIT} %: {verdict}; stepped: {}",
                self.one_exit,
                top(&self.of("step"), TOP)
            )),
        ];
        let how = format!("{what}: one exit a hit (emulated or boosted), of all");
        let of_all = Entry::native("BN01", percent(self.one_exit, all), "%", how);
        let refusals = top(&self.refused, usize::MAX);
        entries.push(of_all.note(format!(
            "{} of {all}; {refused} refused: {refusals}",
            self.one_exit
        )));
        for strategy in ["emulate", "boost", "step"] {
            let reasons = self.of(strategy);
            let count = reasons.values().sum();
            let how = format!("{what}: {strategy}, of those that can be probed");
            let entry = Entry::native("BN01", percent(count, probed), "%", how);
            entries.push(entry.note(format!("{count} of {probed}: {}", top(&reasons, TOP))));
        }
        let how = format!("{what}: refused, of all");
        let entry = Entry::native("BN01", percent(refused, all), "%", how);
        entries.push(entry.note(format!("{refused} of {all}: {}", top(&self.refused, TOP))));
        entries
    }
}

/// Returns the length without the int3s at the end: padding, up to 2 MiB of it (`srso_alias_untrain_ret`).
fn code_len(bytes: &[u8]) -> usize {
    let code = bytes.iter().rposition(|byte| *byte != INT3);
    code.map_or(0, |last| last + 1)
}

/// The instructions of a function, decoded from its start to the next symbol.
pub(crate) fn instructions(
    image: &Image,
    function: &Function,
) -> impl Iterator<Item = GuestVirtAddr> {
    let bytes = image.bytes_at(function.start).unwrap_or_default();
    let len = code_len(&bytes[..bytes.len().min(function.size as usize)]);
    let mut decoder = Decoder::with_ip(64, &bytes[..len], function.start.0, DecoderOptions::NONE);
    std::iter::from_fn(move || {
        let insn = decoder.can_decode().then(|| decoder.decode())?;
        (!insn.is_invalid()).then_some(GuestVirtAddr(insn.ip()))
    })
}

/// Describes a sample of one function in `every`.
pub(crate) fn sample(every: usize) -> String {
    match every {
        0 | 1 => String::new(),
        every => format!(", one function in {every}"),
    }
}

pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    let share = part as f64 * 100.0 / whole.max(1) as f64;
    (share * 1000.0).round() / 1000.0
}

/// Returns the most frequent ones, and the sum of the others.
pub(crate) fn top(counts: &BTreeMap<String, u64>, named: usize) -> String {
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(why, count)| (std::cmp::Reverse(**count), *why));
    let rest: u64 = counts.iter().skip(named).map(|(_, count)| **count).sum();
    let mut named: Vec<_> = counts
        .iter()
        .take(named)
        .map(|(why, count)| format!("{why} ({count})"))
        .collect();
    if rest > 0 {
        named.push(format!("others ({rest})"));
    }
    if named.is_empty() {
        return "none".to_owned();
    }
    named.join(", ")
}

/// A kernel with an engine, to ask about its text.
pub(crate) struct Survey {
    engine: Engine,
    guest: Guest,
    registered: u64,
}

impl Survey {
    pub(crate) fn new(image: &Image, moment: Moment) -> Result<Self, SharesError> {
        let kernel = image.kernel()?;
        let guest = Guest::new(image, &kernel.symbols)?;
        let engine = Engine::new(kernel, image.map(), 1, Arc::new(Nobody));
        if moment == Moment::Started {
            engine.assume_started();
        }
        guest.install_arena(&engine)?;
        let registered = 0;
        Ok(Self {
            engine,
            guest,
            registered,
        })
    }

    pub(crate) fn functions(&self, moment: Moment) -> Vec<Function> {
        let mut functions = functions::all(self.engine.symbols());
        functions.retain(|function| moment == Moment::BeforeBoot || !function.is_init);
        functions
    }

    fn make_room(&mut self) -> Result<(), SharesError> {
        self.registered += 1;
        if self.registered.is_multiple_of(REGISTRATIONS) {
            self.guest.install_arena(&self.engine)?;
        }
        Ok(())
    }

    pub(crate) fn instruction(&mut self, at: GuestVirtAddr) -> Result<Fate, SharesError> {
        self.make_room()?;
        Ok(fate::of_instruction(&self.engine, &self.guest, at)?)
    }

    pub(crate) fn entry(&mut self, at: GuestVirtAddr) -> Result<Fate, SharesError> {
        self.make_room()?;
        Ok(fate::of_entry(&self.engine, &self.guest, at)?)
    }
}

/// Asks the engine for a probe on every function's entry.
///
/// # Errors
/// See [`SharesError`].
pub fn of_entries(image: &Image, release: &str, moment: Moment) -> Result<Vec<Entry>, SharesError> {
    let mut survey = Survey::new(image, moment)?;
    let mut shares = Shares::default();
    for function in survey.functions(moment) {
        if function.has_entry {
            shares.add(survey.entry(function.start)?);
        }
    }
    Ok(shares.entries(&format!("function entries of {release}, {}", moment.text())))
}

/// Asks the engine for a probe on every instruction of one function of `every`, each decoded from its
/// start to the next symbol.
///
/// # Errors
/// See [`SharesError`].
pub fn of_instructions(
    image: &Image,
    release: &str,
    moment: Moment,
    every: usize,
) -> Result<Vec<Entry>, SharesError> {
    let mut survey = Survey::new(image, moment)?;
    let mut shares = Shares::default();
    let mut functions = survey.functions(moment);
    functions.retain(|function| !function.is_padding);
    for function in functions.into_iter().step_by(every.max(1)) {
        for at in instructions(image, &function) {
            shares.add(survey.instruction(at)?);
        }
    }
    let sample = sample(every);
    Ok(shares.entries(&format!(
        "all instructions of {release}{sample}, {}",
        moment.text()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_the_most_frequent_reasons_and_counts_the_others() {
        let counts: BTreeMap<String, u64> = (0..10).map(|i| (format!("r{i}"), i + 1)).collect();
        let text = top(&counts, TOP);
        assert!(text.starts_with("r9 (10), r8 (9)"), "{text}");
        assert!(text.ends_with("others (3)"), "{text}");
        assert_eq!(top(&BTreeMap::new(), TOP), "none");
    }

    #[test]
    fn padding_is_no_code() {
        assert_eq!(code_len(&[0x90, INT3, 0xc3, INT3, INT3]), 3);
        assert_eq!(code_len(&[INT3; 4]), 0);
    }

    #[test]
    fn a_share_of_nothing_is_nothing() {
        assert_eq!(percent(0, 0), 0.0);
        assert_eq!(percent(1, 3), 33.333);
    }
}
