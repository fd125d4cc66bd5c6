//! How many function entries, and how many instructions, can be jumps instead of breakpoints.

use std::collections::{BTreeMap, HashSet};

use guest_kernel::Kernel;
use guest_state::GuestVirtAddr;
use probe_engine::arena::{SLOT_AREA, Space};
use probe_engine::detour::{self, BranchTargets, Ground, Pattern, Region};
use probe_engine::probe::NoJump;

use crate::fate::Fate;
use crate::functions;
use crate::image::Image;
use crate::report::Entry;
use crate::shares::{self, Moment, SharesError, Survey};

/// Bytes of a detour that leaves a full record.
const DETOUR: usize = 256;
/// Where the arena's GiB of code begins.
const CODE: GuestVirtAddr = GuestVirtAddr(0xffff_ffff_4000_0000);
/// The most bytes that a region can have, with padding and what is behind it.
const AHEAD: usize = 96;
/// A large number of jumps that a user might ask for; the report has the memory that they take.
const MANY: u64 = 10_000;
/// Least share of entries, in percent (BN07).
const ENTRIES: f64 = 99.0;
/// Least share of instructions, in percent (BN08).
const INSTRUCTIONS: f64 = 90.0;

/// The outcomes of probes.
#[derive(Debug, Default)]
struct Tally {
    jumps: u64,
    refused: BTreeMap<String, u64>,
}

impl Tally {
    fn add(&mut self, jump: Result<(), NoJump>) {
        match jump {
            Ok(()) => self.jumps += 1,
            Err(why) => *self.refused.entry(why.kind().to_owned()).or_default() += 1,
        }
    }

    fn entry(&self, id: &'static str, limit: f64, how: String, where_to: &str) -> Entry {
        let all = self.jumps + self.refused.values().sum::<u64>();
        let share = shares::percent(self.jumps, all);
        let verdict = if share >= limit { "kept" } else { "missed" };
        let reasons = shares::top(&self.refused, usize::MAX);
        Entry::native(id, share, "%", how).note(format!(
            "{} of {all}, {where_to}; limit >= {limit} %: {verdict}; not: {reasons}",
            self.jumps
        ))
    }
}

/// A kernel that has started, as the engine sees it when it makes jumps.
struct Text<'a> {
    image: &'a Image,
    kernel: Kernel,
    targets: BranchTargets,
    without_gs: HashSet<GuestVirtAddr>,
    space: Space,
    jumps: HashSet<GuestVirtAddr>,
}

impl<'a> Text<'a> {
    fn new(image: &'a Image) -> Result<Self, SharesError> {
        let kernel = image.kernel()?;
        let range = kernel.symbols.text();
        let text = image.bytes_at(range.start).unwrap_or_default();
        let len = range.end.offset_from(range.start).unwrap_or(0) as usize;
        let starts = functions::all(&kernel.symbols);
        let starts = starts.iter().map(|function| function.start);
        let text = &text[..len.min(text.len())];
        let mut targets = BranchTargets::of(range.start, text, starts);
        for label in &kernel.landings.labels {
            targets.insert(*label);
        }
        let without_gs = detour::functions_without(&kernel.symbols, range.start, text);
        Ok(Self {
            image,
            kernel,
            targets,
            without_gs,
            space: Space::new(CODE..SLOT_AREA.start),
            jumps: HashSet::new(),
        })
    }

    fn region(&self, at: GuestVirtAddr) -> Result<Region, NoJump> {
        let nowhere = NoJump::Undecodable { at };
        let within = self.kernel.symbols.resolve(at).ok_or(nowhere.clone())?;
        if self.without_gs.contains(&within.symbol.address) {
            return Err(NoJump::EarlyCode);
        }
        let text = self.image.bytes_at(at).ok_or(nowhere)?;
        let blacklist = &self.kernel.blacklist;
        let ground = Ground {
            text: &text[..text.len().min(AHEAD)],
            function_end: within.symbol.address.wrapping_add(within.size),
            is_free: &|range| detour::is_free(blacklist, range),
            expects_fault: &|at| self.kernel.exceptions.contains(at),
            is_target: &|range| self.targets.any(range),
            is_fix_up: &|range| self.kernel.landings.any_fix_up(range),
        };
        detour::region(at, &ground)
    }

    /// Makes the instruction at `at` a jump, with a detour beside those of all other jumps.
    fn jump(&mut self, at: GuestVirtAddr) -> Result<(), NoJump> {
        let pattern = Pattern::of(&self.region(at)?);
        let placed = self.space.place(at, pattern, DETOUR);
        placed.ok_or_else(no_address)?;
        self.jumps.insert(at);
        Ok(())
    }

    /// Returns why that couldn't be done, if so. Changes nothing.
    fn could_jump(&mut self, at: GuestVirtAddr) -> Result<(), NoJump> {
        if self.jumps.contains(&at) {
            return Ok(());
        }
        let pattern = Pattern::of(&self.region(at)?);
        let found = self.space.fits(at, pattern, DETOUR);
        found.map(|_| ()).ok_or_else(no_address)
    }
}

fn no_address() -> NoJump {
    let reason = "all addresses that fit are taken".to_owned();
    NoJump::NoAddress { reason }
}

/// Measures how many of the entries that can be probed become jumps, all at once. Then measures how
/// many instructions of every `every`th function could be jumps, each alone beside those.
///
/// # Errors
/// See [`SharesError`].
pub fn measure(image: &Image, release: &str, every: usize) -> Result<Vec<Entry>, SharesError> {
    let mut survey = Survey::new(image, Moment::Started)?;
    let mut text = Text::new(image)?;
    let functions = survey.functions(Moment::Started);
    let mut entries = Tally::default();
    let mut pages_of_many = 0;
    for function in functions.iter().filter(|function| function.has_entry) {
        if let Fate::Probed(probe) = survey.entry(function.start)? {
            entries.add(text.jump(probe.address));
            if entries.jumps == MANY {
                pages_of_many = text.space.pages();
            }
        }
    }
    let pages = text.space.pages();
    let mut instructions = Tally::default();
    let bodies = functions.iter().filter(|function| !function.is_padding);
    for function in bodies.step_by(every.max(1)) {
        for at in shares::instructions(image, function) {
            if let Fate::Probed(probe) = survey.instruction(at)? {
                instructions.add(text.could_jump(probe.address));
            }
        }
    }
    let sample = shares::sample(every);
    let how =
        |what: &str| format!("{what} of {release} that can be jumps, of those that can be probed");
    let all_at_once = format!(
        "all at once, with detours of {DETOUR} bytes on {pages} pages of 4 KiB (the first {MANY} on \
         {pages_of_many})"
    );
    let what = format!("all instructions{sample}");
    Ok(vec![
        entries.entry("BN07", ENTRIES, how("function entries"), &all_at_once),
        instructions.entry(
            "BN08",
            INSTRUCTIONS,
            how(&what),
            "each with those of all entries",
        ),
    ])
}
