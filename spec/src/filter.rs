//! Filters: which hits of a probe count, in the form of the kernel's event filters
//! (`Documentation/trace/events.rst`, "Filter rule syntax").

mod error;
mod parse;
mod print;
mod tokens;

pub use error::{Reason, Wrong};
pub use parse::parse;

use crate::argument::Span;

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// `A && B`: all of these.
    All(Vec<Filter>),
    /// `A || B`: one of these.
    Any(Vec<Filter>),
    /// `!A`
    Not(Box<Filter>),
    /// A comparison.
    Test(Test),
}

/// A comparison of an argument, or of something else that each event has, with a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The name: of an argument, or `comm`, `pid`, `tgid`, `cpu`.
    pub field: String,
    /// Where the name is in the text.
    pub field_span: Span,
    /// How they are compared.
    pub relation: Relation,
    /// The constant.
    pub constant: Constant,
    /// Where the constant is in the text.
    pub constant_span: Span,
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// `~`: the text matches the pattern, in which `*` is any text, `?` one character, `[abc]` one of these.
    Matches,
}

/// What a value is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constant {
    /// A number: -1 is all bits.
    Number {
        /// Its bits.
        bits: u64,
        /// Whether it was written with a sign.
        negative: bool,
    },
    /// A text in quotes.
    Text(String),
}

#[cfg(test)]
mod tests;
