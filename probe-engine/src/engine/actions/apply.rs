//! Doing what a probe, or an answer to its hit, asks for.

use guest_state::x86_64::flags::{AF, CF, DF, OF, PF, SF, ZF};
use guest_state::x86_64::paging::{is_canonical, read_virt_u64};
use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};

use crate::action::{ActionFailure, HitAction, Target};
use crate::engine::Engine;
use crate::engine::actions::moment::Moment;
use crate::engine::actions::write::write;
use crate::engine::code::arena::CodeArena;
use crate::engine::sites::probe::Probe;

/// The bits of RFLAGS that may be set: none by which the kernel controls its own execution.
const SETTABLE: u64 = CF | PF | AF | ZF | SF | DF | OF;
/// Bytes of a return address.
const WORD: u64 = 8;

impl Engine {
    /// Does these actions, one after the other. Those that can't be done are counted, and the rest is done all the
    /// same.
    pub(crate) fn act(
        &self,
        probe: &Probe,
        actions: &[HitAction],
        moment: Moment,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) {
        for action in actions {
            probe.acted(self.act_once(action, moment, memory, vcpu));
        }
    }

    fn act_once(
        &self,
        action: &HitAction,
        moment: Moment,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Result<(), ActionFailure> {
        match action {
            HitAction::Pause => vcpu.pause_guest(),
            _ if moment == Moment::TailCall => return Err(ActionFailure::TailCall),
            HitAction::SetRegister { target, value } => return set(vcpu, *target, *value),
            HitAction::Override { value } if moment == Moment::Before => {
                return skip_function(memory, vcpu, *value);
            }
            HitAction::Override { value } => vcpu.registers_mut().rax = *value,
            HitAction::WriteMemory { at, bytes } => {
                let base = at.register.map(|number| vcpu.registers().by_number(number));
                let at = base.unwrap_or(0).wrapping_add(at.offset);
                let tables = vcpu.page_tables().ok_or(ActionFailure::NoPageTables)?;
                // No change of probes is made while this vCPU is in its trap.
                return write(&self.table(), memory, tables, GuestVirtAddr(at), bytes);
            }
        }
        Ok(())
    }
}

fn set(vcpu: &mut dyn Vcpu, target: Target, value: u64) -> Result<(), ActionFailure> {
    match target {
        Target::General(number) => *vcpu.registers_mut().by_number_mut(number) = value,
        Target::Flags => {
            let registers = vcpu.registers_mut();
            registers.rflags = registers.rflags & !SETTABLE | value & SETTABLE;
        }
        Target::Rip => {
            may_go_on(vcpu, value)?;
            vcpu.registers_mut().rip = value;
        }
    }
    Ok(())
}

/// Returns to the caller of the function that a vCPU is at the entry of.
fn skip_function(
    memory: &dyn GuestMemory,
    vcpu: &mut dyn Vcpu,
    value: u64,
) -> Result<(), ActionFailure> {
    let tables = vcpu.page_tables().ok_or(ActionFailure::NoPageTables)?;
    let rsp = vcpu.registers().rsp;
    let caller = read_virt_u64(memory, tables, GuestVirtAddr(rsp))?;
    // A function that was jumped to by another whose return is followed returns to the arena.
    if !CodeArena::covers(GuestVirtAddr(caller)) {
        may_go_on(vcpu, caller)?;
    }
    let registers = vcpu.registers_mut();
    registers.rax = value;
    registers.rip = caller;
    registers.rsp = rsp.wrapping_add(WORD);
    Ok(())
}

/// Checks that a vCPU can be sent to an address: the address is canonical, and isn't in our memory. A processor doesn't
/// enter a guest whose RIP isn't canonical (SDM vol. 3C, 27.3.1.4).
fn may_go_on(vcpu: &mut dyn Vcpu, to: u64) -> Result<(), ActionFailure> {
    let to = GuestVirtAddr(to);
    let tables = vcpu.page_tables().ok_or(ActionFailure::NoPageTables)?;
    if is_canonical(tables.mode, to) && !CodeArena::covers(to) {
        return Ok(());
    }
    Err(ActionFailure::Rip { to })
}
