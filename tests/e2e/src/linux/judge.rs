//! Judges whether the answers of the product and of the guest's kernel about the bytes of a function are right.

use super::decision::{Answer, Decision};
use super::decoder::{self, Code, INT3};
use crate::test::{Failure, check, wrong};

/// The function tracer's site while nothing is traced, and `endbr64` (`arch/x86/include/asm/nops.h`, Intel SDM vol. 2).
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// What the kernel makes of an `endbr64` that nothing branches to (`gen_endbr_poison` in
/// `arch/x86/include/asm/ibt.h`).
const POISON: [u8; 4] = [0x66, 0x0f, 0x1f, 0x00];
/// A jump label that isn't a jump at the moment (`arch/x86/include/asm/nops.h`).
const NOP2: [u8; 2] = [0x66, 0x90];
/// A static call whose function returns 0 (`xor5rax` in `arch/x86/kernel/static_call.c`).
const XOR5: [[u8; 5]; 2] = [
    [0x66, 0x66, 0x48, 0x31, 0xc0],
    [0x2e, 0x2e, 0x2e, 0x31, 0xc0],
];
/// The lock prefix, and what the kernel makes of it if there is one CPU.
const LOCK: [u8; 2] = [0xf0, 0x3e];

/// The answer of the kernel's `kprobe_events` for a function as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It looks at each place.
    Open,
    /// It takes no probe in it, as the function tracer has no site there (`within_notrace_func` in
    /// `kernel/trace/trace_kprobe.c`). A kernel module could have a kprobe there.
    Untraced,
    /// It takes no probe in it, as the function is on its own blacklist.
    Listed,
}

/// How the kernel treats a kprobe at an instruction that always raises an exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traps {
    /// Before 6.9: it executes no copy of an int3 (`__copy_instruction` in `arch/x86/kernel/kprobes/core.c`). It treats
    /// a `ud2` that isn't one of its BUGs as any other instruction.
    Copied,
    /// Since 6.9: it takes no probe at them, as if no instruction began there (`is_exception_insn` in the same file).
    NoPlace,
}

/// A function of the guest's kernel.
#[derive(Debug)]
pub struct Function {
    pub name: String,
    pub start: u64,
    /// Up to the next symbol.
    pub size: usize,
    /// Its text, and some bytes behind it.
    pub bytes: Vec<u8>,
    /// Its instructions, by a decoder that isn't the product's.
    pub code: Vec<Code>,
    pub standing: Standing,
    /// True if no other symbol has its address.
    pub is_alone: bool,
}

/// Bytes in front of a place that a failure shows.
const BEFORE: usize = 8;

/// Length of the `endbr64` that code begins with, or of what the kernel has made of it.
fn endbr(bytes: &[u8]) -> usize {
    let has = bytes.starts_with(&ENDBR) || bytes.starts_with(&POISON);
    if has { ENDBR.len() } else { 0 }
}

/// Returns true if the function tracer has a site where a function with these bytes begins.
pub fn is_traced(bytes: &[u8]) -> bool {
    bytes[endbr(bytes)..].starts_with(&NOP5)
}

impl Function {
    /// Returns the text that asks for a probe at an offset of it.
    pub fn place(&self, offset: usize) -> String {
        match offset {
            // By name, the place would be the first instruction behind the ftrace site.
            0 => format!("{:#x}", self.start),
            _ => format!("{}+{offset:#x}", self.name),
        }
    }

    /// Returns true if a probe is likely to be taken there.
    pub fn is_likely(&self, offset: usize) -> bool {
        let entry = endbr(&self.bytes)
            + if is_traced(&self.bytes) {
                NOP5.len()
            } else {
                0
            };
        let is_boundary = decoder::at(&self.code, offset).is_some_and(|one| one.start == offset);
        is_boundary && offset >= entry && self.bytes[offset] != INT3
    }

    /// Fails unless both answers for the place at an offset are right, and fit each other.
    ///
    /// # Errors
    /// As said.
    pub fn judge(
        &self,
        offset: usize,
        ours: &Decision,
        theirs: Answer,
        traps: Traps,
    ) -> Result<(), Failure> {
        let place = format!("{}+{offset:#x}", self.name);
        let code = decoder::at(&self.code, offset)
            .ok_or_else(|| wrong!("{place} wasn't decoded: {ours:?}"))?;
        let shown = &self.bytes[code.start..code.end];
        let before = &self.bytes[code.start.saturating_sub(BEFORE)..code.start];
        check!(
            self.is_so(offset, code, ours),
            "{place} in {shown:02x?}, which begins at +{:#x}: we say {ours:?}, which isn't so",
            code.start
        );
        let expected = self.expected(offset, code, ours, traps);
        check!(
            expected.contains(&theirs),
            "{place} in {shown:02x?}, which begins at +{:#x} behind {before:02x?}, in a function that is {:?}: \
             we say {ours:?}, so the kernel should say one of {expected:?}, not {theirs:?}",
            code.start,
            self.standing
        );
        Ok(())
    }

    /// Returns true if the product's answer is right, by the bytes, the other decoder, and the kernel's own list.
    fn is_so(&self, offset: usize, code: &Code, ours: &Decision) -> bool {
        let is_boundary = code.start == offset;
        let bytes = &self.bytes[code.start..];
        let len = code.end - code.start;
        let is_listed = self.standing == Standing::Listed;
        match ours {
            Decision::Taken(address) => {
                let is_there = is_boundary && *address == self.start + offset as u64;
                is_there && !is_listed && !code.is_trap() && !code.is_unsupported()
            }
            Decision::Inside(start) => !is_boundary && *start == self.start + code.start as u64,
            Decision::Trap => is_boundary && code.is_trap(),
            Decision::Unsupported => is_boundary && code.is_unsupported(),
            Decision::Entry(part) => match &**part {
                "endbr64" => offset < endbr(&self.bytes),
                "ftrace site" => is_traced(&self.bytes) && code.start == endbr(&self.bytes),
                _ => false,
            },
            Decision::Listed(kind) => match &**kind {
                "noinstr" | "entry" | "kprobes" | "blacklist" => is_listed,
                "ftrace" => bytes.starts_with(&NOP5),
                "jump-label" => {
                    let jump = matches!((bytes[0], len), (0xe9, 5) | (0xeb, 2));
                    jump || bytes.starts_with(&NOP5) || bytes.starts_with(&NOP2)
                }
                "static-call" => is_static_call(bytes) || self.is_in_returning_call(code.start),
                "bug" => bytes.starts_with(&[0x0f, 0x0b]),
                "smp-lock" => is_boundary && LOCK.contains(&bytes[0]),
                // The first of all trampolines has another name as well.
                "static-call-trampoline" => is_static_call_trampoline(&self.bytes),
                "ftrace-trampoline" => self.name.starts_with("ftrace_"),
                "copied" => {
                    let copied = ["ftrace_", "relocate_kernel", "core_restore_code"];
                    copied.iter().any(|name| self.name.starts_with(name))
                }
                _ => false,
            },
        }
    }

    /// Returns true if an int3 belongs to the static call before it: a static call at a function's end that does
    /// nothing is a return, and int3s fill its five bytes.
    fn is_in_returning_call(&self, at: usize) -> bool {
        let begins = |back: &usize| {
            let start = at.checked_sub(*back);
            start.is_some_and(|start| self.bytes[start..].starts_with(&RETURNING_CALL))
        };
        (1..RETURNING_CALL.len()).any(|back| begins(&back))
    }

    /// Returns the answers that the kernel may give if the product's answer is right.
    fn expected(
        &self,
        offset: usize,
        code: &Code,
        ours: &Decision,
        traps: Traps,
    ) -> &'static [Answer] {
        use Answer::{NoBoundary, Refused, Taken, Unsupported};
        if self.standing != Standing::Open {
            return &[Refused];
        }
        let is_boundary = code.start == offset;
        match ours {
            // `prepare_emulation` in `arch/x86/kernel/kprobes/core.c` doesn't emulate those.
            Decision::Taken(_) if code.is_memory_branch() => &[Unsupported],
            Decision::Taken(_) => &[Taken],
            Decision::Inside(_) => &[NoBoundary],
            // The kernel puts the kprobe on the site by the tracer itself, and takes a probe of an `endbr64` for one of
            // the site (`arch_adjust_kprobe_addr` in `arch/x86/kernel/kprobes/core.c`).
            Decision::Entry(_) if is_boundary => &[Taken],
            Decision::Entry(_) => &[NoBoundary],
            Decision::Trap if traps == Traps::NoPlace => &[NoBoundary],
            Decision::Trap if self.bytes[code.start] == INT3 => &[Refused],
            Decision::Trap => &[Taken],
            Decision::Unsupported => &[Taken, Refused, Unsupported],
            Decision::Listed(kind) => match &**kind {
                // `jump_label_text_reserved` and `static_call_text_reserved` cover all their bytes.
                "jump-label" => &[Refused],
                "static-call" if offset - code.start < NOP5.len() => &[Refused],
                "bug" if is_boundary => &[Refused],
                // The kernel's list lacks lock prefixes that it won't patch any more.
                "smp-lock" | "ftrace" if is_boundary => &[Taken],
                _ => &[NoBoundary],
            },
        }
    }
}

/// Returns true if a function is a static call's trampoline: a `jmp` or a `ret` of 5 bytes, and a mark behind it
/// (`arch/x86/include/asm/static_call.h`, `__ARCH_DEFINE_STATIC_CALL_TRAMP`).
fn is_static_call_trampoline(bytes: &[u8]) -> bool {
    let mark = bytes.get(5..8);
    mark == Some(&[0x0f, 0xb9, 0xcc]) && matches!(bytes[0], 0xe9 | 0xc3)
}

/// A static call at a function's end that does nothing (`retinsn` in `arch/x86/kernel/static_call.c`).
const RETURNING_CALL: [u8; 5] = [0xc3, INT3, INT3, INT3, INT3];

/// Returns true if these bytes are what the kernel makes of a static call (`__static_call_transform` in
/// `arch/x86/kernel/static_call.c`).
fn is_static_call(bytes: &[u8]) -> bool {
    let call = matches!(bytes, [0xe8 | 0xe9, ..] | [0x0f, 0x80..=0x8f, ..]);
    let ret = bytes.starts_with(&RETURNING_CALL);
    call || ret || bytes.starts_with(&NOP5) || XOR5.iter().any(|xor| bytes.starts_with(xor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `endbr64`, a site, a nop that is a jump label, `xor %eax, %eax`, `lock incl (%rdi)`, `ud2`, `int3`.
    fn function(standing: Standing) -> Function {
        let parts: [&[u8]; 7] = [
            &ENDBR,
            &NOP5,
            &NOP2,
            &[0x31, 0xc0],
            &[0xf0, 0xff, 0x07],
            &[0x0f, 0x0b],
            &[INT3],
        ];
        let mut bytes = parts.concat();
        let size = bytes.len();
        bytes.extend([0x90; 15]);
        Function {
            name: "f".into(),
            start: 0x1000,
            size,
            code: decoder::decode(&bytes, size).unwrap(),
            bytes,
            standing,
            is_alone: true,
        }
    }

    fn listed(kind: &str) -> Decision {
        Decision::Listed(kind.into())
    }

    fn on(part: &str) -> Decision {
        Decision::Entry(part.into())
    }

    #[test]
    fn a_verdict_is_right_only_if_it_is_the_expected_one() {
        let open = function(Standing::Open);
        for (offset, ours, theirs) in [
            (0, on("endbr64"), Answer::Taken),
            (1, on("endbr64"), Answer::NoBoundary),
            (4, on("ftrace site"), Answer::Taken),
            (8, on("ftrace site"), Answer::NoBoundary),
            (9, listed("jump-label"), Answer::Refused),
            (10, listed("jump-label"), Answer::Refused),
            (11, Decision::Taken(0x100b), Answer::Taken),
            (12, Decision::Inside(0x100b), Answer::NoBoundary),
            (13, listed("smp-lock"), Answer::Taken),
            (16, listed("bug"), Answer::Refused),
            (17, listed("bug"), Answer::NoBoundary),
            (18, Decision::Trap, Answer::Refused),
        ] {
            open.judge(offset, &ours, theirs, Traps::Copied).unwrap();
            let untraced = function(Standing::Untraced);
            untraced
                .judge(offset, &ours, Answer::Refused, Traps::Copied)
                .unwrap();
            assert!(
                untraced
                    .judge(offset, &ours, Answer::Taken, Traps::Copied)
                    .is_err()
            );
            let other = match theirs {
                Answer::Taken => Answer::NoBoundary,
                _ => Answer::Taken,
            };
            assert!(
                open.judge(offset, &ours, other, Traps::Copied).is_err(),
                "{offset}"
            );
        }
        for (offset, wrong) in [
            (0, on("ftrace site")),
            (4, on("endbr64")),
            (11, Decision::Inside(0x100b)),
            (11, listed("jump-label")),
            (11, listed("noinstr")),
            (12, Decision::Inside(0x1009)),
            (12, Decision::Taken(0x100c)),
            (11, Decision::Taken(0x1010)),
            (13, listed("static-call")),
            (16, Decision::Taken(0x1010)),
            (11, Decision::Unsupported),
            (11, Decision::Trap),
        ] {
            for theirs in [Answer::Taken, Answer::NoBoundary, Answer::Refused] {
                assert!(
                    open.judge(offset, &wrong, theirs, Traps::Copied).is_err(),
                    "{offset}"
                );
            }
        }
    }

    #[test]
    fn a_static_call_s_trampoline_is_known_by_what_it_is() {
        let jump = [0xe9, 0x8b, 0x59, 0x33, 0xff, 0x0f, 0xb9, 0xcc];
        assert!(is_static_call_trampoline(&jump));
        let ret = [0xc3, INT3, 0x90, 0x90, 0x90, 0x0f, 0xb9, 0xcc];
        assert!(is_static_call_trampoline(&ret));
        assert!(!is_static_call_trampoline(&jump[..5]));
        assert!(!is_static_call_trampoline(&function(Standing::Open).bytes));
    }

    #[test]
    fn a_static_call_that_returns_has_the_int3s_behind_it() {
        let mut open = function(Standing::Open);
        open.bytes = [&[0x90][..], &RETURNING_CALL, &[INT3; 15]].concat();
        open.size = 7;
        open.code = decoder::decode(&open.bytes, open.size).unwrap();
        let judge = |offset| {
            open.judge(
                offset,
                &listed("static-call"),
                Answer::Refused,
                Traps::NoPlace,
            )
        };
        for (offset, is_one) in [(0, false), (1, true), (2, true), (5, true), (6, false)] {
            assert_eq!(judge(offset).is_ok(), is_one, "{offset}");
        }
    }

    #[test]
    fn an_instruction_that_raises_an_exception_is_no_place_for_a_kprobe_since_6_9() {
        let bytes = [0x0f, 0x0b, INT3, 0x0f, 0x0b];
        let code = decoder::decode(&bytes, bytes.len()).unwrap();
        let open = Function {
            bytes: bytes.into(),
            code,
            size: bytes.len(),
            ..function(Standing::Open)
        };
        for (offset, before, since) in [
            (0, Answer::Taken, Answer::NoBoundary),
            (2, Answer::Refused, Answer::NoBoundary),
        ] {
            let judge = |theirs, traps| open.judge(offset, &Decision::Trap, theirs, traps);
            judge(before, Traps::Copied).unwrap();
            judge(since, Traps::NoPlace).unwrap();
            assert!(judge(since, Traps::Copied).is_err());
            assert!(judge(before, Traps::NoPlace).is_err());
        }
    }

    #[test]
    fn probes_are_likely_behind_the_entry_and_not_on_int3() {
        let function = function(Standing::Open);
        let likely = (0..function.size).filter(|offset| function.is_likely(*offset));
        assert_eq!(likely.collect::<Vec<_>>(), [9, 11, 13, 16]);
    }
}
