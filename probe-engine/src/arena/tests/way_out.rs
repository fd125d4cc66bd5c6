use super::detours::{ANY, guest_with_detours};
use super::*;
use crate::detour::{Detour, Full, Pattern, Trampoline};

/// What a detour of these tests does before the guest's instruction, and a routine of its.
const DETOUR: [u8; 24] = [
    0x9c, // 0: pushfq
    0x50, // 1: push rax
    0x48, 0x8d, 0x64, 0x24, 0xf0, // 2: lea rsp, [rsp - 16]
    0xe8, 0x09, 0x00, 0x00, 0x00, // 7: call 21
    0x48, 0x8d, 0x64, 0x24, 0x10, // 12: lea rsp, [rsp + 16]
    0x58, // 17: pop rax
    0x9d, // 18: popfq
    0x90, // 19: the guest's
    0xcc, // 20: never come to
    0x51, // 21: push rcx
    0x59, // 22: pop rcx
    0xc3, // 23: ret
];
/// How deep the stack is at each instruction up to the guest's.
const DEPTHS: [(u64, u64); 7] = [
    (0, 0),
    (1, 8),
    (2, 16),
    (7, 32),
    (12, 32),
    (17, 16),
    (18, 8),
];
/// Code that calls return to: first a call of what follows the int3.
const SHARED: [u8; 10] = [
    0xe8, 0x01, 0x00, 0x00, 0x00, // 0: call 6
    0xcc, // 5
    0x50, // 6: push rax
    0x58, // 7: pop rax
    0x90, // 8
    0xc3, // 9: ret
];
const SP: u64 = 0xffff_c900_0001_0000;

/// The way out, with these words on the stack.
fn way_out(arena: &Arena, at: GuestVirtAddr, sp: u64, words: &[(u64, u64)]) -> Option<(u64, u64)> {
    let mut read = |at: GuestVirtAddr| Some(words.iter().find(|(slot, _)| *slot == at.0)?.1);
    let found = arena.way_out(at, GuestVirtAddr(sp), &mut read);
    found.map(|(at, sp)| (at.0, sp.0))
}

#[test]
fn code_of_a_detour_leads_to_the_probed_instruction() {
    let (guest, mut arena) = guest_with_detours();
    let build = |_, at| {
        Ok::<_, Infallible>(Detour {
            at,
            code: DETOUR.to_vec(),
            copies: vec![(0, 19)],
            behind: (1, 20),
            full: None,
        })
    };
    let at = GuestVirtAddr(IMAGE + 16);
    let placed = arena.detour(&guest.memory, at, Pattern::default(), ANY, build);
    let start = placed.unwrap().target;
    for (offset, depth) in DEPTHS {
        let found = way_out(&arena, start.wrapping_add(offset), SP - depth, &[]);
        assert_eq!(found, Some((IMAGE + 16, SP)), "{offset}");
    }
    // The routine's return address is on the stack.
    let called = (SP - 40, start.0 + 12);
    for (offset, depth) in [(21, 40), (22, 48), (23, 40)] {
        let at = start.wrapping_add(offset);
        assert_eq!(
            way_out(&arena, at, SP - depth, &[called]),
            Some((IMAGE + 16, SP))
        );
        assert_eq!(way_out(&arena, at, SP - depth, &[]), None);
    }
    // The guest's own instruction, what isn't executed, and what isn't in a detour.
    for offset in [19, 20, 24, 1 << 20] {
        assert_eq!(
            way_out(&arena, start.wrapping_add(offset), SP, &[]),
            None,
            "{offset}"
        );
    }
}

#[test]
fn code_that_calls_return_to_leads_to_their_return_addresses() {
    let (guest, mut arena) = guest_with_detours();
    let trampoline = Trampoline {
        code: SHARED.to_vec(),
        full: Full {
            trap: 0,
            gives_up: 0,
        },
        told: [0; 4],
        depth: 0,
    };
    assert_eq!(
        way_out(&arena, TRAMPOLINE.wrapping_add(6), SP, &[(SP, 1)]),
        None
    );
    assert!(arena.write_trampoline(&guest.memory, &trampoline).unwrap());
    let at = |offset| TRAMPOLINE.wrapping_add(offset);
    let breakpoints = arena.trampoline().0;
    for (caller, expected) in [
        (IMAGE + 99, IMAGE + 99),
        // The return address has not been put there yet.
        (at(5).0, TRAMPOLINE.0),
        // A call that began before at the same place, and one of a breakpoint's.
        (at(0).0, TRAMPOLINE.0),
        (breakpoints, breakpoints),
    ] {
        for (offset, depth) in [(6, 0), (7, 8), (8, 0), (9, 0)] {
            let found = way_out(&arena, at(offset), SP - depth, &[(SP, caller)]);
            assert_eq!(found, Some((expected, SP + 8)), "{offset}");
        }
    }
    // The stack doesn't tell of the call before the code's first instruction.
    assert_eq!(way_out(&arena, at(0), SP, &[(SP, IMAGE)]), None);
}
