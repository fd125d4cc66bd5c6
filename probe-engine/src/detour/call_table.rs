//! Code that looks calls up in their table ([`crate::calls`]): the registers that it takes and uses.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister32, AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, qword_ptr,
    registers as reg,
};

use crate::calls::layout::{BUCKETS, CALL_LEN, CALLS, HASH, LEVEL, WAYS};

/// Has the table's address.
pub(super) const TABLE: AsmRegister64 = reg::r9;
/// Has the address of the call's bucket of keys.
pub(super) const BUCKET: AsmRegister64 = reg::r10;
/// Has the address of the call's return address.
pub(super) const SLOT: AsmRegister64 = reg::r11;
/// Has the number of the key in the bucket.
pub(super) const WAY: AsmRegister64 = reg::rcx;

/// The key with the number in [`WAY`].
pub(super) fn key() -> AsmMemoryOperand {
    qword_ptr(BUCKET + WAY * 8)
}

/// Does the same for all keys of the bucket; the label that `code` gets leads on to the next.
pub(super) fn each_key(
    a: &mut CodeAssembler,
    code: impl FnOnce(&mut CodeAssembler, CodeLabel) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let [mut again, mut next] = std::array::from_fn(|_| a.create_label());
    a.xor(reg::ecx, reg::ecx)?;
    a.set_label(&mut again)?;
    code(a, next)?;
    a.set_label(&mut next)?;
    a.inc(reg::ecx)?;
    a.cmp(reg::ecx, WAYS as i32)?;
    a.jne(again)
}

/// Sets [`BUCKET`] from [`SLOT`], by its hash.
pub(super) fn to_bucket(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(BUCKET, HASH)?;
    a.imul_2(BUCKET, SLOT)?;
    a.shr(BUCKET, u64::BITS - BUCKETS.trailing_zeros())?;
    a.shl(BUCKET, (WAYS * 8).trailing_zeros())?;
    a.add(BUCKET, TABLE)
}

/// Makes a register the address of the call that the key is for.
pub(super) fn to_call(a: &mut CodeAssembler, call: AsmRegister64) -> Result<(), IcedError> {
    a.lea(call, key())?;
    a.sub(call, TABLE)?;
    a.shl(call, (CALL_LEN / 8).trailing_zeros())?;
    a.lea(call, qword_ptr(TABLE + call + CALLS))
}

/// Raises a level above the call's, or leads on to the next call if it is above already.
pub(super) fn above(
    a: &mut CodeAssembler,
    level: AsmRegister32,
    call: AsmRegister64,
    next: CodeLabel,
) -> Result<(), IcedError> {
    a.mov(reg::eax, dword_ptr(call + LEVEL))?;
    a.inc(reg::eax)?;
    a.cmp(reg::eax, level)?;
    a.jbe(next)?;
    a.mov(level, reg::eax)
}
