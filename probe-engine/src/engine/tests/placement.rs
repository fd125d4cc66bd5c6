use guest_kernel::Int3s;
use guest_kernel::blacklist::Reason;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

use super::fixture::{Fixture, PHYS, TEXT, blacklist};
use crate::error::RegisterError;
use crate::probe::{ProbeId, ProbeState};

#[test]
fn a_function_is_probed_after_its_entry() {
    for (place, offset, instruction) in [
        ("plain", 9, "push %rbp"),
        ("traced", 5, "push %rbx"),
        ("__fentry__", 0, "ret"),
        ("plain+0xa", 0xa, "mov %rsp,%rbp"),
        ("plain+0x10", 0x10, "nop"),
    ] {
        let probe = Fixture::new().probe(place);
        assert_eq!(
            (probe.offset, probe.instruction.as_str()),
            (offset, instruction),
            "{place}"
        );
        let symbol = place.split('+').next().unwrap();
        assert_eq!(
            (probe.name, probe.symbol),
            (format!("{symbol}+{offset:#x}"), symbol.into())
        );
        assert_eq!(probe.state, ProbeState::Armed);
    }
}

#[test]
fn a_probe_by_address_is_named_by_it_and_knows_its_function() {
    let probe = Fixture::new().probe("0xffffffff81000045");
    assert_eq!(probe.name, "0xffffffff81000045");
    assert_eq!((probe.symbol.as_str(), probe.offset), ("traced", 5));
}

#[test]
fn a_breakpoint_is_written_and_the_original_byte_comes_back() {
    let f = Fixture::new();
    assert!(!f.engine.debugging().breakpoints);
    let id = f.probe("plain").id;
    assert_eq!(f.byte(9), 0xcc);
    assert!(f.engine.debugging().breakpoints);
    f.engine.unregister(&f.guest(), &[id]).unwrap();
    assert_eq!(f.byte(9), 0x55);
    assert!(!f.engine.debugging().breakpoints);
    assert!(f.engine.list().is_empty());
}

#[test]
fn instructions_behind_another_probe_are_decoded_from_the_original_text() {
    let f = Fixture::new();
    f.probe("plain+0xa");
    assert_eq!(f.probe("plain+0xd").instruction, "pop %rbp");
    assert_eq!(f.probe("again=plain+0xa").instruction, "mov %rsp,%rbp");
}

#[test]
fn removing_one_of_two_probes_at_an_address_leaves_the_other() {
    let f = Fixture::new();
    let (one, two) = (f.probe("plain").id, f.probe("other=plain").id);
    f.engine.unregister(&f.guest(), &[one]).unwrap();
    assert_eq!(f.byte(9), 0xcc);
    f.engine.unregister(&f.guest(), &[two]).unwrap();
    assert_eq!(f.byte(9), 0x55);
}

#[test]
fn text_that_the_guest_has_overwritten_is_left_to_it() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    f.set_bytes(9, &[0x90]);
    f.engine.unregister(&f.guest(), &[id]).unwrap();
    assert_eq!(f.byte(9), 0x90);
}

#[test]
fn a_batch_with_a_bad_probe_leaves_nothing_behind() {
    let f = Fixture::new();
    f.register(&["plain", "traced", "plain+0xb"]).unwrap_err();
    assert_eq!((f.byte(9), f.byte(0x45)), (0x55, 0x53));
    assert!(f.engine.list().is_empty());
    assert_eq!(f.register(&[]).unwrap(), []);
}

#[test]
fn removing_a_batch_with_an_unknown_number_removes_nothing() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    let error = f
        .engine
        .unregister(&f.guest(), &[id, ProbeId(77)])
        .unwrap_err();
    assert!(error.to_string().contains("77"), "{error}");
    assert_eq!(f.byte(9), 0xcc);
    assert_eq!(f.engine.unregister(&f.guest(), &[id, id]).unwrap().len(), 1);
}

#[test]
fn numbers_are_never_used_again() {
    let f = Fixture::new();
    let first = f.probe("plain").id;
    f.engine.unregister(&f.guest(), &[first]).unwrap();
    assert!(f.probe("plain").id > first);
}

#[test]
fn a_name_finds_its_probe() {
    let f = Fixture::new();
    let probe = f.probe("here=plain");
    assert_eq!(f.engine.named("here"), [probe.id]);
    assert_eq!(f.engine.named("plain"), []);
    assert_eq!(probe.address.0, TEXT + 9);
}

#[test]
fn probes_of_one_name_are_of_one_kind_and_each_at_its_own_place() {
    let f = Fixture::with_arena();
    let batch = f.register(&["event=plain", "event=traced"]).unwrap();
    let third = f.probe("event=plain+0xa");
    let ids = [batch[0].id, batch[1].id, third.id];
    assert_eq!(f.engine.named("event"), ids);
    for (place, wanted) in [
        ("event=plain", "AlreadyExists"),
        ("event=plain+0x9", "AlreadyExists"),
        ("event=copied%return", "OtherKind"),
    ] {
        let refused = format!("{:?}", f.refusal(place));
        assert!(refused.starts_with(wanted), "{place}: {refused}");
    }
    let twice = f.register(&["two=plain", "two=plain+0x9"]).unwrap_err();
    assert!(
        matches!(twice, RegisterError::DuplicateName { .. }),
        "{twice:?}"
    );
    // A name that is made from the place can be only one probe's.
    f.probe("plain");
    for place in ["plain", "plain+0x9"] {
        let refused = f.refusal(place);
        assert!(
            matches!(refused, RegisterError::AlreadyExists { .. }),
            "{place}: {refused:?}"
        );
    }
    f.engine.unregister(&f.guest(), &ids[..1]).unwrap();
    assert_eq!(f.engine.named("event"), ids[1..]);
    f.engine.unregister(&f.guest(), &ids[1..]).unwrap();
    assert_eq!(f.engine.named("event"), []);
    f.probe("event=copied%return");
}

#[test]
fn an_entry_whose_endbr64_the_kernel_has_replaced_is_still_skipped_whole() {
    let f = Fixture::with_arena_and(|kernel| {
        kernel.blacklist = blacklist(&[(0, 4, Reason::EndbrSeal)]);
    });
    // nopw (%rax), of the same length (arch/x86/include/asm/ibt.h, gen_endbr_poison).
    let nop = b"\x66\x0f\x1f\x00";
    f.memory.write(GuestPhysAddr(PHYS), nop).unwrap();
    assert_eq!(f.probe("plain").offset, 9);
    assert!(f.refusal("plain+0x4").to_string().contains("ftrace site"));
}

#[test]
fn an_int3_that_a_call_leads_over_is_the_kernel_s_own_and_hides_nothing() {
    let f = Fixture::new();
    // call 1f; int3; 1: mov %rdi,(%rsp); ret (`return_to_handler`, arch/x86/kernel/ftrace_64.S)
    f.set_bytes(0x10, b"\xe8\x01\0\0\0\xcc\x48\x89\x3c\x24\xc3");
    assert_eq!(f.probe("plain+0x16").instruction, "mov %rdi,(%rsp)");
    assert_eq!(f.probe("plain+0x1a").instruction, "ret");
    // An int3 behind a call that leads elsewhere may hide an instruction.
    let f = Fixture::new();
    f.set_bytes(0x10, b"\xe8\x02\0\0\0\xcc\x48\x89\x3c\x24\xc3");
    let refusal = f.refusal("plain+0x1a").to_string();
    assert!(refusal.contains("a breakpoint of its own"), "{refusal}");
}

#[test]
fn an_int3_of_the_image_s_text_hides_nothing() {
    let own = GuestVirtAddr(TEXT + 0x10);
    let f = Fixture::with_arena_and(|kernel| kernel.int3s = Int3s::one(own));
    // int3; mov %rdi,(%rsp); ret (`native_machine_emergency_restart`, arch/x86/kernel/reboot.c)
    f.set_bytes(0x10, b"\xcc\x48\x89\x3c\x24\xc3");
    assert_eq!(f.probe("plain+0x11").instruction, "mov %rdi,(%rsp)");
    assert!(f.refusal("plain+0x10").to_string().contains("int3"));
    // An int3 that was set behind it does hide one.
    let f = Fixture::with_arena_and(|kernel| kernel.int3s = Int3s::one(own));
    f.set_bytes(0x10, b"\xcc\xcc\x89\x3c\x24\xc3");
    let refusal = f.refusal("plain+0x15").to_string();
    assert!(
        refusal.contains("breakpoint of its own at 0xffffffff81000011"),
        "{refusal}"
    );
}

#[test]
fn a_byte_of_a_patched_instruction_is_no_int3_of_the_image_s() {
    let f = Fixture::with_arena_and(|kernel| {
        kernel.blacklist = blacklist(&[(0x10, 5, Reason::ReturnThunk)]);
        // The int3 byte is in the displacement.
        kernel.int3s = Int3s::one(GuestVirtAddr(TEXT + 0x12));
    });
    // jmp __x86_return_thunk becomes ret; int3; int3; int3; int3 (`patch_return`, arch/x86/kernel/alternative.c).
    f.set_bytes(0x10, b"\xc3\xcc\xcc\xcc\xcc\x48\x89\x3c\x24\xc3");
    assert_eq!(f.probe("plain+0x15").instruction, "mov %rdi,(%rsp)");
}
