//! The instructions of the kernel's text, and which of them can't be probed, as the text itself shows.

use iced_x86::{FlowControl, Instruction, Mnemonic, Register};

use vmprobe_client::words;

use super::code::decode;
use super::functions::Function;
use super::text::Text;

const INT3: u8 = 0xcc;

/// An instruction, and what is known of it.
#[derive(Debug)]
pub struct Spot {
    /// Its address.
    pub at: u64,
    /// Words of the refusals that it may meet: one of them, or it has to take a probe.
    pub refusals: Vec<String>,
    /// Whether it is of what all functions return through ([`Function::is_return_thunk`]).
    pub is_return_thunk: bool,
}

/// Every so many of all instructions, from that number on; and how many there are in all. Each function is
/// decoded from its start to the next symbol, without the int3s at its end.
pub fn every(functions: &[Function], text: &Text, step: usize, first: usize) -> (usize, Vec<Spot>) {
    let mut spots = Vec::new();
    let mut all = 0;
    for function in functions {
        let bytes = text.at(function.start, (function.end - function.start) as usize);
        let padding = bytes.iter().rev().take_while(|byte| **byte == INT3);
        let bytes = &bytes[..bytes.len() - padding.count()];
        let mut breakpoints = Breakpoints::default();
        for instruction in decode(function.start, bytes) {
            let behind = breakpoints.before(&instruction, function.entry);
            if all % step == first {
                spots.push(Spot {
                    at: instruction.ip(),
                    refusals: refusals(&instruction, function, text, behind),
                    is_return_thunk: function.is_return_thunk(),
                });
            }
            all += 1;
        }
    }
    (all, spots)
}

/// The kernel's own int3s that something leads to. What they hide isn't known, so that nobody can tell
/// where instructions begin behind them. A return, a jump or a call that leads over it leads to none.
#[derive(Debug, Default)]
struct Breakpoints {
    hides: Option<u64>,
    is_cut_off: bool,
}

impl Breakpoints {
    /// The first one before this instruction, the next of the function whose code begins at `entry`.
    fn before(&mut self, instruction: &Instruction, entry: u64) -> Option<u64> {
        let before = self.hides;
        let is_int3 = instruction.mnemonic() == Mnemonic::Int3;
        if instruction.ip() >= entry {
            if is_int3 && !self.is_cut_off {
                self.hides.get_or_insert(instruction.ip());
            }
            let ends = [
                FlowControl::Return,
                FlowControl::UnconditionalBranch,
                FlowControl::IndirectBranch,
            ];
            self.is_cut_off = is_int3
                || ends.contains(&instruction.flow_control())
                || calls_over_a_byte(instruction);
        }
        before
    }
}

/// Whether it is a call that leads over the byte behind it, as `__FILL_RETURN_SLOT` has it
/// (`arch/x86/include/asm/nospec-branch.h`): the int3 there is for speculation alone.
fn calls_over_a_byte(instruction: &Instruction) -> bool {
    instruction.is_call_near() && instruction.near_branch64() == instruction.next_ip() + 1
}

/// Words of what the server may say to a probe on an instruction.
fn refusals(
    instruction: &Instruction,
    function: &Function,
    text: &Text,
    behind: Option<u64>,
) -> Vec<String> {
    let listed = text.listed(instruction.ip()..instruction.next_ip());
    let mut words: Vec<String> = listed
        .map(|entry| {
            let kind = words::blacklist_kind(entry.kind());
            format!("({kind}): {}", entry.reason)
        })
        .collect();
    if instruction.ip() < function.entry {
        words.push("is on the function's ".to_owned());
    }
    if let Some(at) = behind {
        words.push(format!("breakpoint of its own at {at:#x}, "));
    }
    if is_trap(instruction) {
        words.push("by which the kernel itself recognizes the place".to_owned());
    }
    if changes_mode(instruction) {
        words.push("can't be probed: ".to_owned());
    }
    words
}

/// Whether it raises an exception on purpose (Intel SDM vol. 2, INT3, UD).
fn is_trap(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Int3 | Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2
    )
}

/// Whether it goes to another privilege level, code segment, stack segment or virtual machine.
fn changes_mode(instruction: &Instruction) -> bool {
    let is_far = instruction.is_call_far()
        || instruction.is_jmp_far()
        || instruction.is_call_far_indirect()
        || instruction.is_jmp_far_indirect();
    let loads_ss = instruction.op_count() > 0 && instruction.op0_register() == Register::SS;
    let leaves = matches!(
        instruction.mnemonic(),
        Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
            | Mnemonic::Sysret
            | Mnemonic::Sysretq
            | Mnemonic::Sysexit
            | Mnemonic::Sysexitq
            | Mnemonic::Syscall
            | Mnemonic::Sysenter
            | Mnemonic::Retf
            | Mnemonic::Int
            | Mnemonic::Int1
            | Mnemonic::Rsm
            | Mnemonic::Lss
            | Mnemonic::Vmrun
            | Mnemonic::Vmlaunch
            | Mnemonic::Vmresume
            | Mnemonic::Vmcall
            | Mnemonic::Vmmcall
    );
    is_far || loads_ss || leaves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_int3_hides_what_is_behind_it_unless_nothing_leads_to_it() {
        let cases: [(&[u8], bool); 4] = [
            // Behind a nop; behind a return.
            (&[0x66, 0x90, 0xcc, 0x90], true),
            (&[0x90, 0xc3, 0xcc, 0x90], false),
            // Behind a call over it; behind one that leads elsewhere.
            (&[0xe8, 1, 0, 0, 0, 0xcc, 0x90], false),
            (&[0xe8, 2, 0, 0, 0, 0xcc, 0x90], true),
        ];
        for (bytes, hides) in cases {
            let mut breakpoints = Breakpoints::default();
            let instructions = decode(0x1000, bytes);
            let behind = instructions
                .iter()
                .map(|instruction| breakpoints.before(instruction, 0x1000))
                .last();
            assert_eq!(behind.flatten().is_some(), hides, "{bytes:02x?}");
        }
    }

    #[test]
    fn instructions_that_change_the_mode_are_told_from_those_that_look_like_it() {
        let cases: [(&[u8], bool); 9] = [
            // mov %edx,%ss; mov %ss,%edx; mov %edx,%ds
            (&[0x8e, 0xd2], true),
            (&[0x8c, 0xd2], false),
            (&[0x8e, 0xda], false),
            // lretq; ret
            (&[0x48, 0xcb], true),
            (&[0xc3], false),
            // iretq; int $0x80; vmcall; ljmp *(%rax)
            (&[0x48, 0xcf], true),
            (&[0xcd, 0x80], true),
            (&[0x0f, 0x01, 0xc1], true),
            (&[0xff, 0x28], true),
        ];
        for (bytes, changes) in cases {
            let instruction = decode(0x1000, bytes)[0];
            assert_eq!(changes_mode(&instruction), changes, "{bytes:02x?}");
        }
    }
}
