use super::*;
use crate::btf::synthetic::Builder;
use crate::symbols::synthetic::unstripped;

const LEAF: u64 = 0x100;
const OUTERMOST: u64 = 0x400;
/// `ftrace_caller` and `ftrace_regs_caller`; behind each, how far above RSP the return address is after their call.
const CALLER: u64 = 0x600;
const CALLER_FRAME: u64 = 0xb0;
const REGS_CALLER: u64 = 0x700;
const REGS_CALLER_FRAME: u64 = 0xd0;
/// Where the address that the call returns to is in both.
const BEHIND_CALL: u64 = 0x40;
/// `ftrace_ops_list`.
const LIST: u64 = 0x900;
/// Where the structures of ftrace's users are.
const USERS: u64 = 0xffff_8880_0000_1000;
/// Where the copies are, a page each.
const COPIES: u64 = 0xffff_ffff_c000_0000;
/// How long a copy is, with what is behind the code.
const COPY_LEN: u64 = 0x90;
const SAVE_REGS: u64 = 1 << 2;

fn table() -> Unwinder {
    let mut b = Builder::new();
    let long = b.int("long unsigned int", 8);
    let members = [
        ("func", long, 0),
        ("next", long, 8),
        ("flags", long, 16),
        ("trampoline", long, 0x40),
        ("trampoline_size", long, 0x48),
    ];
    b.structure("ftrace_ops", 0x80, &members);
    let types = Btf::parse(&b.bytes()).unwrap();
    let symbols = [
        ("_stext", 0),
        ("ftrace_caller", CALLER),
        ("ftrace_regs_caller", REGS_CALLER),
        ("ftrace_ops_list", LIST),
        ("_etext", TEXT_LEN),
    ]
    .map(|(name, offset)| (TEXT + offset, 'T', name.to_owned()));
    let symbols = Symbols::from_elf_symtab(&unstripped(&symbols)).unwrap();
    let above_rsp = |bytes| call(i16::try_from(bytes).unwrap() + 8);
    let entries = [
        (LEAF, OrcEntry::CALLED),
        (OUTERMOST, END),
        (CALLER, OrcEntry::CALLED),
        (CALLER + 8, above_rsp(CALLER_FRAME)),
        (REGS_CALLER, OrcEntry::CALLED),
        (REGS_CALLER + 8, above_rsp(REGS_CALLER_FRAME)),
    ];
    Unwinder {
        ftrace: FtraceTrampolines::find(&symbols, Some(&types)),
        ..unwinder(Some(orc(&entries)))
    }
}

/// Makes the list of ftrace's users: where the code of each is, and its flags.
fn users(users: &[(u64, u64)]) -> Words {
    let (mut words, mut link) = (Words::new(), TEXT + LIST);
    for ((start, flags), i) in users.iter().zip(0..) {
        let user = USERS + i * 0x100;
        let len = if *start == 0 { 0 } else { COPY_LEN };
        words = words
            .put(link, &[user])
            .put(user + 16, &[*flags])
            .put(user + 0x40, &[*start, len]);
        link = user + 8;
    }
    words.put(link, &[0])
}

/// Unwinds a function that the code at `copy` calls, with `frame` bytes on the stack; a frame pointer would lead
/// elsewhere. Returns the trace and how often the list was read.
fn through(copy: u64, frame: u64, kernel: &Words) -> (StackTrace, usize) {
    let stack = Words::new()
        .put(STACK, &[copy + BEHIND_CALL])
        .put(STACK + 8 + frame, &[TEXT + LEAF + 5, TEXT + OUTERMOST + 1])
        .put(STACK + 0x800, &[0, TEXT + OUTERMOST + 9]);
    let mut reads = 0;
    let around = Surroundings {
        memory: &mut |at| stack.read(at),
        kernel: &mut |at| {
            reads += 1;
            kernel.read(at)
        },
        foreign: &mut |_, _, _| None,
        task: None,
    };
    let trace = table().unwind(&at(LEAF, STACK, STACK + 0x800), around, 64);
    (trace, reads)
}

#[test]
fn code_that_ftrace_copied_is_unwound_as_the_original() {
    let users = users(&[
        // A user without code of its own.
        (0, SAVE_REGS),
        (COPIES, 0),
        (COPIES + 0x1000, SAVE_REGS | 1),
    ]);
    for (copy, frame) in [(COPIES, CALLER_FRAME), (COPIES + 0x1000, REGS_CALLER_FRAME)] {
        let (trace, _) = through(copy, frame, &users);
        let copy = (copy + BEHIND_CALL).wrapping_sub(TEXT);
        assert_eq!(offsets(&trace), [LEAF, copy, LEAF + 5, OUTERMOST + 1]);
        assert_eq!((trace.end, trace.guessed), (TraceEnd::Complete, false));
    }
}

#[test]
fn code_of_none_of_ftrace_s_users_is_taken_to_have_a_frame_pointer() {
    let beside = users(&[(COPIES + 0x1000, 0), (COPIES - COPY_LEN, 0), (COPIES, 0)]);
    let circle = users(&[(COPIES + 0x1000, 0)]).put(USERS + 8, &[USERS]);
    let cut = Words::new().put(TEXT + LIST, &[USERS]);
    for (copy, kernel) in [
        // Right behind a copy.
        (COPIES + COPY_LEN, beside),
        (COPIES, circle),
        (COPIES, cut),
        (COPIES, Words::new()),
    ] {
        let (trace, reads) = through(copy, CALLER_FRAME, &kernel);
        let copy = (copy + BEHIND_CALL).wrapping_sub(TEXT);
        assert_eq!(offsets(&trace), [LEAF, copy, OUTERMOST + 9]);
        assert_eq!((trace.end, trace.guessed), (TraceEnd::Complete, true));
        assert!(reads <= 3 * 4096, "{reads}");
    }
}

#[test]
fn a_stack_full_of_such_addresses_does_not_read_a_long_list_for_each() {
    let circle = users(&[(COPIES, 0)]).put(USERS + 8, &[USERS]);
    let mut reads = 0;
    let around = Surroundings {
        // Each frame pointer leads to the next frame, whose code is none of ftrace's.
        memory: &mut |at| match at.0 % 16 {
            0 => Some(at.0 + 16),
            _ => Some(COPIES + 0x1000),
        },
        kernel: &mut |at| {
            reads += 1;
            circle.read(at)
        },
        foreign: &mut |_, _, _| None,
        task: None,
    };
    let trace = table().unwind(&at(LEAF, STACK + 8, STACK + 16), around, MAX_FRAMES);
    assert_eq!(trace.addresses.len(), MAX_FRAMES);
    assert!(reads <= 3 * 4096, "{reads}");
}
