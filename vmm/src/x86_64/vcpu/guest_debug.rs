//! What a vCPU is debugged for, in the form that KVM takes (`KVM_SET_GUEST_DEBUG`), and what a
//! debug exception means.
//!
//! Int3 exits, watchpoints and a step under way go together. They all come from
//! one value, so that changing one keeps the others.
//!
//! Debug registers: SDM vol. 3, 17.2. KVM gives the guest those in
//! `kvm_guest_debug` in place of the guest's own, and keeps them over an INIT
//! (`kvm_vcpu_reset` and `kvm_update_dr7` of arch/x86/kvm/x86.c: with
//! `KVM_GUESTDBG_USE_HW_BP` a reset changes only the guest's own), so that they
//! can be set before a vCPU has been started.

use guest_state::x86_64::DEBUG_REGISTERS;
use guest_state::{Access, Action, Debugging, Step, StepEnd, Trap, Watchpoint, WatchpointSet};
use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP,
    KVM_GUESTDBG_USE_SW_BP, kvm_guest_debug,
};

/// DR7: bit 10 is always 1; exact matching (GE) is what SDM vol. 3, 17.2.4
/// recommends.
const DR7_FIXED: u64 = 1 << 10 | 1 << 9;
/// DR6: BS, a single step.
pub(crate) const DR6_SINGLE_STEP: u64 = 1 << 14;

/// What a vCPU is debugged for.
#[derive(Clone, Debug, Default)]
pub(crate) struct DebugState {
    /// What all vCPUs are debugged for.
    pub(crate) wanted: Debugging,
    /// The step under way.
    pub(crate) step: Option<StepUnderWay>,
}

/// A step under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepUnderWay {
    /// The step as it was asked for.
    pub(crate) asked: Step,
    /// RIP of its instruction.
    pub(crate) start: u64,
}

/// What a debug exception (#DB) means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DebugCause {
    /// How the step under way has ended, if it has.
    pub(crate) step: Option<StepEnd>,
    /// The watchpoints that were hit, if any was.
    pub(crate) watchpoints: Option<WatchpointSet>,
}

impl DebugCause {
    /// The traps to be told, in their order. None: the guest's own exception.
    pub(crate) fn traps(self) -> [Option<Trap>; 2] {
        [
            self.step.map(Trap::Step),
            self.watchpoints.map(Trap::Watchpoint),
        ]
    }
}

/// What the trap handler is asked about.
#[derive(Clone, Copy)]
pub(crate) enum DebugEvent {
    /// An int3.
    Breakpoint,
    /// A debug exception, #DB.
    Debug {
        /// DR6 after the exception.
        dr6: u64,
        /// What the exception means.
        cause: DebugCause,
    },
    /// A step has used up its time and led elsewhere.
    Astray,
    /// The vCPU may go on from where it was held.
    Released,
    /// The vCPU is to execute one instruction.
    StepWanted,
}

impl DebugEvent {
    /// Tells `answer` the traps, in their order; the action is its answer to the first. Without a trap the
    /// exception is the guest's own.
    #[inline]
    pub(crate) fn tell(self, mut answer: impl FnMut(Trap) -> Action) -> Action {
        match self {
            Self::Breakpoint => answer(Trap::Breakpoint),
            Self::Debug { cause, .. } => {
                let mut action = None;
                for trap in cause.traps().into_iter().flatten() {
                    let answer = answer(trap);
                    action.get_or_insert(answer);
                }
                action.unwrap_or(Action::Reinject)
            }
            Self::Astray => answer(Trap::Step(StepEnd::Astray)),
            Self::Released => answer(Trap::Released),
            Self::StepWanted => answer(Trap::StepWanted),
        }
    }

    /// Returns true if the step under way has ended with it.
    pub(crate) fn ends_step(self) -> bool {
        match self {
            Self::Breakpoint | Self::Released | Self::StepWanted => false,
            Self::Debug { cause, .. } => cause.step.is_some(),
            Self::Astray => true,
        }
    }
}

/// What a debug register is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegisterUse {
    Watchpoint(Watchpoint),
    /// The step under way ends in this way at the instruction of this address.
    End(u64, StepEnd),
}

impl RegisterUse {
    /// The address, and the four bits of DR7 that say when it matches: R/W in bits 1:0 and LEN in bits 3:2.
    fn register(self) -> (u64, u64) {
        match self {
            Self::Watchpoint(watchpoint) => (watchpoint.address.0, condition(&watchpoint)),
            // Both are 0 for the execution of an instruction.
            Self::End(at, _) => (at, 0),
        }
    }
}

impl DebugState {
    /// The request to KVM. `block_irq`: this KVM has `KVM_GUESTDBG_BLOCKIRQ`; `more`: further flags,
    /// `KVM_GUESTDBG_INJECT_*`.
    pub(crate) fn request(&self, block_irq: bool, more: u32) -> kvm_guest_debug {
        let mut debug = kvm_guest_debug {
            control: more,
            ..Default::default()
        };
        if self.wanted.breakpoints {
            debug.control |= KVM_GUESTDBG_USE_SW_BP;
        }
        let uses = self.uses();
        if self.step.is_some() {
            let runs = |used: &RegisterUse| matches!(used, RegisterUse::End(_, StepEnd::Done));
            if !uses.iter().flatten().any(runs) {
                debug.control |= KVM_GUESTDBG_SINGLESTEP;
            }
            if block_irq {
                debug.control |= KVM_GUESTDBG_BLOCKIRQ;
            }
        }
        for (index, used) in uses.into_iter().enumerate() {
            if let Some((address, condition)) = used.map(RegisterUse::register) {
                debug.control |= KVM_GUESTDBG_USE_HW_BP;
                debug.arch.debugreg[index] = address;
                debug.arch.debugreg[7] |= DR7_FIXED | enable(index, condition);
            }
        }
        if debug.control != 0 {
            debug.control |= KVM_GUESTDBG_ENABLE;
        }
        debug
    }

    /// What DR6 of a debug exception says.
    pub(crate) fn cause(&self, dr6: u64) -> DebugCause {
        let stepped = self.step.is_some() && dr6 & DR6_SINGLE_STEP != 0;
        let mut cause = DebugCause {
            step: stepped.then_some(StepEnd::Done),
            watchpoints: None,
        };
        let mut hit = 0;
        // A processor may report matches of registers that aren't enabled, too
        // (SDM vol. 3, 17.2.3).
        for (index, used) in self.uses().into_iter().enumerate() {
            match used.filter(|_| dr6 & 1 << index != 0) {
                Some(RegisterUse::Watchpoint(_)) => hit |= 1 << index,
                Some(RegisterUse::End(_, end)) => cause.step = cause.step.or(Some(end)),
                None => {}
            }
        }
        if hit != 0 {
            cause.watchpoints = Some(WatchpointSet::from_bits(hit));
        }
        cause
    }

    /// What the debug registers are used for. Watchpoints have the first ones, and the address that a step
    /// runs to has the next. The handlers of a step get what is left, the first handlers first.
    fn uses(&self) -> [Option<RegisterUse>; DEBUG_REGISTERS] {
        let watchpoints = self.wanted.watchpoints.iter().copied();
        let asked = self.step.map(|step| step.asked).unwrap_or_default();
        let run_to = asked.run_to.map(|at| RegisterUse::End(at.0, StepEnd::Done));
        let handlers = asked.handlers.into_iter().flatten();
        let handlers =
            handlers.map(|it| RegisterUse::End(it.entry.0, StepEnd::Exception(it.vector)));
        let all = watchpoints
            .map(RegisterUse::Watchpoint)
            .chain(run_to)
            .chain(handlers);
        let mut uses = [None; DEBUG_REGISTERS];
        for (register, used) in uses.iter_mut().zip(all) {
            *register = Some(used);
        }
        uses
    }
}

/// See [`RegisterUse::register`].
fn condition(watchpoint: &Watchpoint) -> u64 {
    let access = match watchpoint.access {
        Access::Execute => 0,
        Access::Write => 1,
        Access::ReadWrite => 3,
    };
    let len = match watchpoint.len {
        2 => 1,
        4 => 3,
        8 => 2,
        _ => 0,
    };
    len << 2 | access
}

/// DR7 with debug register `index` enabled globally (G0 to G3).
fn enable(index: usize, condition: u64) -> u64 {
    1 << (2 * index + 1) | condition << (16 + 4 * index)
}

#[cfg(test)]
mod tests {
    use guest_state::{ExceptionHandler, GuestVirtAddr};

    use super::*;

    fn watch(address: u64, len: u8, access: Access) -> Watchpoint {
        Watchpoint {
            address: GuestVirtAddr(address),
            len,
            access,
        }
    }

    /// The handler at an address, of the exception with its number.
    fn handler(entry: u64) -> ExceptionHandler {
        ExceptionHandler {
            vector: entry as u8,
            entry: GuestVirtAddr(entry),
        }
    }

    fn step(handlers: &[u64]) -> Option<StepUnderWay> {
        let mut asked = Step::default();
        for (slot, entry) in asked.handlers.iter_mut().zip(handlers) {
            *slot = Some(handler(*entry));
        }
        let start = 0x1000;
        Some(StepUnderWay { asked, start })
    }

    fn watching(watchpoints: Vec<Watchpoint>) -> DebugState {
        DebugState {
            wanted: Debugging {
                breakpoints: false,
                watchpoints,
            },
            step: None,
        }
    }

    #[test]
    fn dr7_is_encoded_as_the_manual_says() {
        use Access::{Execute, ReadWrite, Write};
        // Address, length, access; G bit and condition in the last.
        for (watchpoints, dr7) in [
            (vec![watch(0x10, 1, Write)], 0x0001_0602),
            (vec![watch(0x10, 2, Write)], 0x0005_0602),
            (vec![watch(0x10, 4, Write)], 0x000d_0602),
            (vec![watch(0x10, 8, Write)], 0x0009_0602),
            (vec![watch(0x10, 8, ReadWrite)], 0x000b_0602),
            (vec![watch(0x11, 1, Execute)], 0x0000_0602),
            (
                vec![watch(0x10, 1, Write), watch(0x20, 4, ReadWrite)],
                0x00f1_060a,
            ),
        ] {
            let addresses: Vec<u64> = watchpoints.iter().map(|w| w.address.0).collect();
            let debugging = watching(watchpoints);
            let debug = debugging.request(true, 0);
            assert_eq!(debug.control, KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP);
            assert_eq!(debug.arch.debugreg[7], dr7, "{debugging:x?}");
            assert_eq!(debug.arch.debugreg[..addresses.len()], addresses);
        }
    }

    #[test]
    fn nothing_to_debug_for_switches_debugging_off() {
        let debug = DebugState::default().request(true, 0);
        assert_eq!((debug.control, debug.arch.debugreg), (0, [0; 8]));
    }

    #[test]
    fn breakpoints_watchpoints_and_a_step_go_together() {
        let mut debugging = watching(vec![watch(0x10, 8, Access::Write); 2]);
        debugging.wanted.breakpoints = true;
        debugging.step = step(&[0xa, 0xb, 0xc]);
        let control = KVM_GUESTDBG_ENABLE
            | KVM_GUESTDBG_USE_SW_BP
            | KVM_GUESTDBG_USE_HW_BP
            | KVM_GUESTDBG_SINGLESTEP;
        let debug = debugging.request(false, 0);
        assert_eq!(debug.control, control);
        assert_eq!(
            debug.arch.debugreg,
            [0x10, 0x10, 0xa, 0xb, 0, 0, 0, 0x99_06aa]
        );
        let debug = debugging.request(true, 0);
        assert_eq!(debug.control, control | KVM_GUESTDBG_BLOCKIRQ);
    }

    #[test]
    fn a_step_that_runs_to_an_address_is_no_single_step() {
        let mut debugging = watching(vec![]);
        debugging.step = step(&[0xb, 0xc, 0xd, 0xe]).map(|step| StepUnderWay {
            asked: Step {
                run_to: Some(GuestVirtAddr(0xa)),
                ..step.asked
            },
            ..step
        });
        let debug = debugging.request(true, 0);
        let control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP | KVM_GUESTDBG_BLOCKIRQ;
        assert_eq!(debug.control, control);
        assert_eq!(debug.arch.debugreg[..4], [0xa, 0xb, 0xc, 0xd]);
        let ended = |dr6| debugging.cause(dr6).step;
        assert_eq!(ended(1), Some(StepEnd::Done));
        assert_eq!(ended(2), Some(StepEnd::Exception(0xb)));
        // Without a register for it the rounds are stepped.
        debugging.wanted.watchpoints = vec![watch(0x10, 8, Access::Write); 4];
        let debug = debugging.request(true, 0);
        assert_eq!(debug.control, control | KVM_GUESTDBG_SINGLESTEP);
    }

    #[test]
    fn a_handler_gets_the_next_register_also_after_a_gap() {
        let handlers = [None, Some(handler(0xa)), None, Some(handler(0xb))];
        let debugging = DebugState {
            step: Some(StepUnderWay {
                asked: Step {
                    handlers,
                    ..Step::default()
                },
                start: 0,
            }),
            ..DebugState::default()
        };
        let debug = debugging.request(false, 0);
        assert_eq!(debug.arch.debugreg[..3], [0xa, 0xb, 0]);
        assert_eq!(debug.arch.debugreg[7], 0x60a);
    }

    #[test]
    fn a_debug_exception_is_told_apart() {
        let watching = |count, step| DebugState {
            step,
            ..watching(vec![watch(0x10, 8, Access::Write); count])
        };
        const BS: u64 = 0x4000;
        const DONE: Option<StepEnd> = Some(StepEnd::Done);
        let raised = |vector| Some(StepEnd::Exception(vector));
        let cases = [
            // A step ends.
            (watching(0, step(&[])), BS, (DONE, None)),
            (watching(1, step(&[0xa])), BS, (DONE, None)),
            // Its instruction hits a watchpoint.
            (watching(1, step(&[0xa])), BS | 1, (DONE, Some(1))),
            // Its instruction raises an exception.
            (watching(0, step(&[0xa])), 1, (raised(0xa), None)),
            (watching(1, step(&[0xa])), 2, (raised(0xa), None)),
            (watching(1, step(&[0xa])), 3, (raised(0xa), Some(1))),
            (watching(1, step(&[0xa, 0xb])), 4, (raised(0xb), None)),
            // A watchpoint elsewhere, a step being under way or not.
            (watching(1, step(&[0xa])), 1, (None, Some(1))),
            (watching(4, None), 0xa, (None, Some(0xa))),
            // Registers that aren't set don't count.
            (watching(1, None), 0xf, (None, Some(1))),
            // The guest's own.
            (watching(1, None), BS, (None, None)),
            (watching(1, None), 2, (None, None)),
            (watching(0, step(&[])), 1, (None, None)),
        ];
        for (debugging, dr6, (step, watchpoints)) in cases {
            let rest = 0xffff_0ff0;
            let expected = DebugCause {
                step,
                watchpoints: watchpoints.map(WatchpointSet::from_bits),
            };
            assert_eq!(debugging.cause(dr6 | rest), expected, "{dr6:#x}");
        }
    }

    #[test]
    fn a_step_is_told_before_the_watchpoint_that_it_hit() {
        let hit = WatchpointSet::from_bits(1);
        let cause = DebugCause {
            step: Some(StepEnd::Done),
            watchpoints: Some(hit),
        };
        let traps = [Some(Trap::Step(StepEnd::Done)), Some(Trap::Watchpoint(hit))];
        assert_eq!(cause.traps(), traps);
    }
}
