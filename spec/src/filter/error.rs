//! What is wrong with a filter.

use thiserror::Error;

use crate::argument::Span;

/// Where and why the text of a filter can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Wrong {
    /// Where it is; empty at the end of the text, where something is missing.
    pub span: Span,
    /// What is wrong.
    pub reason: Reason,
}

/// What is wrong, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// Longer than any filter.
    #[error("a filter has at most 4096 bytes")]
    TooLong,
    /// More parentheses or `!` one in the other than any filter needs.
    #[error("a filter has at most 32 `(` and `!` one in the other")]
    TooDeep,
    /// More comparisons than any filter needs.
    #[error("a filter has at most 64 comparisons")]
    TooManyTests,
    /// Nothing stands where a comparison belongs.
    #[error("a comparison belongs here, such as count > 100 or comm == \"sh\"")]
    NoTest,
    /// The text in the place of a name can't be one.
    #[error("the name of an argument, or comm, pid, tgid or cpu, belongs here")]
    BadField,
    /// The name has a suffix.
    #[error("a name has no suffix here: the argument's own type says what it is")]
    Suffix,
    /// No relation behind the name.
    #[error("one of == != < <= > >= & ~ belongs behind the name")]
    NoRelation,
    /// Nothing stands behind the relation, or nothing that is a constant.
    #[error("a number or a text in quotes belongs here")]
    NoConstant,
    /// A word that begins like a number, and isn't one.
    #[error("this is no number of 64 bits; a text that begins like one belongs in quotes")]
    BadNumber,
    /// `CPUS{1,2}`
    #[error("sets of CPUs aren't there: write cpu == 1 || cpu == 2")]
    CpuSet,
    /// A quote without its end.
    #[error("the closing quote is missing")]
    OpenQuote,
    /// A relation that isn't possible with text.
    #[error("a text is compared by ==, != or ~")]
    RelationOfText,
    /// `~` with a number.
    #[error("a pattern behind ~ is a text in quotes")]
    PatternIsNumber,
    /// `(` without its end.
    #[error("`)` is missing")]
    OpenParenthesis,
    /// `)` without its start.
    #[error("there is no `(` to this `)`")]
    CloseParenthesis,
    /// Something behind a comparison that joins nothing.
    #[error("comparisons are joined by && or ||")]
    NoJoin,
}

impl Reason {
    /// Returns the kernel's own name for this error (`ERRORS` in `kernel/trace/trace_events_filter.c`), if it has one.
    #[must_use]
    pub fn kernel_name(self) -> Option<&'static str> {
        Some(match self {
            Self::TooManyTests => "TOO_MANY_PREDS",
            Self::NoTest => "INVALID_FILTER",
            Self::BadField => "FIELD_NOT_FOUND",
            Self::NoRelation | Self::NoJoin => "INVALID_OP",
            Self::NoConstant => "INVALID_VALUE",
            Self::BadNumber => "ILLEGAL_INTVAL",
            Self::OpenQuote => "MISSING_QUOTE",
            Self::RelationOfText | Self::PatternIsNumber => "ILLEGAL_FIELD_OP",
            Self::OpenParenthesis => "TOO_MANY_OPEN",
            Self::CloseParenthesis => "TOO_MANY_CLOSE",
            Self::TooLong | Self::TooDeep | Self::Suffix | Self::CpuSet => return None,
        })
    }

    pub(crate) fn at(self, span: Span) -> Wrong {
        Wrong { span, reason: self }
    }
}
