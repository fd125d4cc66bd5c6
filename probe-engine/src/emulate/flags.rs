//! The arithmetic flags.
//!
//! Source: Intel SDM vol. 1, 3.4.3.1, and the "Flags Affected" of each instruction in vol. 2. What
//! the manual leaves undefined is so here: AF is 0 after `and`, `or`, `xor`, `test` and shifts; OF
//! after a shift by more than one is as the last single shift leaves it; CF after a shift by more
//! than the operand's width is as if its bits went on with zeros. A comparison with an AMD EPYC
//! found these alike but for AF after shifts, which the EPYC sets.

pub(crate) use guest_state::x86_64::flags::{
    AC, AF, CF, DF, ID, IF, IOPL, NT, OF, PF, RF, SF, TF, VM, ZF,
};

use super::compiled::{Arithmetic, Shift, Unary, Width};

/// The six that arithmetic sets.
pub(crate) const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// What `popfq` may change at privilege level 0: not VM, VIF and VIP, and RF
/// becomes 0 (SDM vol. 2, POPF).
pub(crate) const POPPED: u64 =
    CF | PF | AF | ZF | SF | TF | IF | DF | OF | IOPL | NT | AC | ID | RF;

/// Returns ZF, SF and PF of a result.
fn of_result(width: Width, result: u64) -> u64 {
    let mut flags = 0;
    if result & width.mask() == 0 {
        flags |= ZF;
    }
    if result & width.sign() != 0 {
        flags |= SF;
    }
    if (result as u8).count_ones().is_multiple_of(2) {
        flags |= PF;
    }
    flags
}

fn when(condition: bool, flag: u64) -> u64 {
    if condition { flag } else { 0 }
}

fn add(width: Width, a: u64, b: u64, carry: u64) -> (u64, u64) {
    let wide = u128::from(a) + u128::from(b) + u128::from(carry);
    let result = wide as u64 & width.mask();
    let flags = of_result(width, result)
        | when(wide > u128::from(width.mask()), CF)
        | when((a ^ b ^ result) & 0x10 != 0, AF)
        | when((a ^ result) & (b ^ result) & width.sign() != 0, OF);
    (result, flags)
}

fn subtract(width: Width, a: u64, b: u64, borrow: u64) -> (u64, u64) {
    let result = a.wrapping_sub(b).wrapping_sub(borrow) & width.mask();
    let flags = of_result(width, result)
        | when(u128::from(a) < u128::from(b) + u128::from(borrow), CF)
        | when((a ^ b ^ result) & 0x10 != 0, AF)
        | when((a ^ b) & (a ^ result) & width.sign() != 0, OF);
    (result, flags)
}

/// Returns the result and the new RFLAGS. Bits of `a` and `b` above the width don't count.
pub(crate) fn arithmetic(
    kind: Arithmetic,
    width: Width,
    a: u64,
    b: u64,
    rflags: u64,
) -> (u64, u64) {
    let (a, b) = (a & width.mask(), b & width.mask());
    let carry = rflags & CF;
    let (result, status) = match kind {
        Arithmetic::Add => add(width, a, b, 0),
        Arithmetic::Adc => add(width, a, b, carry),
        Arithmetic::Sub | Arithmetic::Cmp => subtract(width, a, b, 0),
        Arithmetic::Sbb => subtract(width, a, b, carry),
        Arithmetic::And | Arithmetic::Test => (a & b, of_result(width, a & b)),
        Arithmetic::Or => (a | b, of_result(width, a | b)),
        Arithmetic::Xor => (a ^ b, of_result(width, a ^ b)),
    };
    (result, rflags & !STATUS | status)
}

/// The result and the new RFLAGS.
pub(crate) fn unary(kind: Unary, width: Width, a: u64, rflags: u64) -> (u64, u64) {
    let a = a & width.mask();
    match kind {
        Unary::Not => (!a & width.mask(), rflags),
        Unary::Neg => {
            let (result, status) = subtract(width, 0, a, 0);
            (result, rflags & !STATUS | status)
        }
        Unary::Inc => {
            let (result, status) = add(width, a, 1, 0);
            (result, rflags & !(STATUS & !CF) | status & !CF)
        }
        Unary::Dec => {
            let (result, status) = subtract(width, a, 1, 0);
            (result, rflags & !(STATUS & !CF) | status & !CF)
        }
    }
}

/// Returns the result and the new RFLAGS. The count is cut to five bits, six for a 64-bit operand;
/// a count of 0 leaves the flags alone.
pub(crate) fn shift(kind: Shift, width: Width, a: u64, count: u64, rflags: u64) -> (u64, u64) {
    let a = a & width.mask();
    let count = count as u32 & if width == Width::Quad { 63 } else { 31 };
    if count == 0 {
        return (a, rflags);
    }
    // 128 bits hold a shift by 31 or 63 whole, with the last bit shifted out.
    let (result, carry, overflow) = match kind {
        Shift::Left => {
            let wide = u128::from(a) << count;
            let carry = wide >> width.bits() & 1 != 0;
            let result = wide as u64 & width.mask();
            (result, carry, (result & width.sign() != 0) != carry)
        }
        Shift::LogicalRight => {
            let before = (u128::from(a) >> (count - 1)) as u64;
            let overflow = before & width.sign() != 0;
            (before >> 1, before & 1 != 0, overflow)
        }
        Shift::ArithmeticRight => {
            let before = (i128::from(width.sign_extend(a) as i64) >> (count - 1)) as i64;
            ((before >> 1) as u64 & width.mask(), before & 1 != 0, false)
        }
    };
    let status = of_result(width, result) | when(carry, CF) | when(overflow, OF);
    (result, rflags & !STATUS | status)
}

/// Returns true if condition code `condition` (its low four bits, as in the encoding of `jcc`)
/// holds.
///
/// Source: Intel SDM vol. 1, appendix B.
pub(crate) fn holds(condition: u8, rflags: u64) -> bool {
    let set = |mask| rflags & mask != 0;
    let less = set(SF) != set(OF);
    let positive = match condition >> 1 & 7 {
        0 => set(OF),
        1 => set(CF),
        2 => set(ZF),
        3 => set(CF | ZF),
        4 => set(SF),
        5 => set(PF),
        6 => less,
        _ => set(ZF) || less,
    };
    positive != (condition & 1 != 0)
}
