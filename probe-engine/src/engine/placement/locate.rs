//! From a place that a client asks for to an instruction, or the reason why not.

use std::ops::Range;

use guest_kernel::blacklist::{self, Patched, Reason};
use guest_state::x86_64::{MAX_INSTRUCTION_LEN, NOP5};
use guest_state::{GuestMemory, GuestVirtAddr};

use crate::engine::Engine;
use crate::engine::placement::body::{Body, Function};
use crate::engine::placement::walk::{WalkedText, Walks};
use crate::engine::sites::guest_kprobes;
use crate::engine::sites::jump::Verdict;
use crate::engine::sites::probe::Spot;
use crate::engine::sites::site::{Probes, Site};
use crate::error::RegisterError;
use crate::insn;
use crate::probe::{Place, ProbeKind};

/// Length of `endbr64` (SDM vol. 2, ENDBR64).
const ENDBR_LEN: usize = 4;

/// An instruction that can be probed.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    /// The site, with no probes yet.
    pub(crate) site: Site,
    pub(crate) spot: Spot,
    /// The other instructions that its probe needs breakpoints on.
    pub(crate) exits: Vec<Site>,
    /// The text in which it was found, up to its end.
    pub(crate) text: WalkedText,
}

impl Engine {
    /// Finds the instruction at `place` in the text as it is without our
    /// breakpoints, and decides how it is executed.
    pub(crate) fn locate(
        &self,
        memory: &dyn GuestMemory,
        body: &dyn Body,
        place: &Place,
        kind: ProbeKind,
    ) -> Result<Located, RegisterError> {
        self.locate_among(&mut Walks::default(), memory, body, place, kind)
    }

    /// As [`Self::locate`], for one of many places. Functions that have been walked through for
    /// others are in `walks`.
    pub(crate) fn locate_among(
        &self,
        walks: &mut Walks,
        memory: &dyn GuestMemory,
        body: &dyn Body,
        place: &Place,
        kind: ProbeKind,
    ) -> Result<Located, RegisterError> {
        self.locate_if(walks, memory, body, place, kind, |_| true)
    }

    /// As [`Self::locate_among`], where only the entries of the blacklist count whose reason
    /// `matters`.
    pub(crate) fn locate_if(
        &self,
        walks: &mut Walks,
        memory: &dyn GuestMemory,
        body: &dyn Body,
        place: &Place,
        kind: ProbeKind,
        matters: impl Fn(Reason) -> bool,
    ) -> Result<Located, RegisterError> {
        let function = body.function(place)?;
        let start = function.start;
        let address = start.wrapping_add(function.offset);
        let not_loaded = || RegisterError::NotLoaded {
            place: place.to_string(),
            address,
        };
        // Room for the instruction that is asked for, and for the entry when that is asked for.
        let wanted =
            usize::try_from(function.offset).map_err(|_| not_loaded())? + 3 * MAX_INSTRUCTION_LEN;
        let walk = walks
            .through(body, start, wanted)
            .ok_or_else(not_loaded)??;

        let entry = entry(body, walk.bytes(), start);
        let is_return = matches!(kind, ProbeKind::Return { .. } | ProbeKind::Exits { .. });
        let by_name = matches!(place, Place::Symbol { offset: 0, .. });
        let at_start = is_return && (function.offset as usize) < entry.len;
        let offset = if by_name || at_start {
            entry.len as u64
        } else {
            function.offset
        };
        let address = start.wrapping_add(offset);
        let first = address..address.wrapping_add(1);
        // This comes before the error that tells where to probe instead, as probing there has to be
        // possible.
        let rules_out =
            |reason| !matches!(reason, Reason::FtraceSite | Reason::EndbrSeal) && matters(reason);
        check_blacklist(body, place, first, rules_out)?;
        check_entry(place, &function, &entry, offset, is_return)?;
        guest_kprobes::check(body.kprobes(), &self.table(), &place.to_string(), address)?;
        let code = walk.reach(body, place, entry.len, offset as usize)?;
        let len = code.insn.len();
        let all = address..address.wrapping_add(len as u64);
        check_blacklist(body, place, all, &matters)?;
        let phys = body.phys(address).ok_or_else(not_loaded)?;
        let text = walk.text(offset as usize + len);
        let original = text
            .bytes()
            .get(offset as usize..)
            .filter(|it| it.len() == len)
            .ok_or_else(not_loaded)?;
        let expects_fault = body.expects_fault(address);
        let (way, strategy, reason) = self.way(memory, &code, original, address, expects_fault);
        let site = Site {
            virt: address,
            phys,
            original: original[0],
            len: len as u8,
            module: body.module(),
            way,
            probes: Probes::new(),
            milestone: None,
            armed: false,
            follows: false,
            reports_done: false,
            active: Probes::new(),
            verdict: Verdict::Waiting,
        };
        let spot = Spot {
            address,
            symbol: function.name,
            offset,
            instruction: insn::text(&code.insn),
            strategy,
            reason,
            beyond_entry: offset
                .checked_sub(entry.len as u64)
                .filter(|beyond| *beyond != 0),
            out: None,
        };
        Ok(Located {
            site,
            spot,
            exits: Vec::new(),
            text,
        })
    }
}

/// Refuses what can't be probed because of where it is in its function.
fn check_entry(
    place: &Place,
    function: &Function,
    entry: &FunctionHead,
    offset: u64,
    is_return: bool,
) -> Result<(), RegisterError> {
    if offset >= function.size {
        return Err(RegisterError::EmptyFunction {
            symbol: function.name.clone(),
        });
    }
    let next = function.start.wrapping_add(entry.len as u64);
    if offset < entry.len as u64 {
        let (what, why) = if offset < entry.endbr as u64 {
            (
                "endbr64",
                "indirect branches may lead nowhere else".to_owned(),
            )
        } else {
            ("ftrace site", Reason::FtraceSite.to_string())
        };
        return Err(RegisterError::ReservedEntry {
            place: place.to_string(),
            what,
            why,
            next,
        });
    }
    if is_return && offset != entry.len as u64 {
        return Err(RegisterError::ReturnNotEntry {
            place: place.to_string(),
            symbol: function.name.clone(),
        });
    }
    Ok(())
}

/// Refuses what the kernel patches itself or has ruled out.
fn check_blacklist(
    body: &dyn Body,
    place: &Place,
    range: Range<GuestVirtAddr>,
    rules_out: impl Fn(Reason) -> bool,
) -> Result<(), RegisterError> {
    let mut entries = body.blacklist().overlapping(range);
    let stands = |entry: &blacklist::BlacklistEntry| {
        let done = body.is_started() && entry.reason.patched() == Patched::Once;
        !done && rules_out(entry.reason)
    };
    match entries.find(stands) {
        None => Ok(()),
        Some(entry) => Err(RegisterError::Blacklisted {
            place: place.to_string(),
            kind: entry.reason.kind(),
            reason: entry.reason.to_string(),
        }),
    }
}

/// Lengths of the function's beginning that a probe must not touch.
pub(crate) struct FunctionHead {
    pub(crate) endbr: usize,
    /// The whole length, with the ftrace site.
    pub(crate) len: usize,
}

pub(crate) fn entry(body: &dyn Body, bytes: &[u8], start: GuestVirtAddr) -> FunctionHead {
    let is_endbr = insn::decode(bytes, start).is_ok_and(|code| insn::is_endbr(&code.insn));
    // Where no branch leads to it, the kernel replaces it by a nop of its length.
    let was_endbr = |entry: blacklist::BlacklistEntry| {
        entry.reason == Reason::EndbrSeal && entry.range.start == start
    };
    let first = start..start.wrapping_add(ENDBR_LEN as u64);
    // A module no longer tells which of its functions these are. But each traced function begins with its ftrace site
    // or with an endbr64 before it.
    let before_site = || {
        let at = first.end..first.end.wrapping_add(1);
        let site = body.blacklist().ftrace_site(at);
        body.module().is_some() && site.is_some_and(|site| site.start == first.end)
    };
    let listed = || body.blacklist().overlapping(first.clone()).any(was_endbr);
    let sealed = || listed() || before_site();
    let endbr = if is_endbr || sealed() { ENDBR_LEN } else { 0 };
    let behind = start.wrapping_add(endbr as u64);
    let site = behind..behind.wrapping_add(NOP5.len() as u64);
    let traced = match body.has_ftrace_table() {
        true => {
            let found = body.blacklist().ftrace_site(site);
            found.is_some_and(|site| site.start == behind)
        }
        // `BYTES_NOP5` (arch/x86/include/asm/nops.h) stands in for the call to `__fentry__` while a function
        // isn't traced. A kernel without ftrace has such nops only where it has a reason.
        false => bytes.get(endbr..endbr + NOP5.len()) == Some(&NOP5),
    };
    FunctionHead {
        endbr,
        len: endbr + if traced { NOP5.len() } else { 0 },
    }
}
