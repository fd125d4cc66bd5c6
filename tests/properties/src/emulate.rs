//! Emulating any instruction in any state.

use guest_state::testing::{TestMemory, TestVcpu};
use guest_state::{ControlRegisters, GuestMemory, GuestPhysAddr, Registers};
use probe_engine::emulate::{Outcome, once};

use crate::input::Input;

/// Page tables, one a level, from here on; then the pages that they map from address 0 on.
const TABLES: u64 = 0x1000;
const PAGES: u64 = 0x5000;
const COUNT: usize = 4;
const PAGE: u64 = 4096;
const LEN: usize = PAGES as usize + COUNT * PAGE as usize;
/// Present, writable, user, accessed, dirty.
const ENTRY: u64 = 0x67;
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;

const CR0_PAGING: u64 = 1 << 31;
const CR0_WP: u64 = 1 << 16;
const CR4_SMAP: u64 = 1 << 21;
const EFER_LONG: u64 = 1 << 10;

/// Checks that any instruction in any state is done wholly or not at all, and that at most eight
/// bytes are written, in pages that may be written.
///
/// The bytes: code (15), control, flags, one byte for each page, registers.
///
/// # Panics
/// If that doesn't hold.
pub fn emulate(bytes: &[u8]) {
    let mut input = Input(bytes);
    let code: [u8; 15] = input.array();
    let control = input.byte();
    let rflags = u64::from(input.short()) << 8 | u64::from(input.byte());
    let memory = TestMemory::new(LEN);
    let put = |at: u64, value: u64| {
        memory
            .write(GuestPhysAddr(at), &value.to_le_bytes())
            .unwrap();
    };
    for level in 0..3 {
        put(TABLES + level * PAGE, (TABLES + (level + 1) * PAGE) | ENTRY);
    }
    let mut writable = [false; COUNT];
    for (index, writable) in (0..).zip(&mut writable) {
        // Each set bit clears one.
        let entry = ENTRY & !u64::from(input.byte());
        put(
            TABLES + 3 * PAGE + 8 * index,
            (PAGES + index * PAGE) | entry,
        );
        *writable = entry & (PRESENT | WRITABLE) == PRESENT | WRITABLE;
    }
    let mut vcpu = TestVcpu {
        control: ControlRegisters {
            cr0: CR0_PAGING | if control & 1 == 0 { CR0_WP } else { 0 },
            cr3: TABLES,
            cr4: if control & 2 == 0 { 0 } else { CR4_SMAP },
            efer: EFER_LONG,
            gs_base: u64::from(control >> 4) * 0x300,
            code64: true,
            ..ControlRegisters::default()
        },
        ..TestVcpu::default()
    };
    vcpu.registers = registers(&mut input, rflags);
    if control & 1 != 0 {
        writable = [true; COUNT];
    }
    let before = (vcpu.registers, read(&memory));
    let Some(outcome) = once(&code, &memory, &mut vcpu) else {
        assert_eq!(vcpu.registers, before.0, "not emulated, but changed");
        return;
    };
    let after = read(&memory);
    match outcome {
        Outcome::Done | Outcome::Halted => {
            let changed: Vec<usize> = (0..LEN).filter(|at| before.1[*at] != after[*at]).collect();
            assert!(changed.len() <= 8, "{changed:x?} written");
            for at in changed {
                let page = at.checked_sub(PAGES as usize).map(|at| at / PAGE as usize);
                assert!(
                    page.is_some_and(|page| writable[page]),
                    "{at:#x} is not to be written"
                );
            }
        }
        Outcome::Fault { .. } | Outcome::Step => {
            assert_eq!(vcpu.registers, before.0, "{outcome:?}, but changed");
            assert!(after == before.1, "{outcome:?}, but memory changed");
            assert!(!vcpu.interrupt_shadow, "{outcome:?}, but a shadow");
        }
    }
}

/// Registers that often point into the pages.
fn registers(input: &mut Input<'_>, rflags: u64) -> Registers {
    let mut next = || {
        let value = input.word();
        // Two bits decide whether the value is near the pages or any value.
        if value >> 62 == 0 {
            value % (5 * PAGE)
        } else {
            value
        }
    };
    Registers {
        rax: next(),
        rbx: next(),
        rcx: next(),
        rdx: next(),
        rsi: next(),
        rdi: next(),
        rsp: next(),
        rbp: next(),
        r8: next(),
        r9: next(),
        r10: next(),
        r11: next(),
        r12: next(),
        r13: next(),
        r14: next(),
        r15: next(),
        rip: next(),
        rflags: rflags | 2,
    }
}

fn read(memory: &TestMemory) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    memory.read(GuestPhysAddr(0), &mut bytes).unwrap();
    bytes
}
