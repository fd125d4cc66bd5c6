//! Probes on instructions of the kernel that load the CPU's system registers, or access a device. A guest notes what
//! each leaves, and the same with probes as without.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, al, ax, cr4, cr8, dr0, dr7, dx, eax, ecx, edx, es, ptr, r13, r13d, rax, rcx,
    rdi, word_ptr,
};

use super::image::{DATA, Names};
use super::privileged::{Case, Hex, REACHED, finish, note, note_flags, reached};
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check_eq, pass_with};

pub const LOADS: Test = Test {
    name: "tiny_probed_loads_of_system_registers_and_port_accesses_leave_what_they_leave_unprobed",
    ids: &["KP03", "KP10", "KP11"],
    needs: Needs::Tiny,
    run: loads,
};

/// Scratch memory of the guest.
const SCRATCH: u64 = DATA + 0x6000;
/// TSD of CR4: it concerns user mode only (SDM vol. 3, 2.5).
const TIME_STAMP_DISABLE: i32 = 1 << 2;
/// DR7 with nothing enabled: bit 10 is always set (SDM vol. 3, 17.2.4).
const NOTHING_ENABLED: u64 = 1 << 10;
/// The first serial port's line status and scratch registers (16550).
const LINE_STATUS: u32 = 0x3fd;
const LINE_SCRATCH: u32 = 0x3ff;
/// The transmitter is idle (16550's line status).
const IDLE: u64 = 0x60;

const PROBES: &[&str] = &[
    "write_cr4 post",
    "write_cr8 post",
    "read_cr8 post",
    "write_dr0 post",
    "read_dr0 post",
    "write_dr7 post",
    "load_idt post",
    "load_gdt post",
    "load_ldt post",
    "store_ldt post",
    "store_task post",
    "store_machine_status post",
    "load_machine_status post",
    "load_segment post",
    "write_port post",
    "read_port post",
    "read_status post",
];
const NOTED: usize = 17;

fn loads(cx: &Context) -> TestResult {
    let case = Case::new(PROBES, NOTED, |a, names| {
        control(a, names)?;
        debug(a, names)?;
        a.mov(rdi, SCRATCH)?;
        a.sidt(ptr(rdi))?;
        // A table with one gate less.
        a.sub(word_ptr(rdi), 16)?;
        names.here(a, "load_idt")?;
        a.lidt(ptr(rdi))?;
        a.sidt(ptr(rdi + 0x10))?;
        a.sgdt(ptr(rdi + 0x20))?;
        names.here(a, "load_gdt")?;
        a.lgdt(ptr(rdi + 0x20))?;
        a.sgdt(ptr(rdi + 0x30))?;
        for offset in [0x10, 0x18, 0x30, 0x38] {
            a.mov(r13, ptr(rdi + offset))?;
            note(a, r13)?;
        }
        selectors(a, names)?;
        ports(a, names)?;
        note_flags(a)?;
        reached(a, 1)?;
        finish(a, NOTED)
    })?
    .by_any_way();
    cx.block_on(async {
        let without = case.run(cx, &[]).await?;
        let seen = &without.notes;
        let changed = seen[0] ^ seen[1];
        check_eq!(
            changed,
            TIME_STAMP_DISABLE as u64,
            "what the write changed in CR4"
        );
        let stored = [seen[2], seen[3], seen[4]];
        let expected = [5, 0x1234_5678_9abc, NOTHING_ENABLED];
        check_eq!(
            Hex(&stored),
            Hex(&expected),
            "CR8, DR0 and DR7 without probes"
        );
        let port = [seen[13], seen[14]];
        check_eq!(Hex(&port), Hex(&[0xa5, IDLE]), "ports without probes");
        check_eq!(seen[NOTED - 1], REACHED + 1, "the last note without probes");

        let with = case.run(cx, PROBES).await?;
        check_eq!(Hex(&with.notes), Hex(seen), "under probes");
        // The event already has what each instruction leaves.
        let shown = [
            ("read_cr8", 2),
            ("read_dr0", 3),
            ("store_ldt", 9),
            ("store_task", 10),
            ("store_machine_status", 11),
        ];
        for (symbol, note) in shown {
            let left = with.posts.get(symbol).map(|registers| registers.r13);
            check_eq!(left, Some(seen[note]), "r13 behind {symbol}");
        }
        for (symbol, note) in [("read_port", 13), ("read_status", 14)] {
            let left = with.posts.get(symbol).map(|registers| registers.rax);
            check_eq!(left, Some(seen[note]), "rax behind {symbol}");
        }
        check_eq!(with.posts.len(), PROBES.len(), "post events");
        pass_with(format!("{} forms, each with a post event", PROBES.len()))
    })
}

/// Changes CR4, and the task priority by CR8.
fn control(a: &mut CodeAssembler, names: &mut Names) -> Result<(), IcedError> {
    a.mov(r13, cr4)?;
    note(a, r13)?;
    a.mov(rcx, r13)?;
    a.xor(ecx, TIME_STAMP_DISABLE)?;
    names.here(a, "write_cr4")?;
    a.mov(cr4, rcx)?;
    a.mov(rax, cr4)?;
    note(a, rax)?;
    a.mov(cr4, r13)?;
    a.mov(eax, 5)?;
    names.here(a, "write_cr8")?;
    a.mov(cr8, rax)?;
    names.here(a, "read_cr8")?;
    a.mov(r13, cr8)?;
    note(a, r13)?;
    a.xor(eax, eax)?;
    a.mov(cr8, rax)
}

/// Debug registers that watch nothing.
fn debug(a: &mut CodeAssembler, names: &mut Names) -> Result<(), IcedError> {
    a.mov(rax, 0x1234_5678_9abc_u64)?;
    names.here(a, "write_dr0")?;
    a.mov(dr0, rax)?;
    names.here(a, "read_dr0")?;
    a.mov(r13, dr0)?;
    note(a, r13)?;
    a.mov(rax, NOTHING_ENABLED)?;
    names.here(a, "write_dr7")?;
    a.mov(dr7, rax)?;
    a.mov(r13, dr7)?;
    note(a, r13)
}

/// The null selector where it may be, the task register, and the machine status word.
fn selectors(a: &mut CodeAssembler, names: &mut Names) -> Result<(), IcedError> {
    a.xor(eax, eax)?;
    names.here(a, "load_ldt")?;
    a.lldt(ax)?;
    a.mov(r13, 0x7777_u64)?;
    names.here(a, "store_ldt")?;
    a.sldt(r13d)?;
    note(a, r13)?;
    a.mov(r13, 0x7777_u64)?;
    names.here(a, "store_task")?;
    a.str(r13d)?;
    note(a, r13)?;
    names.here(a, "store_machine_status")?;
    a.smsw(r13)?;
    note(a, r13)?;
    a.mov(rax, r13)?;
    names.here(a, "load_machine_status")?;
    a.lmsw(ax)?;
    a.xor(eax, eax)?;
    names.here(a, "load_segment")?;
    a.mov(es, eax)?;
    a.mov(r13, 0x7777_u64)?;
    a.mov(r13d, es)?;
    note(a, r13)
}

/// Writes a register of the serial port, and reads it and another one back.
fn ports(a: &mut CodeAssembler, names: &mut Names) -> Result<(), IcedError> {
    a.mov(edx, LINE_SCRATCH)?;
    a.mov(eax, 0xa5)?;
    names.here(a, "write_port")?;
    a.out(dx, al)?;
    a.xor(eax, eax)?;
    names.here(a, "read_port")?;
    a.in_(al, dx)?;
    note(a, rax)?;
    a.mov(edx, LINE_STATUS)?;
    a.xor(eax, eax)?;
    names.here(a, "read_status")?;
    a.in_(al, dx)?;
    note(a, rax)
}
