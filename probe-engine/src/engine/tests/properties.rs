use guest_state::x86_64::flags::RF;
use guest_state::{Action, Registers, StepEnd};
use proptest::prelude::*;

use super::fixture::{ALONE, Fixture, vcpu_at};

proptest! {
    /// Whatever a function's bytes are, registering, hitting, stepping and removing doesn't panic,
    /// and leaves the bytes as they were.
    #[test]
    fn any_text_is_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0x40),
        offset in 0_u64..0x40,
        registers in any::<[u64; 4]>(),
        rflags in any::<u64>(),
    ) {
        let f = Fixture::new();
        f.set_bytes(0, &bytes);
        let Ok(probes) = f.register(&[&format!("plain+{offset:#x}")]) else { return Ok(()) };
        let at = probes[0].offset;
        let mut vcpu = vcpu_at(at);
        let r = &mut vcpu.registers;
        [r.rax, r.rcx, r.rsp, r.rbx] = registers.map(|value| value & 0xfff | value & value << 52);
        r.rflags = rflags;
        // RF isn't part of the guest's own state.
        let before = Registers { rflags: rflags & !RF, ..*r };
        let action = f.trap(&mut vcpu);
        prop_assert!(action != Action::Reinject);
        if matches!(action, ALONE | Action::PageFault { .. }) {
            prop_assert_eq!(vcpu.registers, before);
        }
        if action == ALONE && f.engine.lift_for_step(&*f.memory, &mut vcpu) {
            f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
        }
        prop_assert_eq!(f.events().len(), 1);
        f.engine.unregister(&f.guest(), &[probes[0].id]).unwrap();
        prop_assert_eq!(f.byte(at), bytes[at as usize]);
    }
}
