//! Single instructions with which probes have gone wrong: Linux' kprobes with `loop`, `ret imm16`
//! and prefixed calls (`arch/x86/kernel/kprobes/core.c`), other probes elsewhere. The CPU decides
//! what is right or, for instructions that user mode can't execute, the manual.

use guest_state::testing::{TestMemory, TestVcpu};
use guest_state::{GuestMemory, GuestPhysAddr, Registers};
use probe_engine::emulate::{Outcome, once};
use row_report::proves;

use crate::case::Case;
use crate::compare::{self, Agreed};
use crate::cpu::{Cpu, Layout, State};

/// Flags.
const ZF: u64 = 1 << 6;
const TF: u64 = 1 << 8;
const IF: u64 = 1 << 9;
const IOPL: u64 = 3 << 12;
const RF: u64 = 1 << 16;

/// The start of an execution: the code, with `rel32`s and such already right, and the registers.
struct Start {
    code: Vec<u8>,
    registers: Registers,
    data: Vec<u8>,
}

/// The stack in the data, as an offset.
const STACK: usize = 0x800;

impl Start {
    fn new(code: &[u8], layout: Layout) -> Self {
        Self {
            code: code.to_vec(),
            registers: Registers {
                rsp: layout.data + STACK as u64,
                ..Registers::default()
            },
            data: (0..0x1000_u32).map(|i| (i * 7 + 3) as u8).collect(),
        }
    }

    /// Sets a branch's displacement, which is the last `size` bytes, so that it leads to the
    /// landing.
    fn landing_by(mut self, size: usize, layout: Layout) -> Self {
        let by = layout.landing - layout.code - self.code.len() as u64;
        let at = self.code.len() - size;
        self.code[at..].copy_from_slice(&by.to_le_bytes()[..size]);
        self
    }

    fn put(mut self, at: usize, value: u64) -> Self {
        self.data[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// Executes it both ways, which must agree. Returns the result.
    fn run(self, cpu: &mut Cpu) -> State {
        let layout = cpu.layout();
        let case = Case::exactly(&self.code, self.registers, &self.data, layout).unwrap();
        let agreed = compare::emulated(cpu, &case).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(agreed, Agreed::Done, "{:02x?} is not emulated", self.code);
        cpu.execute(&case).unwrap()
    }
}

fn word(state: &State, at: usize) -> u64 {
    u64::from_le_bytes(state.data[at..at + 8].try_into().unwrap())
}

/// Runs a test with a CPU, and reports that it proves its row.
fn on_cpu(name: &str, test: impl FnOnce(&mut Cpu, Layout)) {
    proves(&["KP11"], name, || {
        let mut cpu = Cpu::new().unwrap();
        let layout = cpu.layout();
        test(&mut cpu, layout);
        String::new()
    });
}

/// Checks an opcode that counts RCX: for each RCX and ZF, whether it branches.
fn counts(name: &str, opcode: u8, branches: fn(rcx: u64, zf: bool) -> bool, counts: bool) {
    on_cpu(name, |cpu, layout| {
        for rcx in [0, 1, 2, u64::MAX, 1 << 32] {
            for zf in [false, true] {
                let mut start = Start::new(&[opcode, 0], layout).landing_by(1, layout);
                start.registers.rcx = rcx;
                start.registers.rflags = if zf { ZF } else { 0 };
                let after = start.run(cpu).registers;
                let left = rcx.wrapping_sub(u64::from(counts));
                assert_eq!(after.rcx, left);
                let taken = after.rip == layout.landing;
                assert_eq!(taken, branches(left, zf), "rcx {rcx:#x}, ZF {zf}");
            }
        }
    });
}

#[test]
fn loop_with_rcx_0_goes_on_and_with_1_ends() {
    let name = "loop_with_rcx_0_goes_on_and_with_1_ends";
    counts(name, 0xe2, |left, _| left != 0, true);
}

#[test]
fn loope_branches_while_rcx_is_left_and_zf_is_set() {
    let name = "loope_branches_while_rcx_is_left_and_zf_is_set";
    counts(name, 0xe1, |left, zf| left != 0 && zf, true);
}

#[test]
fn loopne_branches_while_rcx_is_left_and_zf_is_clear() {
    let name = "loopne_branches_while_rcx_is_left_and_zf_is_clear";
    counts(name, 0xe0, |left, zf| left != 0 && !zf, true);
}

#[test]
fn jrcxz_branches_on_rcx_0_alone() {
    let name = "jrcxz_branches_on_rcx_0_alone";
    counts(name, 0xe3, |left, _| left == 0, false);
}

#[test]
fn ret_with_a_count_drops_the_arguments() {
    on_cpu("ret_with_a_count_drops_the_arguments", |cpu, layout| {
        for drop in [0_u16, 8, 0x10, 0xffff] {
            let [low, high] = drop.to_le_bytes();
            let start = Start::new(&[0xc2, low, high], layout).put(STACK, layout.landing);
            let rsp = start.registers.rsp;
            let after = start.run(cpu).registers;
            assert_eq!(after.rip, layout.landing);
            assert_eq!(after.rsp, rsp + 8 + u64::from(drop));
        }
    });
}

#[test]
fn a_segment_prefix_makes_calls_and_jumps_longer_and_nothing_else() {
    let name = "a_segment_prefix_makes_calls_and_jumps_longer_and_nothing_else";
    on_cpu(name, |cpu, layout| {
        for prefix in [0x26, 0x2e, 0x36, 0x3e] {
            // call rel32; call *%r11; call *(%rax); jmp rel32; jmp *%r11; jmp *(%rax)
            for (code, size) in [
                (&[0xe8, 0, 0, 0, 0][..], 4),
                (&[0x41, 0xff, 0xd3], 0),
                (&[0xff, 0x10], 0),
                (&[0xe9, 0, 0, 0, 0], 4),
                (&[0x41, 0xff, 0xe3], 0),
                (&[0xff, 0x20], 0),
            ] {
                let code = [&[prefix], code].concat();
                let mut start = Start::new(&code, layout)
                    .put(0x100, layout.landing)
                    .landing_by(size, layout);
                start.registers.r11 = layout.landing;
                start.registers.rax = layout.data + 0x100;
                let rsp = start.registers.rsp;
                let after = start.run(cpu);
                assert_eq!(after.registers.rip, layout.landing, "{code:02x?}");
                if after.registers.rsp != rsp {
                    let back = layout.code + code.len() as u64;
                    assert_eq!(word(&after, STACK - 8), back, "{code:02x?}");
                }
            }
        }
    });
}

#[test]
fn call_and_jmp_through_the_stack_read_it_before_they_push() {
    let name = "call_and_jmp_through_the_stack_read_it_before_they_push";
    on_cpu(name, |cpu, layout| {
        // call *8(%rsp); call *(%rsp); jmp *8(%rsp)
        for (code, at) in [
            (&[0xff, 0x54, 0x24, 8][..], STACK + 8),
            (&[0xff, 0x14, 0x24], STACK),
            (&[0xff, 0x64, 0x24, 8], STACK + 8),
            // call *-8(%rsp): the operand is where the return address is pushed.
            (&[0xff, 0x54, 0x24, 0xf8], STACK - 8),
        ] {
            let start = Start::new(code, layout).put(at, layout.landing);
            let after = start.run(cpu);
            assert_eq!(after.registers.rip, layout.landing, "{code:02x?}");
        }
    });
}

#[test]
fn push_of_the_stack_and_of_rsp_take_what_was_before() {
    let name = "push_of_the_stack_and_of_rsp_take_what_was_before";
    on_cpu(name, |cpu, layout| {
        let rsp = layout.data + STACK as u64;
        // push (%rsp); push -8(%rsp); push %rsp
        for (code, pushed) in [
            (&[0xff, 0x34, 0x24][..], 77),
            (&[0xff, 0x74, 0x24, 0xf8], 66),
            (&[0x54], rsp),
        ] {
            let start = Start::new(code, layout).put(STACK, 77).put(STACK - 8, 66);
            let after = start.run(cpu);
            assert_eq!(word(&after, STACK - 8), pushed, "{code:02x?}");
            assert_eq!(after.registers.rsp, rsp - 8);
        }
    });
}

#[test]
fn pop_to_the_stack_uses_rsp_after_and_pop_rsp_keeps_the_value() {
    let name = "pop_to_the_stack_uses_rsp_after_and_pop_rsp_keeps_the_value";
    on_cpu(name, |cpu, layout| {
        let rsp = layout.data + STACK as u64;
        // pop 8(%rsp): to 16 above where RSP was.
        let after = Start::new(&[0x8f, 0x44, 0x24, 8], layout)
            .put(STACK, 77)
            .run(cpu);
        assert_eq!(
            (word(&after, STACK + 16), after.registers.rsp),
            (77, rsp + 8)
        );
        // pop (%rsp)
        let after = Start::new(&[0x8f, 0x04, 0x24], layout)
            .put(STACK, 77)
            .run(cpu);
        assert_eq!(
            (word(&after, STACK + 8), after.registers.rsp),
            (77, rsp + 8)
        );
        // pop %rsp
        let after = Start::new(&[0x5c], layout).put(STACK, 0x1234).run(cpu);
        assert_eq!(after.registers.rsp, 0x1234);
    });
}

#[test]
fn operands_relative_to_rip_are_so_from_the_instruction_s_end() {
    let name = "operands_relative_to_rip_are_so_from_the_instruction_s_end";
    on_cpu(name, |cpu, layout| {
        // push x(%rip); cmpl $7,x(%rip); cmpb $7,x(%rip): the last two have an immediate after.
        for (code, at, zero) in [
            (&[0xff, 0x35, 0, 0, 0, 0][..], 2, None),
            (&[0x81, 0x3d, 0, 0, 0, 0, 7, 0, 0, 0], 2, Some(true)),
            (&[0x80, 0x3d, 0, 0, 0, 0, 8], 2, Some(false)),
        ] {
            let mut start = Start::new(code, layout).put(0x40, 7);
            let by = layout.data + 0x40 - layout.code - code.len() as u64;
            start.code[at..at + 4].copy_from_slice(&(by as u32).to_le_bytes());
            let after = start.run(cpu);
            match zero {
                None => assert_eq!(word(&after, STACK - 8), 7),
                Some(zero) => assert_eq!(after.registers.rflags & ZF != 0, zero, "{code:02x?}"),
            }
        }
    });
}

#[test]
fn a_repeated_string_instruction_with_rcx_0_touches_nothing() {
    let name = "a_repeated_string_instruction_with_rcx_0_touches_nothing";
    on_cpu(name, |cpu, layout| {
        // rep movsb, rep stosq, repne scasb, repe cmpsq; RSI and RDI point nowhere.
        for code in [
            &[0xf3, 0xa4][..],
            &[0xf3, 0x48, 0xab],
            &[0xf2, 0xae],
            &[0xf3, 0x48, 0xa7],
        ] {
            let mut start = Start::new(code, layout);
            (start.registers.rsi, start.registers.rdi) = (1 << 40, 1 << 41);
            start.registers.rflags = ZF;
            let case = Case::exactly(code, start.registers, &start.data, layout).unwrap();
            let agreed = compare::relocated(cpu, &case).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(agreed, Agreed::Done, "{code:02x?}");
            let after = cpu.execute(&case).unwrap();
            assert_eq!(after.data, case.data);
            let unchanged = Registers {
                rip: case.registers.rip + code.len() as u64,
                ..case.registers
            };
            assert_eq!(after.registers, unchanged, "{code:02x?}");
        }
    });
}

/// Emulates one instruction with these flags and this word on the stack, at privilege level 0.
/// Returns the outcome, the vCPU, and the word below the stack.
fn at_level_0(code: &[u8], rflags: u64, popped: u64) -> (Outcome, TestVcpu, u64) {
    let memory = TestMemory::new(0x1000);
    let put = memory.write(GuestPhysAddr(0x800), &popped.to_le_bytes());
    put.unwrap();
    let mut vcpu = TestVcpu::default();
    vcpu.registers.rflags = 2 | rflags;
    vcpu.registers.rsp = 0x800;
    let outcome = once(code, &memory, &mut vcpu).unwrap();
    let mut below = [0; 8];
    memory.read(GuestPhysAddr(0x7f8), &mut below).unwrap();
    (outcome, vcpu, u64::from_le_bytes(below))
}

/// Runs a test without a CPU.
fn by_the_manual(name: &str, test: impl FnOnce()) {
    proves(&["KP11"], name, || {
        test();
        String::new()
    });
}

#[test]
fn hlt_halts_with_interrupts_off_as_well_and_does_not_turn_them_on() {
    let name = "hlt_halts_with_interrupts_off_as_well_and_does_not_turn_them_on";
    by_the_manual(name, || {
        for rflags in [0, IF] {
            let (outcome, vcpu, _) = at_level_0(&[0xf4], rflags, 0);
            assert_eq!(outcome, Outcome::Halted);
            assert_eq!((vcpu.registers.rflags, vcpu.registers.rip), (2 | rflags, 1));
            assert!(!vcpu.interrupt_shadow);
        }
    });
}

#[test]
fn cli_turns_interrupts_off_at_once() {
    by_the_manual("cli_turns_interrupts_off_at_once", || {
        for rflags in [0, IF, IF | ZF] {
            let (outcome, vcpu, _) = at_level_0(&[0xfa], rflags, 0);
            assert_eq!(outcome, Outcome::Done);
            assert_eq!(vcpu.registers.rflags, 2 | rflags & !IF);
        }
    });
}

#[test]
fn sti_holds_interrupts_back_for_one_instruction_only_where_they_were_off() {
    let name = "sti_holds_interrupts_back_for_one_instruction_only_where_they_were_off";
    by_the_manual(name, || {
        for (rflags, shadow) in [(0, true), (IF, false)] {
            let (outcome, vcpu, _) = at_level_0(&[0xfb], rflags, 0);
            assert_eq!(outcome, Outcome::Done);
            assert_eq!(vcpu.registers.rflags, 2 | IF);
            assert_eq!(vcpu.interrupt_shadow, shadow);
        }
    });
}

#[test]
fn pushf_shows_if_and_iopl_and_hides_rf() {
    by_the_manual("pushf_shows_if_and_iopl_and_hides_rf", || {
        for rflags in [0, IF, IF | IOPL | ZF] {
            let (outcome, vcpu, pushed) = at_level_0(&[0x9c], rflags | RF, 0);
            assert_eq!(outcome, Outcome::Done);
            assert_eq!(pushed, 2 | rflags);
            assert_eq!(vcpu.registers.rflags, 2 | rflags);
        }
    });
}

#[test]
fn popf_sets_if_iopl_and_tf_as_popped_and_never_rf() {
    by_the_manual("popf_sets_if_iopl_and_tf_as_popped_and_never_rf", || {
        for (before, popped) in [(0, IF), (IF, 0), (0, IF | IOPL | TF), (IOPL, ZF), (0, RF)] {
            let (outcome, vcpu, _) = at_level_0(&[0x9d], before, 2 | popped);
            assert_eq!(outcome, Outcome::Done);
            assert_eq!(vcpu.registers.rflags, 2 | popped & !RF);
            assert!(!vcpu.interrupt_shadow, "popf has none");
        }
    });
}

#[test]
fn every_emulated_instruction_ends_rf() {
    by_the_manual("every_emulated_instruction_ends_rf", || {
        // nop; push %rax; jmp +0; test %eax,%eax
        for code in [&[0x90][..], &[0x50], &[0xeb, 0], &[0x85, 0xc0]] {
            let (outcome, vcpu, _) = at_level_0(code, RF | IF, 0);
            assert_eq!(outcome, Outcome::Done);
            assert_eq!(vcpu.registers.rflags & RF, 0, "{code:02x?}");
        }
    });
}
