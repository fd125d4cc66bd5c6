//! What detours look like. Whether they do the right thing is for the processor to say: `tests/native`.

use guest_kernel::percpu::Variables;
use guest_state::GuestVirtAddr;
use iced_x86::code_asm::{CodeAssembler, qword_ptr, registers as reg};
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, IcedError};

use super::*;
use crate::condition::{Comparison, Operand, Relation};
use crate::fetch::Fetches;
use crate::probe::Capture;

const START: GuestVirtAddr = GuestVirtAddr(0xffff_ffff_8123_4560);
const ARENA: GuestVirtAddr = GuestVirtAddr(0xffff_ffff_4ffe_0100);

const TAG: Tag = Tag { number: 7, cell: 3 };

const ENVIRONMENT: Environment = Environment {
    block: 0x0000_777f_1234_5000,
    rings: GuestVirtAddr(0xffff_ffff_1000_0000),
    variables: Variables {
        current_task: Some(0x1fb40),
        cpu_number: Some(0x1fb48),
        pid: Some(0x4e0),
        tgid: Some(0x4e4),
        stack_canary: Some(0x4e8),
        state: None,
        on_cpu: None,
        comm: None,
        preempt_count: None,
        interrupt_stack: None,
        thread_flags: None,
        migration_disabled: None,
    },
    pointers: None,
    following: Some(Following {
        table: GuestVirtAddr(0xffff_ffff_0100_0000),
        trampoline: GuestVirtAddr(0xffff_ffff_7fff_f800),
    }),
};

const NONE: Dead = Dead {
    registers: 0,
    flags: false,
};

const AT_ENTRY: Dead = Dead {
    registers: 1 << 0 | 1 << 10 | 1 << 11,
    flags: true,
};

/// Makes the region of these instructions.
fn region(code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Region {
    let mut a = CodeAssembler::new(64).unwrap();
    code(&mut a).unwrap();
    let bytes = a.assemble(START.0).unwrap();
    let decoder = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE);
    let starts = decoder.into_iter().map(|insn| insn.ip() as u8).collect();
    Region {
        start: START,
        end: bytes.len() as u8,
        bytes,
        starts,
        beyond: Vec::new(),
    }
}

fn entry() -> Region {
    region(|a| {
        a.push(reg::r13)?;
        a.mov(reg::r13, reg::rsi)
    })
}

fn purpose(capture: Capture, condition: Vec<Comparison>) -> Purpose {
    Purpose {
        capture: Some(capture),
        condition,
        ..Purpose::default()
    }
}

fn listing(detour: &Detour) -> String {
    let mut text = String::new();
    let mut formatter = GasFormatter::new();
    for insn in Decoder::with_ip(64, &detour.code, detour.at.0, DecoderOptions::NONE).iter() {
        text += &format!("{:3x} ", insn.ip() - detour.at.0);
        formatter.format(&insn, &mut text);
        text.push('\n');
    }
    text
}

fn make(region: &Region, dead: Dead, purpose: &Purpose) -> Result<Detour, DetourError> {
    generate(&ENVIRONMENT, region, dead, purpose, TAG, ARENA)
}

/// The copies of a region's instructions, and what is behind them.
fn copies(region: &Region) -> String {
    let mut detour = make(region, AT_ENTRY, &purpose(Capture::Count, vec![])).unwrap();
    let first = detour.copies[0].1;
    detour.code.drain(..first as usize);
    detour.at = detour.at.wrapping_add(first.into());
    listing(&detour)
}

#[test]
fn a_count_at_an_entry_is_one_instruction_and_an_address() {
    let detour = make(&entry(), AT_ENTRY, &purpose(Capture::Count, vec![])).unwrap();
    let expected = "  0 movabs $0x777F1234504C,%r11
  a incl %gs:(%r11)
  e push %r13
 10 mov %rsi,%r13
 13 jmp 0xFFFFFFFF81234565
";
    assert_eq!(listing(&detour), expected);
    assert_eq!(detour.copies, [(0, 14), (2, 16)]);
    assert_eq!(detour.behind, (5, 19));
    let originals: Vec<_> = (0..24).map(|at| detour.original(at)).collect();
    let mut expected = vec![None; 14];
    expected.extend([Some(0), Some(0), Some(2), Some(2), Some(2), Some(5)]);
    expected.extend([None; 4]);
    assert_eq!(originals, expected);
}

#[test]
fn registers_are_put_aside_where_all_are_live() {
    let detour = make(&entry(), NONE, &purpose(Capture::Count, vec![])).unwrap();
    let expected = "  0 push %rax
  1 push %r11
  3 lahf
  4 seto %al
  7 movabs $0x777F1234504C,%r11
 11 incl %gs:(%r11)
 15 add $0x7F,%al
 17 sahf
 18 pop %r11
 1a pop %rax
 1b push %r13
 1d mov %rsi,%r13
 20 jmp 0xFFFFFFFF81234565
";
    assert_eq!(listing(&detour), expected);
}

#[test]
fn a_hit_that_fails_a_condition_costs_the_comparisons_alone() {
    let on = |operand, relation, constant| Comparison {
        operand,
        relation,
        constant,
        signed: true,
    };
    let condition = vec![
        on(Operand::Cpu, Relation::Common, 1),
        on(
            Operand::Register { number: 7, size: 4 },
            Relation::Greater,
            5,
        ),
    ];
    let detour = make(&entry(), AT_ENTRY, &purpose(Capture::Count, condition)).unwrap();
    let expected = "  0 cmp $5,%edi
  6 jle 0xFFFFFFFF4FFE0124
  8 testl $1,%gs:0x1FB48
 14 je 0xFFFFFFFF4FFE0124
 16 movabs $0x777F1234504C,%r11
 20 incl %gs:(%r11)
 24 push %r13
 26 mov %rsi,%r13
 29 jmp 0xFFFFFFFF81234565
";
    assert_eq!(listing(&detour), expected);
}

#[test]
fn the_length_is_the_same_all_over_the_arena() {
    let region = region(|a| {
        // cmp 0x1000(%rip),%rax
        a.db(&[0x48, 0x3b, 0x05, 0x00, 0x10, 0x00, 0x00])?;
        a.je(START.0 - 0x1000)?;
        a.jrcxz(START.0 + 0x40)
    });
    let purpose = Purpose {
        lossless: true,
        ..purpose(Capture::FULL, vec![])
    };
    let len = |at| {
        let detour = generate(
            &ENVIRONMENT,
            &region,
            NONE,
            &purpose,
            TAG,
            GuestVirtAddr(at),
        )
        .unwrap();
        (detour.code.len(), detour.copies, detour.full)
    };
    assert_eq!(len(0xffff_ffff_4000_0000), len(0xffff_ffff_7f00_1237));
}

#[test]
fn branches_out_of_the_region_go_where_they_went_and_those_to_the_probe_meet_it_again() {
    let region = region(|a| {
        a.je(START.0)?;
        a.jrcxz(START.0 + 4)?;
        a.jmp(START.0 + 0x2000)
    });
    assert_eq!(region.starts, [0, 2, 4]);
    let expected = "  0 je 0xFFFFFFFF81234560
  6 jrcxz 0xFFFFFFFF4FFE0116
  8 jmp 0xFFFFFFFF81236560
";
    assert_eq!(copies(&region), expected);
}

#[test]
fn calls_push_the_address_that_they_pushed_in_place() {
    let direct = region(|a| a.call(START.0 + 0x2000));
    let expected = "  0 push $0xFFFFFFFF81234565
  5 jmp 0xFFFFFFFF81236560
";
    assert_eq!(copies(&direct), expected);
    let through_memory = region(|a| a.call(qword_ptr(reg::rax + 8 * reg::r9 + 0x100)));
    let expected = "  0 push $0xFFFFFFFF81234568
  5 jmpq *0x100(%rax,%r9,8)
";
    assert_eq!(copies(&through_memory), expected);
    // call *0x100(%rip)
    let through_a_variable = region(|a| a.db(&[0xff, 0x15, 0x00, 0x01, 0x00, 0x00]));
    let expected = "  0 push $0xFFFFFFFF81234566
  5 jmpq *0xFFFFFFFF81234666
";
    assert_eq!(copies(&through_a_variable), expected);
}

#[test]
fn an_instruction_behind_the_region_that_has_to_come_along_is_executed_in_the_detour() {
    let mut region = region(|a| {
        a.mov(reg::eax, 1)?;
        a.sti()
    });
    region.beyond = vec![0x5b, 0xc3];
    assert_eq!(region.next(), GuestVirtAddr(START.0 + 8));
    let expected = "  0 mov $1,%eax
  5 sti
  6 pop %rbx
  7 ret
";
    assert_eq!(copies(&region), expected);
}

#[test]
fn padding_is_not_executed() {
    let mut region = region(CodeAssembler::ret);
    region.bytes.extend([0xcc; 4]);
    assert_eq!(copies(&region), "  0 ret\n");
}

#[test]
fn a_region_that_would_do_something_else_in_a_detour_has_none() {
    type Code = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    let cases: [(Code, &str); 10] = [
        (|a| a.mov(reg::cr3, reg::rax), "page tables"),
        (|a| a.ud2(), "raises an exception"),
        (|a| a.iretq(), "leaves the kernel"),
        (|a| a.fld1(), "records its address"),
        (|a| a.call(reg::rsp), "stack pointer"),
        (|a| a.call(qword_ptr(reg::rsp + 8)), "stack pointer"),
        (
            |a| {
                a.call(reg::rax)?;
                a.nop()
            },
            "returns into",
        ),
        (
            |a| {
                a.je(START.0 + 3)?;
                a.mov(reg::eax, 1)
            },
            "leads into",
        ),
        (|a| a.jmp(0x1000), "out of a jump's reach"),
        (|a| a.db(&[0x66, 0xe9, 0, 0, 0, 0]), "16 bits"),
    ];
    for (code, why) in cases {
        let error = make(&region(code), NONE, &purpose(Capture::Count, vec![])).unwrap_err();
        assert!(error.to_string().contains(why), "{why}: {error}");
    }
}

#[test]
fn a_region_that_is_not_what_it_says_is_told_so() {
    let good = entry();
    let shorter = Region {
        end: 4,
        ..good.clone()
    };
    let longer = Region {
        end: 6,
        ..good.clone()
    };
    let none = Region {
        end: 0,
        starts: Vec::new(),
        ..good.clone()
    };
    let elsewhere = Region {
        starts: vec![0, 3],
        ..good
    };
    for region in [shorter, longer, none, elsewhere] {
        let made = make(&region, NONE, &purpose(Capture::Count, vec![]));
        assert!(
            matches!(made, Err(DetourError::Region { at: START })),
            "{made:?}"
        );
    }
}

#[test]
fn a_condition_on_what_is_not_known_is_told_so() {
    let environment = Environment {
        variables: Variables {
            current_task: None,
            cpu_number: None,
            tgid: None,
            ..ENVIRONMENT.variables
        },
        ..ENVIRONMENT
    };
    for (operand, missing) in [
        (Operand::Cpu, "cpu_number"),
        (Operand::Pid, "current_task"),
        (Operand::Tgid, "tgid"),
    ] {
        let check = Comparison {
            operand,
            relation: Relation::Equal,
            constant: 1,
            signed: false,
        };
        let purpose = purpose(Capture::FULL, vec![check]);
        let error = generate(&environment, &entry(), NONE, &purpose, TAG, ARENA).unwrap_err();
        assert!(error.to_string().contains(missing), "{error}");
    }
}

#[test]
fn a_lossless_detour_tries_again_behind_its_int3_or_counts_a_loss() {
    let purpose = Purpose {
        lossless: true,
        ..purpose(Capture::Event(Fetches::default()), vec![])
    };
    let detour = make(&entry(), AT_ENTRY, &purpose).unwrap();
    let full = detour.full.unwrap();
    let at = |offset: u32| {
        let code = &detour.code[offset as usize..];
        let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
        let mut text = String::new();
        GasFormatter::new().format(&decoder.decode(), &mut text);
        text
    };
    assert_eq!(at(full.trap), "int3");
    assert!(at(full.trap + 1).starts_with("jmp "));
    assert_eq!(at(full.gives_up), "incl %gs:0x4C(%r11)");
}
