//! From a filter back to its text.

use std::fmt::{Display, Formatter, Result, Write};

use super::{Constant, Filter, Relation, Test};

impl Display for Filter {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::All(parts) => joined(f, parts, " && ", |part| {
                matches!(part, Self::All(_) | Self::Any(_))
            }),
            Self::Any(parts) => joined(f, parts, " || ", |part| matches!(part, Self::Any(_))),
            Self::Not(of) if matches!(**of, Self::All(_) | Self::Any(_)) => write!(f, "!({of})"),
            Self::Not(of) => write!(f, "!{of}"),
            Self::Test(test) => write!(f, "{test}"),
        }
    }
}

/// Writes the parts, with parentheses around those that need them.
fn joined(
    f: &mut Formatter<'_>,
    parts: &[Filter],
    sign: &str,
    needs: impl Fn(&Filter) -> bool,
) -> Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(sign)?;
        }
        match needs(part) {
            true => write!(f, "({part})")?,
            false => write!(f, "{part}")?,
        }
    }
    Ok(())
}

impl Display for Test {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} {} {}", self.field, self.relation, self.constant)
    }
}

impl Display for Relation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Common => "&",
            Self::Matches => "~",
        })
    }
}

impl Display for Constant {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Number {
                bits,
                negative: true,
            } => write!(f, "{}", bits.cast_signed()),
            Self::Number { bits, .. } => write!(f, "{bits}"),
            Self::Text(text) => {
                let quote = if text.contains('"') { '\'' } else { '"' };
                f.write_char(quote)?;
                f.write_str(text)?;
                f.write_char(quote)
            }
        }
    }
}
