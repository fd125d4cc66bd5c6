//! Conditions on a hit: a hit that doesn't meet them is as if it had not happened.

use std::cmp::Ordering;

use guest_state::Registers;

/// A value that a hit is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A general register, or its low part.
    Register {
        /// As instruction encodings number it: 0 is RAX, 4 is RSP, 15 is R15
        /// (Intel SDM vol. 2, table 2-4).
        number: u8,
        /// Bytes from the lowest: 1, 2, 4 or 8.
        size: u8,
    },
    /// The number of the vCPU.
    Cpu,
    /// The current thread's number, `task_struct.pid`.
    Pid,
    /// The current process' number, `task_struct.tgid`.
    Tgid,
}

/// How a value must relate to a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `&`: they have a bit in common.
    Common,
}

/// One comparison of a value with a constant. The constant has the width of the value: as many of its
/// low bytes count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Comparison {
    /// The value.
    pub operand: Operand,
    /// How it must relate to `constant`.
    pub relation: Relation,
    /// What it is compared with.
    pub constant: u64,
    /// Whether both are signed numbers.
    pub signed: bool,
}

impl Operand {
    /// Bytes of the value.
    pub fn size(self) -> u8 {
        match self {
            Self::Register { size, .. } => size,
            Self::Cpu | Self::Pid | Self::Tgid => 4,
        }
    }

    /// Returns true if the value is read from the current task.
    pub fn is_of_task(self) -> bool {
        matches!(self, Self::Pid | Self::Tgid)
    }
}

/// The values at a hit that aren't in the registers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The number of the vCPU.
    pub cpu: u32,
    /// `task_struct.pid`, if it could be read.
    pub pid: Option<u32>,
    /// `task_struct.tgid`, if it could be read.
    pub tgid: Option<u32>,
}

impl Comparison {
    /// Returns true if the compared value could be read.
    pub fn is_known(&self, context: &Context) -> bool {
        match self.operand {
            Operand::Register { .. } | Operand::Cpu => true,
            Operand::Pid => context.pid.is_some(),
            Operand::Tgid => context.tgid.is_some(),
        }
    }

    /// Returns true if a hit with these values meets the comparison. A value that can't be read
    /// meets none.
    pub fn holds(&self, registers: &Registers, context: &Context) -> bool {
        let value = match self.operand {
            Operand::Register { number, .. } => Some(registers.by_number(number)),
            Operand::Cpu => Some(context.cpu.into()),
            Operand::Pid => context.pid.map(u64::from),
            Operand::Tgid => context.tgid.map(u64::from),
        };
        let Some(value) = value else {
            return false;
        };
        let size = self.operand.size();
        let (value, constant) = (low(value, size), low(self.constant, size));
        let ordering = if self.signed {
            extended(value, size).cmp(&extended(constant, size))
        } else {
            value.cmp(&constant)
        };
        self.relation.holds(ordering, value & constant)
    }
}

impl Relation {
    /// Returns true if the relation holds for two values with this ordering and these bits in
    /// common.
    pub(crate) fn holds(self, ordering: Ordering, common: u64) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
            Self::Common => common != 0,
        }
    }
}

/// Bits above the lowest `size` bytes.
fn unused(size: u8) -> u32 {
    64 - 8 * u32::from(size.clamp(1, 8))
}

fn low(value: u64, size: u8) -> u64 {
    value << unused(size) >> unused(size)
}

fn extended(value: u64, size: u8) -> i64 {
    (value << unused(size)).cast_signed() >> unused(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rdi(relation: Relation, constant: u64, size: u8, signed: bool) -> Comparison {
        Comparison {
            operand: Operand::Register { number: 7, size },
            relation,
            constant,
            signed,
        }
    }

    #[test]
    fn only_the_compared_part_of_a_register_counts_with_or_without_its_sign() {
        use Relation::{Common, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        let minus_one = u64::MAX;
        for (relation, rdi, constant, size, signed, holds) in [
            (Equal, 0xffff_0003, 3, 2, false, true),
            (Equal, 0xffff_0003, 3, 4, false, false),
            (Equal, 0xffff_ffff, minus_one, 4, true, true),
            (Equal, 0xffff_ffff, minus_one, 8, true, false),
            (NotEqual, 4, 3, 8, false, true),
            (Less, minus_one, 0, 8, true, true),
            (Less, minus_one, 0, 8, false, false),
            (LessOrEqual, 3, 3, 1, false, true),
            (Greater, 0x80, 0x7f, 1, false, true),
            (Greater, 0x80, 0x7f, 1, true, false),
            (GreaterOrEqual, 0x7f, 0x80, 1, true, true),
            (Common, 6, 4, 8, false, true),
            (Common, 0x106, 0x100, 1, false, false),
        ] {
            let registers = Registers {
                rdi,
                ..Registers::default()
            };
            let comparison = of_rdi(relation, constant, size, signed);
            assert_eq!(
                comparison.holds(&registers, &Context::default()),
                holds,
                "{comparison:x?} of {rdi:#x}"
            );
        }
    }

    #[test]
    fn a_task_that_could_not_be_read_meets_nothing() {
        let comparison = Comparison {
            operand: Operand::Pid,
            relation: Relation::NotEqual,
            constant: 1,
            signed: false,
        };
        let of = |pid| Context {
            pid,
            ..Context::default()
        };
        let registers = Registers::default();
        assert!(comparison.holds(&registers, &of(Some(2))));
        assert!(!comparison.holds(&registers, &of(Some(1))));
        assert!(!comparison.holds(&registers, &of(None)));
    }
}
