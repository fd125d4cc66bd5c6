//! The instructions of the kernel's text, and which of them can't be probed, as the text itself shows.

use iced_x86::{Instruction, Mnemonic, Register};

use vmprobe_client::words;

use super::code::decode;
use super::functions::Function;
use super::text::Text;

const INT3: u8 = 0xcc;

/// An instruction, and the known facts about it.
#[derive(Debug)]
pub struct Spot {
    /// Its address.
    pub at: u64,
    /// Words of the refusals that it may meet: it must be refused with one of them, or take a probe if there are none.
    pub refusals: Vec<String>,
    /// Whether it is in a function through which all functions return ([`Function::is_return_thunk`]).
    pub is_return_thunk: bool,
}

/// Returns each `step`th of all instructions, beginning with number `first`, and how many there are in all. Each
/// function is decoded from its start to the next symbol, without the int3s at its end.
pub fn every(functions: &[Function], text: &Text, step: usize, first: usize) -> (usize, Vec<Spot>) {
    let mut spots = Vec::new();
    let mut all = 0;
    for function in functions {
        let bytes = text.at(function.start, (function.end - function.start) as usize);
        let padding = bytes.iter().rev().take_while(|byte| **byte == INT3);
        let bytes = &bytes[..bytes.len() - padding.count()];
        for instruction in decode(function.start, bytes) {
            if all % step == first {
                spots.push(Spot {
                    at: instruction.ip(),
                    refusals: refusals(&instruction, function, text),
                    is_return_thunk: function.is_return_thunk(),
                });
            }
            all += 1;
        }
    }
    (all, spots)
}

/// Returns words with which the server may refuse a probe on an instruction.
fn refusals(instruction: &Instruction, function: &Function, text: &Text) -> Vec<String> {
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
    if is_trap(instruction) {
        words.push("by which the kernel itself recognizes the place".to_owned());
    }
    if changes_mode(instruction) {
        words.push("can't be probed: ".to_owned());
    }
    words
}

/// Returns true if it raises an exception on purpose (Intel SDM vol. 2, INT3, UD).
fn is_trap(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Int3 | Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2
    )
}

/// Returns true if it changes the privilege level, the code segment, the stack segment or the virtual machine.
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
