//! Probes on instructions of the kernel that the CPU has to execute itself: privileged ones, those
//! that trap behind a `popfq`, and repeated ones under a timer's interrupts. Each guest notes what
//! it sees, and sees the same with probes as without.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, cr0, cr2, cr3, cr4, dr6, dr7, eax, ecx, edx, ptr, qword_ptr, r12, r13, r14, rax,
    rbx, rcx, rdi, rdx, rsi, rsp,
};

use super::image::{DATA, Names};
use super::interrupts::{self, VECTOR};
use super::privileged::{Case, Hex, REACHED, finish, note, note_flags, reached};
use crate::context::{Context, Place};
use crate::test::{Needs, Outcome, Test, TestResult, check_eq, pass_with};

pub const PRIVILEGED: Test = Test {
    name: "tiny_probed_privileged_forms_leave_what_they_leave_unprobed",
    ids: &["KP03", "KP10", "KP11"],
    needs: Needs::Tiny,
    run: privileged,
};

pub const TRAP_FLAG: Test = Test {
    name: "tiny_a_probed_popfq_that_sets_tf_traps_behind_the_next_instruction",
    ids: &["KP11"],
    needs: Needs::Tiny,
    run: trap_flag,
};

pub const REPEATED: Test = Test {
    name: "tiny_probed_repeated_instructions_do_all_rounds_under_timer_interrupts",
    ids: &["KP10", "KP11"],
    // On a KVM that emulates the kernel it takes a minute.
    needs: Needs::Linux,
    run: repeated,
};

/// Scratch memory of the guest.
const SCRATCH: u64 = DATA + 0x4000;
/// `IA32_KERNEL_GS_BASE` (SDM vol. 4, table 2-2).
const KERNEL_GS_BASE: u32 = 0xc000_0102;
/// TF of RFLAGS.
const TF: i32 = 1 << 8;
/// Vector of the debug exception, and BS of DR6 (SDM vol. 3, 17.2.3).
const DEBUG: u64 = 1;
const SINGLE_STEP: i32 = 1 << 14;

/// Skips the test if a guest without probes sees something else on this KVM than on a processor.
fn odd(cx: &Context, notes: &[u64], expected: &[u64]) -> Option<TestResult> {
    let odd = notes != expected && cx.place == Place::Host;
    odd.then(|| {
        let seen = Hex(notes);
        Ok(Outcome::Skip(format!(
            "this KVM runs it wrongly unprobed: {seen:?}"
        )))
    })
}

fn privileged(cx: &Context) -> TestResult {
    const NOTED: usize = 18;
    const PROBES: &[&str] = &[
        "write_cr2 post",
        "read_cr2 post",
        "read_cr0 post",
        "write_cr0 post",
        "read_cr3 post",
        "write_cr3 post",
        "read_cr4 post",
        "write_msr post",
        "swap post",
        "read_msr post",
        "store_idt post",
        "store_gdt post",
        "flush post",
        "clear_ts post",
        "read_dr7 post",
        "push_flags post",
        "number post",
    ];
    let case = Case::new(PROBES, NOTED, |a, names| {
        a.mov(rax, 0x1234_5678_9abc_u64)?;
        names.here(a, "write_cr2")?;
        a.mov(cr2, rax)?;
        names.here(a, "read_cr2")?;
        a.mov(r13, cr2)?;
        note(a, r13)?;
        names.here(a, "read_cr0")?;
        a.mov(r13, cr0)?;
        note(a, r13)?;
        names.here(a, "write_cr0")?;
        a.mov(cr0, r13)?;
        names.here(a, "read_cr3")?;
        a.mov(r13, cr3)?;
        note(a, r13)?;
        names.here(a, "write_cr3")?;
        a.mov(cr3, r13)?;
        names.here(a, "read_cr4")?;
        a.mov(r13, cr4)?;
        note(a, r13)?;

        // Reads and writes the other GS base, and swaps it with this one in between.
        a.mov(ecx, KERNEL_GS_BASE)?;
        a.mov(eax, 0x1111_2222_u32)?;
        a.mov(edx, 0x3333_u32)?;
        names.here(a, "write_msr")?;
        a.wrmsr()?;
        names.here(a, "swap")?;
        a.swapgs()?;
        a.xor(eax, eax)?;
        a.xor(edx, edx)?;
        names.here(a, "read_msr")?;
        a.rdmsr()?;
        note(a, rax)?;
        note(a, rdx)?;
        note_flags(a)?;
        a.swapgs()?;
        a.rdmsr()?;
        note(a, rax)?;
        note(a, rdx)?;

        a.mov(rdi, SCRATCH)?;
        names.here(a, "store_idt")?;
        a.sidt(ptr(rdi))?;
        names.here(a, "store_gdt")?;
        a.sgdt(ptr(rdi + 16))?;
        for offset in [0, 8, 16, 24] {
            a.mov(r13, ptr(rdi + offset))?;
            note(a, r13)?;
        }
        names.here(a, "flush")?;
        a.invlpg(ptr(rdi))?;
        names.here(a, "clear_ts")?;
        a.clts()?;
        a.mov(r13, cr0)?;
        note(a, r13)?;
        names.here(a, "read_dr7")?;
        a.mov(r13, dr7)?;
        note(a, r13)?;
        a.stc()?;
        names.here(a, "push_flags")?;
        a.pushfq()?;
        a.pop(r13)?;
        note(a, r13)?;
        names.here(a, "number")?;
        a.lea(r13, ptr(rsp - 0x77))?;
        note(a, r13)?;
        note_flags(a)?;
        finish(a, NOTED)
    })?
    .by_any_way();
    cx.block_on(async {
        let without = case.run(cx, &[]).await?;
        let (cr2_seen, gs) = (without.notes[0], &without.notes[4..8]);
        let expected = [0x1234_5678_9abc, 0, 0];
        let seen = [cr2_seen, gs[0], gs[1]];
        if let Some(skip) = odd(cx, &seen, &expected) {
            return skip;
        }
        check_eq!(Hex(&seen), Hex(&expected), "without probes");
        let with = case.run(cx, PROBES).await?;
        check_eq!(Hex(&with.notes), Hex(&without.notes), "under probes");
        // The event already has what each instruction leaves.
        let left = |symbol| with.posts.get(symbol).map(|registers| registers.r13);
        let shown = [
            ("read_cr2", 0),
            ("read_cr0", 1),
            ("read_cr3", 2),
            ("read_cr4", 3),
            ("read_dr7", 14),
            ("number", 16),
        ];
        for (symbol, note) in shown {
            check_eq!(left(symbol), Some(with.notes[note]), "r13 behind {symbol}");
        }
        let msr = with.posts.get("read_msr").map(|it| [it.rax, it.rdx]);
        check_eq!(msr, Some([with.notes[4], with.notes[5]]), "behind read_msr");
        pass_with(format!("{} forms, each with a post event", PROBES.len()))
    })
}

fn trap_flag(cx: &Context) -> TestResult {
    const NOTED: usize = 5;
    const PROBES: &[&str] = &["pop_tf", "after_trap"];
    let case = Case::new(PROBES, NOTED, |a, names| {
        let mut handler = a.create_label();
        interrupts::gates(a, &[(DEBUG, handler)])?;
        a.pushfq()?;
        a.pop(rbx)?;
        a.or(rbx, TF)?;
        a.push(rbx)?;
        names.here(a, "pop_tf")?;
        a.popfq()?;
        a.nop()?;
        names.here(a, "behind")?;
        a.nop()?;
        names.here(a, "after_trap")?;
        a.nop()?;
        note_flags(a)?;
        reached(a, 1)?;
        finish(a, NOTED)?;

        // Notes where the exception came and why, and ends the stepping.
        a.set_label(&mut handler)?;
        a.mov(r14, ptr(rsp))?;
        note(a, r14)?;
        a.mov(r14, ptr(rsp + 16))?;
        a.and(r14, TF)?;
        note(a, r14)?;
        a.mov(r14, dr6)?;
        a.and(r14, SINGLE_STEP)?;
        note(a, r14)?;
        a.and(qword_ptr(rsp + 16), !TF)?;
        a.iretq()
    })?;
    cx.block_on(async {
        let without = case.run(cx, &[]).await?;
        let trap = [without.symbol("behind"), TF as u64, SINGLE_STEP as u64];
        let expected = [trap.as_slice(), &[without.notes[3], REACHED + 1]].concat();
        if let Some(skip) = odd(cx, &without.notes, &expected) {
            return skip;
        }
        check_eq!(Hex(&without.notes), Hex(&expected), "without probes");
        let with = case.run(cx, PROBES).await?;
        check_eq!(Hex(&with.notes), Hex(&expected), "under probes");
        pass_with("one trap, at the same place")
    })
}

/// Where the copying goes from and to, and where the handler counts.
const FROM: u64 = 16 << 20;
const TO: u64 = 32 << 20;
const TICKS: u64 = DATA + 0x5000;
/// A length that a copy of the instruction executes on its own, and one longer than the engine
/// expects.
const LENGTHS: [u64; 2] = [1 << 20, 6 << 20];

fn repeated(cx: &Context) -> TestResult {
    const NOTED: usize = 16;
    const PROBES: &[&str] = &[
        "fill_0",
        "copy_0",
        "compare_0",
        "fill_1",
        "copy_1",
        "compare_1",
    ];
    let case = Case::new(PROBES, NOTED, |a, names| {
        let mut handler = a.create_label();
        interrupts::gates(a, &[(VECTOR, handler)])?;
        interrupts::enable_apic(a)?;
        interrupts::start_ticks(a)?;
        a.sti()?;
        a.cld()?;
        let named = [
            ["fill_0", "copy_0", "compare_0"],
            ["fill_1", "copy_1", "compare_1"],
        ];
        for (names_of, len) in named.into_iter().zip(LENGTHS) {
            copied(a, names, names_of, len)?;
        }
        a.cli()?;
        // It isn't known which instructions the interrupts met, but there must have been some.
        let mut none = a.create_label();
        a.mov(rax, TICKS)?;
        a.cmp(qword_ptr(rax), 2)?;
        a.jb(none)?;
        reached(a, 1)?;
        reached(a, 2)?;
        finish(a, NOTED)?;
        a.set_label(&mut none)?;
        reached(a, 3)?;
        reached(a, 4)?;
        finish(a, NOTED)?;

        a.set_label(&mut handler)?;
        a.push(rax)?;
        a.mov(rax, TICKS)?;
        a.inc(qword_ptr(rax))?;
        a.pop(rax)?;
        interrupts::end_of_interrupt_anywhere(a)?;
        a.iretq()
    })?
    .by_any_way();
    cx.block_on(async {
        let without = case.run(cx, &[]).await?;
        let expected = [REACHED + 1, REACHED + 2];
        if let Some(skip) = odd(cx, &without.notes[NOTED - 2..], &expected) {
            return skip;
        }
        check_eq!(Hex(&without.notes[NOTED - 2..]), Hex(&expected), "ticks");
        let with = case.run(cx, PROBES).await?;
        check_eq!(Hex(&with.notes), Hex(&without.notes), "under probes");
        pass_with(format!("{LENGTHS:?} bytes"))
    })
}

/// Fills, copies and compares `len` bytes, and notes what is left in the registers.
fn copied(
    a: &mut CodeAssembler,
    names: &mut Names,
    [fill, copy, compare]: [&'static str; 3],
    len: u64,
) -> Result<(), IcedError> {
    a.mov(rdi, FROM)?;
    a.mov(rcx, len / 8)?;
    a.mov(rax, 0x0102_0304_0506_0708_u64 ^ len)?;
    names.here(a, fill)?;
    a.rep().stosq()?;
    note(a, rdi)?;
    note(a, rcx)?;
    a.mov(rsi, FROM)?;
    a.mov(rdi, TO)?;
    a.mov(rcx, len)?;
    names.here(a, copy)?;
    a.rep().movsb()?;
    note(a, rsi)?;
    note(a, rdi)?;
    // The last word differs.
    a.mov(r12, TO + len - 8)?;
    a.not(qword_ptr(r12))?;
    a.mov(rsi, FROM)?;
    a.mov(rdi, TO)?;
    a.mov(rcx, len / 8)?;
    names.here(a, compare)?;
    a.repe().cmpsq()?;
    note(a, rsi)?;
    note(a, rcx)?;
    note_flags(a)
}
