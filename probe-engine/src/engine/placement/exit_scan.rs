//! Finds the places where a function is left, by decoding all of it.

use std::ops::Range;
use std::sync::Arc;

use guest_kernel::blacklist::{Patched, Reason};
use guest_state::x86_64::INT3;
use guest_state::{GuestMemory, GuestVirtAddr};
use iced_x86::{FlowControl, Instruction, Mnemonic};

use crate::engine::Engine;
use crate::engine::placement::body::{Body, Function, KernelBody};
use crate::engine::placement::locate::Located;
use crate::engine::placement::walk::Walks;
use crate::engine::sites::site::Site;
use crate::engine::sites::ways_out::{WayOut, WaysOut};
use crate::error::RegisterError;
use crate::insn;
use crate::probe::{Place, ProbeKind, Strategy};

/// The suffix of the part of a function that is seldom executed, which compilers put elsewhere.
const COLD: &str = ".cold";
/// The kernel's own code for returning ends so in all its forms (`arch/x86/lib/retpoline.S`).
const RETURN_THUNK: &str = "return_thunk";

impl Engine {
    /// Finds all instructions by which a function of the kernel may be left, and makes the breakpoints for them but
    /// the entry's.
    ///
    /// # Errors
    /// One of the instructions can't be found or probed.
    pub(crate) fn ways_out(
        &self,
        walks: &mut Walks,
        memory: &dyn GuestMemory,
        body: &KernelBody<'_>,
        place: &Place,
        entry: &Located,
    ) -> Result<(Arc<WaysOut>, Vec<Site>), RegisterError> {
        let refused = |why| RegisterError::Exits {
            place: place.to_string(),
            why,
        };
        let function = body.function(&Place::Address(entry.site.virt))?;
        let out = find(body, &function, entry.site.virt).map_err(refused)?;
        let mut sites = Vec::new();
        for exit in &out.exits {
            let at = Place::Address(exit.at);
            let located = self.locate_among(walks, memory, body, &at, ProbeKind::PRE);
            let located = located.map_err(|error| error.to_string()).and_then(|it| {
                // Where a jump has led is known only if the engine has executed it.
                let known = exit.is_ret || it.spot.strategy == Strategy::Emulate;
                known
                    .then_some(it)
                    .ok_or_else(|| format!("nobody would see where the jump at {} leads", exit.at))
            });
            match located {
                Ok(_) if exit.at == entry.site.virt => {}
                Ok(located) => sites.push(located.site),
                Err(why) => return Err(refused(why)),
            }
        }
        Ok((Arc::new(out), sites))
    }
}

/// Decodes all of a function from its probed entry on.
fn find(
    body: &KernelBody<'_>,
    function: &Function,
    entry: GuestVirtAddr,
) -> Result<WaysOut, String> {
    let symbols = &body.kernel.symbols;
    let mut parts = vec![entry..function.start.wrapping_add(function.size)];
    // The jump to the cold part may come and go, as a static key's does.
    let cold = format!("{}{COLD}", function.name);
    for symbol in symbols.by_name(&cold) {
        add_part(body, &mut parts, symbol.address);
    }
    let mut branches = Vec::new();
    let mut done = 0;
    while let Some(part) = parts.get(done).cloned() {
        for insn in decode(body, part)? {
            let target = GuestVirtAddr(insn.near_branch_target());
            let name = symbols.resolve(target).map(|it| it.symbol.name);
            if name.is_some_and(|name| name.ends_with(COLD)) {
                add_part(body, &mut parts, target);
            }
            branches.push(insn);
        }
        done += 1;
    }
    let mut exits = Vec::new();
    for insn in branches {
        let at = GuestVirtAddr(insn.ip());
        let target = GuestVirtAddr(insn.near_branch_target());
        let is_ret = insn.flow_control() == FlowControl::Return;
        if insn.mnemonic() == Mnemonic::Ret && insn.op_count() != 0 {
            return Err(format!("the return at {at} takes arguments off the stack"));
        }
        let is_indirect = insn.flow_control() == FlowControl::IndirectBranch;
        if !is_ret && !is_indirect && target == entry {
            return Err(format!(
                "the branch at {at} leads back to its first instruction, so that calls can't be told apart"
            ));
        }
        if is_ret || is_indirect || !parts.iter().any(|part| part.contains(&target)) {
            let thunk = is_return_site(body, &insn)
                || symbols
                    .resolve(target)
                    .is_some_and(|it| it.symbol.name.ends_with(RETURN_THUNK));
            exits.push(WayOut {
                at,
                is_ret,
                tail_call: !is_ret && !thunk,
            });
        }
    }
    if exits.is_empty() {
        return Err("it never returns".to_owned());
    }
    Ok(WaysOut { parts, exits })
}

/// Returns true if the kernel's table of returns has this instruction, which may have become another one.
fn is_return_site(body: &KernelBody<'_>, insn: &Instruction) -> bool {
    let first = GuestVirtAddr(insn.ip());
    let mut entries = body
        .blacklist()
        .overlapping(first..first.wrapping_add(insn.len() as u64));
    entries.any(|entry| entry.reason == Reason::ReturnThunk)
}

/// Adds the function at an address to the parts, once.
fn add_part(body: &KernelBody<'_>, parts: &mut Vec<Range<GuestVirtAddr>>, at: GuestVirtAddr) {
    let symbols = &body.kernel.symbols;
    let Some(found) = symbols.resolve(at).filter(|_| symbols.is_text(at)) else {
        return;
    };
    let start = found.symbol.address;
    if !parts.iter().any(|part| part.contains(&start)) {
        parts.push(start..start.wrapping_add(found.size));
    }
}

/// Returns the branches and returns, but no calls, among the instructions of a part of a function.
fn decode(body: &KernelBody<'_>, part: Range<GuestVirtAddr>) -> Result<Vec<Instruction>, String> {
    if !body.is_started() {
        let mut entries = body.blacklist().overlapping(part.clone());
        let changes = |entry: &guest_kernel::blacklist::BlacklistEntry| {
            entry.reason.patched() == Patched::Once && entry.reason != Reason::EndbrSeal
        };
        if let Some(entry) = entries.find(changes) {
            let (at, kind) = (entry.range.start, entry.reason.kind());
            return Err(format!(
                "the kernel will patch it at {at} ({kind}) while it starts: ask for it once it has started"
            ));
        }
    }
    let len = part.end.offset_from(part.start).unwrap_or(0) as usize;
    let text = body.text(part.start, len).and_then(Result::ok);
    let text = text
        .filter(|text| text.len() == len)
        .ok_or_else(|| format!("its text at {} can't be read", part.start))?;
    let mut found = Vec::new();
    let (mut at, mut reachable, mut ends) = (0, true, true);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let address = part.start.wrapping_add(at as u64);
        let code = insn::decode(rest, address)
            .map_err(|_| format!("there is no instruction at {address}"))?;
        let insn = code.insn;
        if rest.first() == Some(&INT3) {
            // It is padding if execution doesn't come here: up to the end of the function, or behind what leads away.
            if reachable && rest.iter().any(|byte| *byte != INT3) {
                return Err(format!(
                    "a breakpoint of the guest's own at {address} hides an instruction"
                ));
            }
            at += 1;
            continue;
        }
        let flow = insn.flow_control();
        let calls = matches!(flow, FlowControl::Call | FlowControl::IndirectCall);
        if !calls && flow != FlowControl::Next && !insn::is_trap(&insn) {
            found.push(insn);
        }
        reachable = !insn::never_falls_through(&insn) && !insn::is_trap(&insn);
        if insn.mnemonic() != Mnemonic::Nop {
            // A function that is called last doesn't return.
            ends = calls || !reachable;
        }
        at += insn.len();
    }
    match ends {
        true => Ok(found),
        false => Err(format!("it goes on behind its end at {}", part.end)),
    }
}
