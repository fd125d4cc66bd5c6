//! The whole kernel: a probe on every function that can have one, and every byte of one function.

use std::collections::{BTreeMap, BTreeSet};

use vmprobe_client::ClientError;
use vmprobe_client::v1::{BlacklistEntry, Probe, Strategy};

use super::code::decode;
use super::guest::{Guest, VM, files, specs};
use crate::context::Context;
use crate::say;
use crate::test::{Failure, Needs, Test, TestResult, check, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "every_function_of_6_1_can_be_probed_while_the_guest_works",
        ids: &["KP01", "KP02"],
        needs: Needs::Linux,
        run: |cx| sweep(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "every_function_of_6_12_can_be_probed_while_the_guest_works",
        ids: &["KP01", "KP02"],
        needs: Needs::Linux,
        run: |cx| sweep(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "of_all_bytes_of_a_function_only_starts_of_instructions_take_a_probe",
        ids: &["KP01", "KP02"],
        needs: Needs::Linux,
        run: boundaries,
    },
];

/// Probes in a batch of the sweep.
const BATCH: usize = 1000;

/// Size of an instruction at most, and of `endbr64`.
const LONGEST_INSTRUCTION: u64 = 15;
const ENDBR: u64 = 4;

/// Probes every function.
fn sweep(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, kernel, 2).await?;
        let start = guest.symbol("_stext").await?;
        let length = (guest.symbol("_etext").await? - start) as usize;
        let blacklist = blacklist(&guest, "").await?;
        let range = start..start + length as u64;
        let (functions, places) = entries(&guest, range, &blacklist).await?;
        let all = places.len();
        // With a probe there the guest makes no headway in the lab: its tick takes longer than the
        // time until the next one. So it isn't asked to work meanwhile.
        let (returns, places): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|place| is_return_thunk(place));
        // Once without probes: what the kernel patches when something is used for the first time.
        guest.work("sweep count=1").await?;
        let before = guest.memory(start, length).await?;

        let mut total = Totals::default();
        for batch in places.chunks(BATCH) {
            let (ids, _) = register(&guest, batch, &mut total.refused).await?;
            guest.work("sweep count=1").await?;
            let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
            total.add(&removed);
        }
        let (ids, _) = register(&guest, &returns, &mut total.refused).await?;
        let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
        total.add(&removed);
        let after = guest.memory(start, length).await?;
        let by_kernel = check_unchanged(&before, &after, start, &blacklist)?;
        guest.work("sweep count=1").await?;
        guest.finish().await?;

        for (reason, count) in &total.refused {
            say(&format!("refused {count:>6} {reason}"));
        }
        check!(
            total.registered * 2 > functions,
            "only {} of {functions} functions can be probed",
            total.registered
        );
        check!(total.hit > 500, "only {} functions were hit", total.hit);
        total.blacklisted = functions - all;
        pass_with(total.remark(functions, by_kernel))
    })
}

/// Whether this is what all functions of a kernel with mitigations return through: `srso_safe_ret`,
/// `srso_return_thunk` and their like (Linux `arch/x86/lib/retpoline.S`).
pub fn is_return_thunk(name: &str) -> bool {
    name.contains("return_thunk") || name.ends_with("_ret")
}

/// What the batches came to.
#[derive(Debug, Default)]
struct Totals {
    registered: usize,
    blacklisted: usize,
    hit: usize,
    hits: u64,
    exits: u64,
    missed: u64,
    strategies: BTreeMap<&'static str, usize>,
    /// By the last part of the message.
    refused: BTreeMap<String, usize>,
}

impl Totals {
    fn add(&mut self, removed: &[Probe]) {
        self.registered += removed.len();
        for probe in removed {
            self.hit += usize::from(probe.hits > 0);
            self.hits += probe.hits;
            self.exits += probe.exits;
            self.missed += probe.missed;
            let name = match probe.strategy() {
                Strategy::Emulate => "emulate",
                Strategy::Boost => "boost",
                Strategy::Step => "step",
                Strategy::Watch | Strategy::Unspecified => "?",
            };
            *self.strategies.entry(name).or_default() += 1;
        }
    }

    fn remark(&self, functions: usize, by_kernel: usize) -> String {
        let share = |count: usize| count as f64 * 100.0 / self.registered.max(1) as f64;
        let strategies: Vec<String> = self
            .strategies
            .iter()
            .map(|(name, count)| format!("{name} {:.2} %", share(*count)))
            .collect();
        format!(
            "{} of {functions} functions probed ({} blacklisted, {} refused): {}; {} were hit, {} \
             hits, {:.4} exits a hit, {} missed; {by_kernel} bytes changed by the kernel itself",
            self.registered,
            self.blacklisted,
            self.refused.values().sum::<usize>(),
            strategies.join(", "),
            self.hit,
            self.hits,
            self.exits as f64 / self.hits.max(1) as f64,
            self.missed,
        )
    }
}

/// All that can't be probed, or what covers symbols of this pattern.
///
/// # Errors
/// Those of the call.
pub async fn blacklist(guest: &Guest, pattern: &str) -> Result<Vec<BlacklistEntry>, Failure> {
    let mut stream = guest.client.blacklist(VM, pattern).await?;
    let mut all = Vec::new();
    while let Some(entries) = stream.next().await? {
        all.extend(entries);
    }
    Ok(all)
}

/// Address ranges, sorted.
#[derive(Debug)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn new<'a>(entries: impl Iterator<Item = &'a BlacklistEntry>) -> Self {
        let mut ranges: Vec<_> = entries.map(|entry| (entry.start, entry.end)).collect();
        ranges.sort_unstable();
        Self(ranges)
    }

    /// The end of the last range that begins at or before an address, if it reaches beyond it.
    fn end(&self, address: u64) -> Option<u64> {
        let before = self.0.partition_point(|(start, _)| *start <= address);
        let (_, end) = self.0.get(before.checked_sub(1)?)?;
        (*end > address).then_some(*end)
    }
}

/// Places at the entries of all functions of a range: by name, or by address where several have the
/// name; without those that lie in text of which nothing can be probed.
///
/// # Errors
/// Those of the call.
pub async fn entries(
    guest: &Guest,
    range: std::ops::Range<u64>,
    blacklist: &[BlacklistEntry],
) -> Result<(usize, Vec<String>), Failure> {
    let (symbols, more) = guest.client.lookup_symbols(VM, "*", 1_000_000).await?;
    check!(!more, "the list of symbols is cut off");
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut functions = BTreeMap::new();
    for symbol in &symbols {
        *names.entry(&*symbol.name).or_default() += 1;
        // What precedes a function for its own sake is no function.
        let part = ["__pfx_", "__cfi_"]
            .iter()
            .any(|it| symbol.name.starts_with(it));
        let text = matches!(&*symbol.kind, "t" | "T" | "w" | "W") && !part;
        if text && range.contains(&symbol.address) {
            functions.insert(symbol.address, &*symbol.name);
        }
    }
    let (long, short): (Vec<_>, Vec<_>) = blacklist
        .iter()
        .partition(|entry| entry.end - entry.start > LONGEST_INSTRUCTION);
    let (long, short) = (
        Ranges::new(long.into_iter()),
        Ranges::new(short.into_iter()),
    );
    let count = functions.len();
    let places = functions
        .into_iter()
        .filter(|(address, _)| long.end(*address).is_none())
        .map(|(address, name)| match names.get(name) {
            Some(1) => name.to_owned(),
            // Behind endbr64 and the ftrace site, as the server places it by name.
            _ => {
                let behind = short.end(address).or_else(|| short.end(address + ENDBR));
                format!("{:#x}", behind.unwrap_or(address))
            }
        });
    Ok((count, places.collect()))
}

/// Registers as many of these as can be; the numbers of those, and their places. A refused batch is
/// split at the place that the refusal names.
///
/// # Errors
/// If the server fails otherwise than by refusing one.
pub async fn register(
    guest: &Guest,
    places: &[String],
    refused: &mut BTreeMap<String, usize>,
) -> Result<(Vec<u64>, Vec<String>), Failure> {
    let (mut ids, mut accepted) = (Vec::new(), Vec::new());
    let mut parts = vec![places];
    while let Some(part) = parts.pop() {
        if part.is_empty() {
            continue;
        }
        let texts: Vec<&str> = part.iter().map(String::as_str).collect();
        let error = match guest.client.register_probes(VM, specs(&texts)?).await {
            Ok(probes) => {
                ids.extend(probes.iter().map(|probe| probe.id));
                accepted.extend_from_slice(part);
                continue;
            }
            Err(error) => error,
        };
        let message = error.to_string();
        let named = part.iter().position(|place| {
            let rest = message.strip_prefix(place.as_str());
            rest.is_some_and(|rest| rest.starts_with(' '))
        });
        let why = reason(&error)?;
        // The last is the next: so all stay in their order.
        match named {
            Some(at) => parts.extend([&part[at + 1..], &part[..at]]),
            None if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
                continue;
            }
            None => {}
        }
        *refused.entry(why).or_default() += 1;
    }
    Ok((ids, accepted))
}

/// Those of the places that take a probe. None stays there.
///
/// # Errors
/// If the server fails otherwise than by refusing one.
pub async fn accepted(guest: &Guest, places: &[String]) -> Result<Vec<String>, Failure> {
    let (ids, accepted) = register(guest, places, &mut BTreeMap::new()).await?;
    guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    Ok(accepted)
}

/// Why a probe is refused: what its message ends in, without what is particular to the place. Other
/// errors than refusals are failures.
fn reason(error: &ClientError) -> Result<String, Failure> {
    match error {
        ClientError::InvalidArgument { message, .. } | ClientError::FailedPrecondition(message) => {
            let last = message.rsplit(": ").next().unwrap_or(message);
            let words = last.split_whitespace().map(|word| {
                let number = word.contains(|letter: char| letter.is_ascii_digit());
                if number { "N" } else { word }
            });
            Ok(words.collect::<Vec<_>>().join(" "))
        }
        other => Err(wrong!("a probe was not just refused: {other}")),
    }
}

/// Fails if text has changed where the kernel doesn't patch it itself; how many bytes it did patch.
///
/// # Errors
/// As said.
pub fn check_unchanged(
    before: &[u8],
    after: &[u8],
    start: u64,
    blacklist: &[BlacklistEntry],
) -> Result<usize, Failure> {
    let patched = Ranges::new(blacklist.iter());
    let mut by_kernel = 0;
    for (offset, (old, new)) in before.iter().zip(after).enumerate() {
        let address = start + offset as u64;
        if old != new && patched.end(address).is_none() {
            return Err(wrong!("{address:#x} was {old:#x} and is now {new:#x}"));
        }
        by_kernel += usize::from(old != new);
    }
    Ok(by_kernel)
}

/// A function that the guest calls all the time.
const HOT: &str = "vfs_read";
/// Its bytes that are tried.
const BYTES: u64 = 256;

fn boundaries(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, 2).await?;
        let start = guest.symbol(HOT).await?;
        let bytes = guest
            .memory(start, BYTES as usize + LONGEST_INSTRUCTION as usize)
            .await?;
        let starts: BTreeSet<u64> = decode(start, &bytes)
            .iter()
            .map(iced_x86::Instruction::ip)
            .collect();
        let listed = Ranges::new(blacklist(&guest, HOT).await?.iter());
        let (mut accepted, mut hits) = (0, 0);
        for at in start..start + BYTES {
            let text = format!("at={at:#x}");
            match guest.client.register_probes(VM, specs(&[&text])?).await {
                Ok(probes) => {
                    check!(
                        starts.contains(&at),
                        "{HOT}+{:#x} was accepted: {probes:?}",
                        at - start
                    );
                    check!(
                        listed.end(at).is_none(),
                        "{at:#x} is on the blacklist: {probes:?}"
                    );
                    accepted += 1;
                    guest.work("files count=3").await?;
                    hits += guest.remove(&["at"]).await?[0].hits;
                }
                Err(error) => {
                    let text = error.to_string();
                    let inside = text.contains("inside");
                    check!(
                        inside != starts.contains(&at) || listed.end(at).is_some(),
                        "{HOT}+{:#x}: {text}",
                        at - start
                    );
                    reason(&error)?;
                }
            }
        }
        check!(
            guest.memory(start, bytes.len()).await? == bytes,
            "{HOT} isn't what it was"
        );
        check!(accepted > 20, "only {accepted} places were accepted");
        check!(hits > 0, "none of them was hit");
        guest.finish().await?;
        pass_with(format!(
            "{accepted} of {} instructions, {hits} hits",
            starts.range(..start + BYTES).count()
        ))
    })
}
