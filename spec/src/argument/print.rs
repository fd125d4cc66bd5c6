//! From an argument back to its text.

use std::fmt::{Display, Formatter, Result};

use super::{Argument, BaseType, Fetch, Type, Value, registers, types};

impl Display for Argument {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        write!(f, "{}", self.value)?;
        match &self.kind {
            Some(kind) => write!(f, ":{kind}"),
            None => Ok(()),
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match &self.what {
            Fetch::Register(number) => write!(f, "%{}", registers::name(*number)),
            Fetch::Flags => f.write_str("%flags"),
            Fetch::InstructionPointer => f.write_str("%ip"),
            Fetch::Address(address) => write!(f, "@{address:#x}"),
            Fetch::Symbol { name, offset: 0 } => write!(f, "@{name}"),
            Fetch::Symbol { name, offset } => write!(f, "@{name}{offset:+}"),
            Fetch::Stack => f.write_str("$stack"),
            Fetch::StackEntry(entry) => write!(f, "$stack{entry}"),
            Fetch::Argument(number) => write!(f, "$arg{number}"),
            Fetch::AllArguments => f.write_str("$arg*"),
            Fetch::ReturnValue => f.write_str("$retval"),
            Fetch::Comm => f.write_str("$comm"),
            Fetch::Number(number) => write!(f, "\\{number}"),
            Fetch::Text(text) => write!(f, "\\\"{text}\""),
            Fetch::Memory {
                offset,
                user,
                address,
            } => {
                let sign = if *offset < 0 { '-' } else { '+' };
                let user = if *user { "u" } else { "" };
                write!(f, "{sign}{user}{}({address})", offset.unsigned_abs())
            }
            Fetch::Variable(name) => f.write_str(name),
            Fetch::Member { of, arrow, field } => {
                let separator = if *arrow { "->" } else { "." };
                write!(f, "{of}{separator}{field}")
            }
        }
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.base)?;
        match self.count {
            Some(count) => write!(f, "[{count}]"),
            None => Ok(()),
        }
    }
}

impl Display for BaseType {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Self::BitField {
            width,
            offset,
            container,
        } = self
        {
            return write!(f, "b{width}@{offset}/{container}");
        }
        let name = types::NAMES.iter().find(|(_, base)| base == self);
        f.write_str(name.map_or("?", |(name, _)| name))
    }
}
