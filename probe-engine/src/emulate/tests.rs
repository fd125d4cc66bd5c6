//! What the comparison with a real CPU in user mode can't show: privileged
//! flags, segments, page borders, permissions.

use guest_state::testing::{TestMemory, TestVcpu};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

use super::{Outcome, once};

const USER: u64 = 4;
const WRITABLE: u64 = 2;
/// Present, accessed, dirty.
const PAGE: u64 = 0x61;

/// Four-level tables at 0x1000; the lowest one, at 0x4000, maps address 0 up by
/// these entries.
fn guest(entries: &[u64]) -> (TestMemory, TestVcpu) {
    let memory = TestMemory::new(0x2_0000);
    let put = |at: u64, value: u64| {
        memory
            .write(GuestPhysAddr(at), &value.to_le_bytes())
            .unwrap();
    };
    for (table, next) in [(0x1000, 0x2000), (0x2000, 0x3000), (0x3000, 0x4000)] {
        put(table, next | PAGE | USER | WRITABLE);
    }
    for (index, entry) in (0..).zip(entries) {
        put(0x4000 + 8 * index, *entry);
    }
    let mut vcpu = TestVcpu::default();
    vcpu.control.cr0 = 1 << 31 | 1 << 16;
    vcpu.control.cr3 = 0x1000;
    vcpu.control.efer = 1 << 10;
    (memory, vcpu)
}

fn word(memory: &TestMemory, at: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.read(GuestPhysAddr(at), &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn fault(address: u64, error_code: u32) -> Outcome {
    Outcome::Fault {
        address: GuestVirtAddr(address),
        error_code,
    }
}

/// `mov %rax,(%rbx)` and `mov (%rbx),%rax`
const STORE: &[u8] = &[0x48, 0x89, 0x03];
const LOAD: &[u8] = &[0x48, 0x8b, 0x03];
/// `add %rax,(%rbx)`
const ADD: &[u8] = &[0x48, 0x01, 0x03];

#[test]
fn permissions_are_those_of_the_page_tables_and_control_registers() {
    const WP: u64 = 1 << 16;
    const SMAP: u64 = 1 << 21;
    const PKE: u64 = 1 << 22;
    const AC: u64 = 1 << 18;
    let page = 0x8000 | PAGE;
    /// Code, page table entry, CR0, CR4, RFLAGS, outcome.
    type Case = (&'static [u8], u64, u64, u64, u64, Outcome);
    let table: &[Case] = &[
        (LOAD, page, WP, 0, 0, Outcome::Done),
        (STORE, page | WRITABLE, WP, 0, 0, Outcome::Done),
        (STORE, page, WP, 0, 0, fault(0x10, 0b11)),
        (STORE, page, 0, 0, 0, Outcome::Done),
        (ADD, page, WP, 0, 0, fault(0x10, 0b11)),
        (ADD, 0, WP, 0, 0, fault(0x10, 0b10)),
        (LOAD, 0, WP, 0, 0, fault(0x10, 0b00)),
        (LOAD, page | USER, WP, 0, 0, Outcome::Done),
        (LOAD, page | USER, WP, SMAP, 0, fault(0x10, 0b01)),
        (LOAD, page | USER, WP, SMAP, AC, Outcome::Done),
        (
            STORE,
            page | USER | WRITABLE,
            WP,
            SMAP,
            0,
            fault(0x10, 0b11),
        ),
        (LOAD, page | USER, WP, PKE, 0, Outcome::Step),
        (LOAD, page | 1 << 63, WP, 0, 0, fault(0x10, 0b1001)),
        // not yet accessed or dirty: the CPU has to note it
        (LOAD, page & !0x20, WP, 0, 0, Outcome::Step),
        (LOAD, page & !0x40, WP, 0, 0, Outcome::Done),
        (STORE, page & !0x40 | WRITABLE, WP, 0, 0, Outcome::Step),
        // no RAM
        (LOAD, 0x8000_0000 | PAGE, WP, 0, 0, Outcome::Step),
        (
            STORE,
            0x8000_0000 | PAGE | WRITABLE,
            WP,
            0,
            0,
            Outcome::Step,
        ),
    ];
    for (i, &(code, entry, cr0, cr4, rflags, outcome)) in table.iter().enumerate() {
        let (memory, mut vcpu) = guest(&[entry]);
        vcpu.control.cr0 = 1 << 31 | cr0;
        vcpu.control.cr4 = cr4;
        vcpu.registers.rflags |= rflags;
        (vcpu.registers.rbx, vcpu.registers.rax) = (0x10, 7);
        let before = vcpu.registers;
        assert_eq!(once(code, &memory, &mut vcpu), Some(outcome), "case {i}");
        if outcome != Outcome::Done {
            assert_eq!(vcpu.registers, before, "case {i}");
        }
    }
}

#[test]
fn an_access_across_pages_writes_both_or_none() {
    let (low, high) = (0x9000 | PAGE | WRITABLE, 0x8000 | PAGE | WRITABLE);
    for (second, outcome) in [
        (high, Outcome::Done),
        (0, fault(0x1000, 0b10)),
        (high & !WRITABLE, fault(0x1000, 0b11)),
        (0x8000_0000 | PAGE | WRITABLE, Outcome::Step),
    ] {
        let (memory, mut vcpu) = guest(&[low, second]);
        (vcpu.registers.rbx, vcpu.registers.rax) = (0xffd, 0x1122_3344_5566_7788);
        assert_eq!(once(STORE, &memory, &mut vcpu), Some(outcome));
        let written = (word(&memory, 0x9ff8) >> 40, word(&memory, 0x8000));
        let done = outcome == Outcome::Done;
        assert_eq!(
            written,
            if done {
                (0x66_7788, 0x11_2233_4455)
            } else {
                (0, 0)
            }
        );
    }
}

#[test]
fn segment_bases_are_added() {
    for (prefix, value) in [(0x64, 0xf5), (0x65, 0x65)] {
        let (memory, mut vcpu) = guest(&[0x8000 | PAGE | WRITABLE]);
        (vcpu.control.fs_base, vcpu.control.gs_base) = (0x100, 0x200);
        memory.write(GuestPhysAddr(0x8110), &[0xf5]).unwrap();
        memory.write(GuestPhysAddr(0x8210), &[0x65]).unwrap();
        vcpu.registers.rbx = 0x10;
        let code = [[prefix].as_slice(), LOAD].concat();
        assert_eq!(once(&code, &memory, &mut vcpu), Some(Outcome::Done));
        assert_eq!(vcpu.registers.rax, value);
    }
}

#[test]
fn popf_at_level_0_changes_what_it_may() {
    // All bits set: VM, VIF, VIP and reserved bits stay, RF is cleared.
    for (before, popped, after) in [
        (2, u64::MAX, 0x24_7fd7),
        (0x1a_0002, 0, 0x1a_0002),
        (0x1_0202, 0x202, 0x202),
        (0x202, 2, 2),
    ] {
        let (memory, mut vcpu) = guest(&[0x8000 | PAGE | WRITABLE]);
        memory
            .write(GuestPhysAddr(0x8010), &u64::to_le_bytes(popped))
            .unwrap();
        (vcpu.registers.rsp, vcpu.registers.rflags) = (0x10, before);
        assert_eq!(once(&[0x9d], &memory, &mut vcpu), Some(Outcome::Done));
        assert_eq!(vcpu.registers.rflags, after, "{before:#x} {popped:#x}");
        assert!(!vcpu.interrupt_shadow);
    }
}

#[test]
fn pushf_hides_rf_and_vm() {
    let (memory, mut vcpu) = guest(&[0x8000 | PAGE | WRITABLE]);
    (vcpu.registers.rsp, vcpu.registers.rflags) = (0x18, 0x3_0246);
    assert_eq!(once(&[0x9c], &memory, &mut vcpu), Some(Outcome::Done));
    assert_eq!(word(&memory, 0x8010), 0x246);
}

#[test]
fn single_flags_are_set_and_cleared() {
    for (code, before, after) in [
        (&[0xfa][..], 0x202, 2),
        (&[0xfb], 2, 0x202),
        (&[0x0f, 0x01, 0xca], 0x4_0002, 2),
        (&[0x0f, 0x01, 0xcb], 2, 0x4_0002),
        // RF ends with the instruction.
        (&[0x90], 0x1_0002, 2),
    ] {
        let (memory, mut vcpu) = guest(&[]);
        vcpu.registers.rflags = before;
        assert_eq!(once(code, &memory, &mut vcpu), Some(Outcome::Done));
        assert_eq!(vcpu.registers.rflags, after, "{code:x?}");
    }
}

#[test]
fn a_branch_out_of_the_canonical_addresses_is_left_to_the_cpu() {
    // jmp *%rax, call *%rax, ret
    for code in [&[0xff, 0xe0][..], &[0xff, 0xd0], &[0xc3]] {
        let (memory, mut vcpu) = guest(&[0x8000 | PAGE | WRITABLE]);
        memory
            .write(GuestPhysAddr(0x8010), &(1_u64 << 47).to_le_bytes())
            .unwrap();
        (vcpu.registers.rsp, vcpu.registers.rax) = (0x10, 1 << 47);
        let before = vcpu.registers;
        assert_eq!(once(code, &memory, &mut vcpu), Some(Outcome::Step));
        assert_eq!(vcpu.registers, before);
    }
}

#[test]
fn forms_that_differ_between_cpus_or_lock_the_bus_are_not_emulated() {
    for code in [
        // lock add %eax,(%rbx); xchg %eax,(%rbx); push %ax; 66 jmp; movsxd (%rbx),%ax;
        // pause with REX.B; repne loope, also behind a REX that doesn't
        // count; cpuid; mov %cr3,%rax
        &[0xf0, 0x01, 0x03][..],
        &[0x87, 0x03],
        &[0x66, 0x50],
        &[0x66, 0xe9, 0, 0, 0, 0],
        &[0x66, 0x63, 0x03],
        &[0xf3, 0x41, 0x90],
        &[0xf2, 0xe1, 0],
        &[0x45, 0xf2, 0xe1, 0],
        &[0x0f, 0xa2],
        &[0x0f, 0x20, 0xd8],
        // mov (%ebx),%eax; jecxz; rep movsb; mov %ds,%eax; pop %fs
        &[0x67, 0x8b, 0x03],
        &[0x67, 0xe3, 0],
        &[0xf3, 0xa4],
        &[0x8c, 0xd8],
        &[0x0f, 0xa1],
    ] {
        let (memory, mut vcpu) = guest(&[]);
        assert_eq!(once(code, &memory, &mut vcpu), None, "{code:x?}");
    }
}

#[test]
fn a_store_to_memory_that_is_only_the_hosts_to_write_is_left_to_the_cpu() {
    // The guest's own tables let it.
    let (memory, mut vcpu) = guest(&[0x8000 | PAGE | WRITABLE, 0x9000 | PAGE | WRITABLE]);
    memory.protect(0x9000..0xa000);
    vcpu.registers.rax = u64::MAX;
    for (insn, at) in [(STORE, 0x1000), (STORE, 0xffc), (ADD, 0x1ff8)] {
        vcpu.registers.rbx = at;
        let before = vcpu.registers;
        let outcome = once(insn, &memory, &mut vcpu);
        assert_eq!(outcome, Some(Outcome::Step), "{at:#x}");
        assert_eq!(vcpu.registers, before);
    }
    assert_eq!([0x8ff8, 0x9000, 0x9ff8].map(|at| word(&memory, at)), [0; 3]);
}
