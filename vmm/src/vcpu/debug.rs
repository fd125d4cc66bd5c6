//! What a vCPU is debugged for at a time, as KVM is told it, and which of that a
//! debug exception is.
//!
//! Int3 exits, watchpoints and a step under way go together. They all come from
//! one value, so that changing one keeps the others.
//!
//! Debug registers: SDM vol. 3, 17.2. KVM gives the guest those in
//! `kvm_guest_debug` in place of the guest's own, and keeps them over an INIT
//! (`kvm_vcpu_reset` and `kvm_update_dr7` of arch/x86/kvm/x86.c: with
//! `KVM_GUESTDBG_USE_HW_BP` a reset changes only the guest's own), so that they
//! can be set before a vCPU has been started.

use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP,
    KVM_GUESTDBG_USE_SW_BP, kvm_guest_debug,
};

use crate::{
    trap::{Handlers, Trap},
    watch::{Access, DEBUG_REGISTERS, Watchpoint},
};

/// DR7: bit 10 is always 1; exact matching (GE) is what SDM vol. 3, 17.2.4
/// recommends.
const DR7_FIXED: u64 = 1 << 10 | 1 << 9;
/// DR6: B0 to B3, a bit for each debug register that matched.
const DR6_MATCHES: u64 = 0xf;
/// DR6: BS, a single step.
const DR6_SINGLE_STEP: u64 = 1 << 14;

/// What a vCPU is debugged for.
#[derive(Clone, Debug, Default)]
pub(super) struct Debugging {
    /// Int3s of kernel and user mode make exits.
    pub(super) breakpoint_exits: bool,
    /// At most [`DEBUG_REGISTERS`].
    pub(super) watchpoints: Vec<Watchpoint>,
    /// The step under way.
    pub(super) step: Option<Step>,
}

/// A step under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Where exceptions of its instruction lead.
    pub(super) handlers: Handlers,
    /// It goes on until it comes to one of them.
    pub(super) through: bool,
    /// RIP of its instruction.
    pub(super) start: u64,
}

/// What a debug exception (#DB) is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cause {
    /// The instruction stepped is done.
    pub(super) stepped: bool,
    /// DR6, when debug registers set here matched.
    pub(super) hardware: Option<u64>,
    /// The step under way ends.
    pub(super) ends_step: bool,
}

impl Cause {
    /// The traps to be told, in their order. None: the guest's own exception.
    pub(super) fn traps(self) -> [Option<Trap>; 2] {
        [
            self.stepped.then_some(Trap::Step),
            self.hardware.map(|dr6| Trap::Hardware { dr6 }),
        ]
    }
}

impl Debugging {
    /// What to tell KVM. `block_irq`: this KVM has `KVM_GUESTDBG_BLOCKIRQ`; `more`:
    /// further flags, `KVM_GUESTDBG_INJECT_*`.
    pub(super) fn request(&self, block_irq: bool, more: u32) -> kvm_guest_debug {
        let mut debug = kvm_guest_debug {
            control: more,
            ..Default::default()
        };
        if self.breakpoint_exits {
            debug.control |= KVM_GUESTDBG_USE_SW_BP;
        }
        if let Some(step) = &self.step {
            if !step.through {
                debug.control |= KVM_GUESTDBG_SINGLESTEP;
            }
            if block_irq {
                debug.control |= KVM_GUESTDBG_BLOCKIRQ;
            }
        }
        for (index, register) in self.registers().into_iter().enumerate() {
            if let Some((address, condition)) = register {
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
    pub(super) fn cause(&self, dr6: u64) -> Cause {
        // A processor may report matches of registers that aren't enabled, too
        // (SDM vol. 3, 17.2.3).
        let set = self.registers();
        let matched = |from: usize| {
            (from..DEBUG_REGISTERS)
                .filter(|&index| set[index].is_some() && dr6 & 1 << index != 0)
                .fold(0, |bits, index| bits | 1 << index)
        };
        let all: u64 = matched(0);
        let stepped = self.step.is_some() && dr6 & DR6_SINGLE_STEP != 0;
        Cause {
            stepped,
            hardware: (all != 0).then_some(dr6 & !DR6_MATCHES | all),
            ends_step: stepped || matched(self.watchpoints.len()) != 0,
        }
    }

    /// The debug registers in use: address and the four bits of DR7 that say when
    /// it matches. Watchpoints have the first; the handlers of a step get what is
    /// left, the first handlers first.
    fn registers(&self) -> [Option<(u64, u64)>; DEBUG_REGISTERS] {
        let watchpoints = self
            .watchpoints
            .iter()
            .map(|watchpoint| (watchpoint.address, condition(watchpoint)));
        // R/W and LEN are both 0 for the execution of an instruction.
        let handlers = self.step.iter().flat_map(|step| step.handlers);
        let handlers = handlers.flatten().map(|address| (address, 0));
        let mut registers = [None; DEBUG_REGISTERS];
        for (register, used) in registers.iter_mut().zip(watchpoints.chain(handlers)) {
            *register = Some(used);
        }
        registers
    }
}

/// R/W and LEN of DR7: bits 1:0 and 3:2.
fn condition(watchpoint: &Watchpoint) -> u64 {
    let access = match watchpoint.access {
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
    use super::*;

    fn watch(address: u64, len: u8, access: Access) -> Watchpoint {
        Watchpoint {
            address,
            len,
            access,
        }
    }

    fn step(handlers: &[u64]) -> Option<Step> {
        let mut all = [None; 4];
        for (slot, handler) in all.iter_mut().zip(handlers) {
            *slot = Some(*handler);
        }
        Some(Step {
            handlers: all,
            through: false,
            start: 0x1000,
        })
    }

    #[test]
    fn dr7_is_encoded_as_the_manual_says() {
        use Access::{ReadWrite, Write};
        // Address, length, access; G bit and condition in the last.
        for (watchpoints, dr7) in [
            (vec![watch(0x10, 1, Write)], 0x0001_0602),
            (vec![watch(0x10, 2, Write)], 0x0005_0602),
            (vec![watch(0x10, 4, Write)], 0x000d_0602),
            (vec![watch(0x10, 8, Write)], 0x0009_0602),
            (vec![watch(0x10, 8, ReadWrite)], 0x000b_0602),
            (
                vec![watch(0x10, 1, Write), watch(0x20, 4, ReadWrite)],
                0x00f1_060a,
            ),
        ] {
            let addresses: Vec<u64> = watchpoints.iter().map(|w| w.address).collect();
            let debugging = Debugging {
                watchpoints,
                ..Default::default()
            };
            let debug = debugging.request(true, 0);
            assert_eq!(debug.control, KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP);
            assert_eq!(debug.arch.debugreg[7], dr7, "{debugging:x?}");
            assert_eq!(debug.arch.debugreg[..addresses.len()], addresses);
        }
    }

    #[test]
    fn nothing_to_debug_for_switches_debugging_off() {
        let debug = Debugging::default().request(true, 0);
        assert_eq!((debug.control, debug.arch.debugreg), (0, [0; 8]));
    }

    #[test]
    fn breakpoints_watchpoints_and_a_step_go_together() {
        let debugging = Debugging {
            breakpoint_exits: true,
            watchpoints: vec![watch(0x10, 8, Access::Write); 2],
            step: step(&[0xa, 0xb, 0xc]),
        };
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
    fn what_runs_through_to_a_handler_is_not_single_stepped() {
        let through = step(&[0xa]).map(|step| Step {
            through: true,
            ..step
        });
        let debugging = Debugging {
            step: through,
            ..Default::default()
        };
        let debug = debugging.request(true, 0);
        let control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP | KVM_GUESTDBG_BLOCKIRQ;
        assert_eq!(debug.control, control);
        assert_eq!(debug.arch.debugreg[0], 0xa);
    }

    #[test]
    fn a_handler_gets_the_next_register_also_after_a_gap() {
        let debugging = Debugging {
            step: Some(Step {
                handlers: [None, Some(0xa), None, Some(0xb)],
                through: false,
                start: 0,
            }),
            ..Default::default()
        };
        let debug = debugging.request(false, 0);
        assert_eq!(debug.arch.debugreg[..3], [0xa, 0xb, 0]);
        assert_eq!(debug.arch.debugreg[7], 0x60a);
    }

    #[test]
    fn a_debug_exception_is_told_apart() {
        let watching = |count, step| Debugging {
            breakpoint_exits: true,
            watchpoints: vec![watch(0x10, 8, Access::Write); count],
            step,
        };
        const BS: u64 = 0x4000;
        let cases = [
            // A step ends.
            (watching(0, step(&[])), BS, (true, None, true)),
            (watching(1, step(&[0xa])), BS, (true, None, true)),
            // Its instruction hits a watchpoint.
            (
                watching(1, step(&[0xa])),
                BS | 1,
                (true, Some(BS | 1), true),
            ),
            // Its instruction raises an exception.
            (watching(0, step(&[0xa])), 1, (false, Some(1), true)),
            (watching(1, step(&[0xa])), 2, (false, Some(2), true)),
            // A watchpoint elsewhere, a step being under way or not.
            (watching(1, step(&[0xa])), 1, (false, Some(1), false)),
            (watching(4, None), 0xa, (false, Some(0xa), false)),
            // Registers that aren't set don't count.
            (watching(1, None), 0xf, (false, Some(1), false)),
            // The guest's own.
            (watching(1, None), BS, (false, None, false)),
            (watching(1, None), 2, (false, None, false)),
            (watching(0, step(&[])), 1, (false, None, false)),
        ];
        for (debugging, dr6, (stepped, hardware, ends_step)) in cases {
            let rest = 0xffff_0ff0;
            let expected = Cause {
                stepped,
                hardware: hardware.map(|bits| bits | rest),
                ends_step,
            };
            assert_eq!(debugging.cause(dr6 | rest), expected, "{dr6:#x}");
        }
    }

    #[test]
    fn a_step_is_told_before_the_watchpoint_that_it_hit() {
        let cause = Cause {
            stepped: true,
            hardware: Some(1),
            ends_step: true,
        };
        let traps = [Some(Trap::Step), Some(Trap::Hardware { dr6: 1 })];
        assert_eq!(cause.traps(), traps);
    }
}
