//! The jump with which the decompressor of a bzImage enters the kernel that it has unpacked.
//!
//! Source: Linux `arch/x86/boot/compressed/head_64.S`, the end of `.Lrelocated`, the same since 3.14 whatever the
//! kernel's compression, KASLR and compiler. RAX is the physical address of the kernel's entry, which
//! `extract_kernel` returns; RSI becomes that of the zero page again:
//!
//! ```text
//!     call  extract_kernel
//!     movq  %r15, %rsi        # up to 6.3: popq %rsi
//!     jmp   *%rax
//! ```

use std::ops::Range;

/// Length of `call extract_kernel`: an opcode and a displacement of 4 bytes.
const CALL_LEN: usize = 5;
/// `call` with a displacement.
const CALL: u8 = 0xe8;
/// What comes between the call and the jump.
const RESTORES_RSI: [&[u8]; 2] = [&[0x4c, 0x89, 0xfe], &[0x5e]];
/// `jmp *%rax`.
pub(crate) const JUMP: [u8; 2] = [0xff, 0xe0];

/// Finds the jump in the code that a boot loader loads of a bzImage, whose packed kernel is at `payload`. Returns the
/// jump's offset; none unless there is exactly one.
pub(super) fn find(code: &[u8], payload: Range<usize>) -> Option<usize> {
    let before = code.get(..payload.start)?;
    let behind = code.get(payload.end..)?;
    let parts = [(0, before), (payload.end, behind)];
    let found = parts.into_iter().flat_map(|(start, part)| {
        let jumps = (0..part.len()).filter(move |at| is_last_jump(part, *at));
        jumps.map(move |at| (start, at))
    });
    let mut found = found.map(|(start, at)| start + at);
    match (found.next(), found.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

/// Returns true if the jump is at this place of a part of the code, behind a call that leads to the same part.
fn is_last_jump(part: &[u8], at: usize) -> bool {
    if !part[at..].starts_with(&JUMP) {
        return false;
    }
    RESTORES_RSI.into_iter().any(|restores| {
        let call = at.checked_sub(restores.len() + CALL_LEN);
        let call = call.filter(|call| part[*call] == CALL && part[..at].ends_with(restores));
        call.is_some_and(|call| {
            let displacement = part[call + 1..].first_chunk().copied();
            let displacement = i32::from_le_bytes(displacement.unwrap_or_default());
            let target = (call + CALL_LEN).checked_add_signed(displacement as isize);
            target.is_some_and(|target| target < part.len())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: Range<usize> = 4..40;

    /// Code with this at an offset.
    fn code(at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut code = vec![0x90; 80];
        code[at..at + bytes.len()].copy_from_slice(bytes);
        code
    }

    #[test]
    fn the_jump_is_behind_the_call_of_the_function_that_unpacks() {
        let newer = [0xe8, 4, 0, 0, 0, 0x4c, 0x89, 0xfe, 0xff, 0xe0];
        let older = [0xe8, 4, 0, 0, 0, 0x5e, 0xff, 0xe0];
        assert_eq!(find(&code(50, &newer), PAYLOAD), Some(58));
        assert_eq!(find(&code(50, &older), PAYLOAD), Some(56));
        // Backwards within the part.
        let back = [0xe8, 0xf6, 0xff, 0xff, 0xff, 0x5e, 0xff, 0xe0];
        assert_eq!(find(&code(50, &back), PAYLOAD), Some(56));
    }

    #[test]
    fn what_only_looks_like_it_is_not_taken_for_it() {
        let cases: [(usize, &[u8]); 6] = [
            // In the packed kernel.
            (10, &[0xe8, 4, 0, 0, 0, 0x5e, 0xff, 0xe0]),
            // The call leads out, to either side.
            (50, &[0xe8, 100, 0, 0, 0, 0x5e, 0xff, 0xe0]),
            (50, &[0xe8, 0, 0, 0, 0x80, 0x5e, 0xff, 0xe0]),
            // No call; another register; the end of the code.
            (50, &[0xe9, 4, 0, 0, 0, 0x5e, 0xff, 0xe0]),
            (50, &[0xe8, 4, 0, 0, 0, 0x5e, 0xff, 0xe1]),
            (73, &[0xe8, 0, 0, 0, 0, 0x5e, 0xff]),
        ];
        for (at, bytes) in cases {
            assert_eq!(find(&code(at, bytes), PAYLOAD), None, "{bytes:x?}");
        }
        let twice = [0xe8, 0, 0, 0, 0, 0x5e, 0xff, 0xe0].repeat(2);
        assert_eq!(find(&code(45, &twice), PAYLOAD), None);
        assert_eq!(find(&[0; 8], PAYLOAD), None);
    }
}
