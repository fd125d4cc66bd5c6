use guest_kernel::blacklist::Reason;
use proptest::prelude::*;

use super::*;

const AT: GuestVirtAddr = GuestVirtAddr(0xffff_ffff_8100_1000);
const NOBODY: fn(GuestVirtAddr) -> bool = |_| false;
const NOWHERE: fn(Range<GuestVirtAddr>) -> bool = |_| false;
const FREE: fn(Range<GuestVirtAddr>) -> Result<(), NoJump> = |_| Ok(());

fn ground(text: &[u8]) -> Ground<'_> {
    Ground {
        text,
        function_end: AT.wrapping_add(text.len() as u64),
        is_free: &FREE,
        expects_fault: &NOBODY,
        is_target: &NOWHERE,
        is_fix_up: &NOWHERE,
    }
}

fn of(text: &[u8]) -> Result<Region, NoJump> {
    region(AT, &ground(text))
}

fn kind(text: &[u8]) -> &'static str {
    of(text).unwrap_err().kind()
}

/// Starts, end, length and what is beyond.
type Shape = (&'static [u8], u8, usize, &'static [u8]);

#[test]
fn whole_instructions_are_taken_until_a_jump_fits() {
    let table: [(&[u8], Shape); 17] = [
        // sub $0x20,%rsp; push %rbp -- one of 4, one of 1
        (&[0x48, 0x83, 0xec, 0x20, 0x55, 0x90], (&[0, 4], 5, 5, &[])),
        // mov $1,%eax
        (&[0xb8, 1, 0, 0, 0, 0x90], (&[0], 5, 5, &[])),
        // push %r13; mov %rsi,%r13; push %rbx
        (&[0x41, 0x55, 0x49, 0x89, 0xf5, 0x53], (&[0, 2], 5, 5, &[])),
        // push %rbp; mov %rsp,%rbp; push %r15
        (
            &[0x55, 0x48, 0x89, 0xe5, 0x41, 0x57],
            (&[0, 1, 4], 6, 6, &[]),
        ),
        // push four times; movabs
        (
            &[0x53, 0x55, 0x50, 0x51, 0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],
            (&[0, 1, 2, 3, 4], 14, 14, &[]),
        ),
        // push %rbx; call: it returns behind the jump
        (&[0x53, 0xe8, 0, 0, 0, 0, 0x90], (&[0, 1], 6, 6, &[])),
        // three nops; call *%rax: it returns right behind the jump
        (
            &[0x90, 0x90, 0x90, 0xff, 0xd0, 0x90],
            (&[0, 1, 2, 3], 5, 5, &[]),
        ),
        // je; je; push: branches of the region's own
        (&[0x74, 0x10, 0x75, 0xfc, 0x53], (&[0, 2, 4], 5, 5, &[])),
        // jmp rel32, at a function's end
        (&[0xe9, 0, 0, 0, 0], (&[0], 5, 5, &[])),
        // ret and padding
        (&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc], (&[0], 1, 5, &[])),
        // pop %rbx; ret; int3; a nop of 9 bytes
        (
            &[0x5b, 0xc3, 0xcc, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            (&[0, 1], 2, 12, &[]),
        ),
        // jmp short; nop; then code that something else leads to
        (
            &[0xeb, 0x10, 0x90, 0x53, 0x55, 0x90],
            (&[0, 3, 4], 5, 5, &[]),
        ),
        // jmp *%rax and code at once
        (
            &[0xff, 0xe0, 0x53, 0x48, 0x89, 0xe5],
            (&[0, 2, 3], 6, 6, &[]),
        ),
        // cli; popfq; hlt; ud2 isn't reached
        (
            &[0xfa, 0x9d, 0xf4, 0x90, 0x90, 0x0f, 0x0b],
            (&[0, 1, 2, 3, 4], 5, 5, &[]),
        ),
        // four nops; sti; hlt
        (
            &[0x90, 0x90, 0x90, 0x90, 0xfb, 0xf4, 0x90],
            (&[0, 1, 2, 3, 4], 5, 5, &[0xf4]),
        ),
        // nop of 4; sti; sti; call: two are beyond
        (
            &[0x0f, 0x1f, 0x40, 0, 0xfb, 0xfb, 0xe8, 0, 0, 0, 0],
            (&[0, 4], 5, 5, &[0xfb, 0xe8, 0, 0, 0, 0]),
        ),
        // sti in the middle keeps its neighbour anyway
        (&[0xfb, 0xb8, 1, 0, 0, 0], (&[0, 1], 6, 6, &[])),
    ];
    for (text, (starts, end, len, beyond)) in table {
        let region = of(text).unwrap_or_else(|why| panic!("{text:02x?}: {why}"));
        assert_eq!(region.start, AT);
        assert_eq!(region.starts, starts, "{text:02x?}");
        assert_eq!(region.end, end, "{text:02x?}");
        assert_eq!(region.bytes, text[..len]);
        assert_eq!(region.beyond, beyond, "{text:02x?}");
    }
}

#[test]
fn an_instruction_that_can_t_run_in_a_detour_stays_a_breakpoint() {
    let table: [(&[u8], &str); 22] = [
        // ret, and nothing behind it; a nop that reaches too far
        (&[0xc3], "function end"),
        (&[0xc3, 0xcc, 0xcc, 0xcc], "function end"),
        (&[0x53, 0x55, 0x50, 0x51], "function end"),
        // mov %rax,%cr3; mov %ax,%ss; iretq; syscall; int $0x80; xbegin; vmmcall; ljmp
        (&[0x0f, 0x22, 0xd8, 0x90, 0x90], "bound instruction"),
        (&[0x90, 0x8e, 0xd0, 0x90, 0x90], "bound instruction"),
        (&[0x90, 0x48, 0xcf, 0x90, 0x90], "bound instruction"),
        (&[0x90, 0x0f, 0x05, 0x90, 0x90], "bound instruction"),
        (&[0xcd, 0x80, 0x90, 0x90, 0x90], "bound instruction"),
        (&[0xc7, 0xf8, 0, 0, 0, 0], "bound instruction"),
        (&[0x0f, 0x01, 0xd9, 0x90, 0x90], "bound instruction"),
        (&[0xff, 0x28, 0x90, 0x90, 0x90], "bound instruction"),
        // fld1
        (&[0xd9, 0xe8, 0x90, 0x90, 0x90], "bound instruction"),
        // call *%rax and something
        (&[0xff, 0xd0, 0x48, 0x89, 0xc3], "return address"),
        (&[0x90, 0x90, 0xff, 0xd0, 0x90], "return address"),
        // hlt; mwait
        (&[0xf4, 0x90, 0x90, 0x90, 0x90], "waits"),
        (&[0x0f, 0x01, 0xc9, 0x90, 0x90], "waits"),
        // push; ud2
        (&[0x53, 0x0f, 0x0b, 0x90, 0x90], "trap"),
        (&[0x53, 0xcc, 0x90, 0x90, 0x90], "guest int3"),
        // push %es
        (&[0x06, 0x90, 0x90, 0x90, 0x90], "undecodable"),
        // ret; endbr64: something arrives there
        (&[0xc3, 0xf3, 0x0f, 0x1e, 0xfa], "branch"),
        // nop of 4; sti; ud2: what sti holds can't go along
        (&[0x0f, 0x1f, 0x40, 0, 0xfb, 0x0f, 0x0b], "trap"),
        // nop of 4; sti, over and over
        (
            &[
                0x0f, 0x1f, 0x40, 0, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb,
            ],
            "bound instruction",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(kind(text), expected, "{text:02x?}");
    }
}

#[test]
fn a_branch_to_the_region_counts_but_for_its_start_and_end() {
    let text = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x90];
    for target in 0..7 {
        let target = AT.wrapping_add(target);
        let is_target = |range: Range<GuestVirtAddr>| range.contains(&target);
        let found = region(
            AT,
            &Ground {
                is_target: &is_target,
                ..ground(&text)
            },
        );
        let inside = (1..6).contains(&(target.0 - AT.0));
        let kind = found.map_err(|why| why.kind());
        assert_eq!(kind.err(), inside.then_some("branch"), "{target}");
    }
}

#[test]
fn bytes_that_are_overwritten_or_copied_have_to_be_free() {
    // nop of 4; sti; mov $1,%eax; nop
    let text = [0x0f, 0x1f, 0x40, 0, 0xfb, 0xb8, 1, 0, 0, 0, 0x90];
    for taken in 0..11 {
        let taken = AT.wrapping_add(taken);
        let is_free = |range: Range<GuestVirtAddr>| match range.contains(&taken) {
            true => Err(NoJump::Taken {
                reason: Reason::JumpLabel,
            }),
            false => Ok(()),
        };
        let found = region(
            AT,
            &Ground {
                is_free: &is_free,
                ..ground(&text)
            },
        );
        let overlaps = taken.0 - AT.0 < 10;
        let kind = found.map_err(|why| why.kind());
        assert_eq!(kind.err(), overlaps.then_some("jump-label"), "{taken}");
    }
}

#[test]
fn each_instruction_that_may_fault_is_looked_up() {
    let text = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x90];
    for (offset, refused) in [(0, true), (1, true), (2, false), (4, true), (6, false)] {
        let fixed = AT.wrapping_add(offset);
        let expects_fault = |at: GuestVirtAddr| at == fixed;
        let found = region(
            AT,
            &Ground {
                expects_fault: &expects_fault,
                ..ground(&text)
            },
        );
        let kind = found.map_err(|why| why.kind());
        assert_eq!(kind.err(), refused.then_some("exception table"), "{offset}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_region_of_whole_instructions_or_refused(
        text in proptest::collection::vec(
            prop_oneof![any::<u8>(), Just(0x90), Just(0xcc), Just(0xc3), Just(0xfb), Just(0xeb)],
            0..64,
        ),
        function_end in 0u64..70,
    ) {
        let ground = Ground {
            function_end: AT.wrapping_add(function_end),
            ..ground(&text)
        };
        if let Ok(region) = region(AT, &ground) {
            let (len, end) = (region.bytes.len(), usize::from(region.end));
            prop_assert!(len >= JUMP_LEN && len as u64 <= function_end && end <= len);
            prop_assert!(text.starts_with(&[&region.bytes[..], &region.beyond].concat()));
            prop_assert_eq!(region.starts[0], 0);
            prop_assert!(region.starts.is_sorted_by(|a, b| a < b));
            for (i, start) in region.starts.iter().enumerate() {
                let start = usize::from(*start);
                let next = region.starts.get(i + 1).map_or(end, |next| usize::from(*next));
                let code = insn::decode(&region.bytes[start..], AT).unwrap();
                let behind = start + code.insn.len();
                let padding = insn::never_falls_through(&code.insn);
                prop_assert!(behind == next || padding && behind < next);
            }
        }
    }
}
