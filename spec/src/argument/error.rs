//! What is wrong with an argument.

use thiserror::Error;

use super::Span;

/// Where and why the text of an argument can't be read.
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
    /// The name is longer than the kernel takes.
    #[error("an argument's name has at most 32 bytes")]
    NameTooLong,
    /// Nothing stands before `=`.
    #[error("a name for the argument belongs before `=`")]
    NoName,
    /// The name isn't one that C has.
    #[error("an argument's name has letters, digits and _ only, and begins with no digit")]
    BadName,
    /// Another argument, or the kernel, has that name.
    #[error("this name is taken: give the argument another one, as in NAME=%di")]
    UsedName,
    /// The text behind the name is longer than the kernel takes.
    #[error("an argument has at most 63 bytes behind its name: split it, or nest less")]
    TooLong,
    /// Nothing stands behind `=`, or nowhere.
    #[error("a value belongs here, such as %di, $arg1, +8($arg1) or a parameter's name")]
    NoValue,
    /// A space in an argument.
    #[error("an argument has no spaces in it")]
    Space,
    /// The value begins with nothing that is known.
    #[error("a value begins with $, %, @, +, -, \\ or the name of a parameter")]
    BadValue,
    /// An unknown `$` variable.
    #[error("$ stands before arg1 to arg2048, arg*, retval, stack, stack0 to stack2048 or comm")]
    BadVariable,
    /// `$stackN` with too large a number.
    #[error("a stack has 2048 words at most: $stack0 to $stack2048")]
    BadStackNumber,
    /// `$arg0`, or `$argN` with too large a number.
    #[error("a function's arguments are $arg1 to $arg2048")]
    BadArgumentNumber,
    /// `$retval` on a probe that isn't a return probe.
    #[error("only a return probe has $retval: write `r FUNCTION` or FUNCTION%return")]
    ReturnValueOnProbe,
    /// `$argN` or `$arg*` inside a function.
    #[error("$arg is known at a function's entry or return only: use registers here")]
    NotAtEntry,
    /// The name of a parameter inside a function.
    #[error("parameters are known at a function's entry or return only: use registers here")]
    VariableNotAtEntry,
    /// `$arg*` with a name, with a type or in another value.
    #[error("$arg* stands alone: it has no name and no type, and nothing is around it")]
    NotAlone,
    /// More than one `$arg*`.
    #[error("$arg* can be there once only")]
    TwiceAll,
    /// More arguments than the kernel takes.
    #[error("a probe has at most 128 arguments")]
    TooMany,
    /// A name that isn't a register's.
    #[error("a register is one of ax, bx, cx, dx, si, di, bp, sp, r8 to r15, ip and flags")]
    BadRegister,
    /// A register of the kernel's that has no meaning at a probe.
    #[error("{0} is the same at every probe of the kernel, and not recorded")]
    ConstantRegister(&'static str),
    /// An address that isn't a number.
    #[error("an address behind @ is a number such as 0xffffffff82a05940")]
    BadAddress,
    /// A symbol that can't be one, or an offset that isn't a number.
    #[error("a symbol belongs behind @, and may have an offset: @jiffies, @init_task+0x10")]
    BadSymbol,
    /// `@+OFFSET`.
    #[error("@+OFFSET is a place in a file, for probes on programs; a kernel's probe has none")]
    FileOffset,
    /// `+OFFSET` without a parenthesis.
    #[error("an address in parentheses belongs behind the offset, as in +8(%di)")]
    NoParenthesis,
    /// `+OFFSET(` where the offset isn't a number.
    #[error("an offset is a number, as in +8(%di) or -0x10(%di)")]
    BadOffset,
    /// A parenthesis without its end.
    #[error("`)` is missing")]
    OpenParenthesis,
    /// Something behind the last parenthesis.
    #[error("nothing but a type can follow `)`")]
    BehindParenthesis,
    /// `$comm` or a text as an address.
    #[error("a text is no address")]
    TextAsAddress,
    /// More nested than the kernel takes.
    #[error("too deeply nested: at most 14 accesses, one in the other; @SYMBOL counts as two")]
    TooDeep,
    /// `\` without a number behind it.
    #[error("a number or a text in quotes belongs behind \\, as in \\42 or \\\"text\"")]
    BadImmediate,
    /// `\"` without its end.
    #[error("the text's closing `\"` is missing; it can't have spaces")]
    OpenText,
    /// `-` without `>`.
    #[error("a member follows with `->`, as in file->f_inode")]
    LoneHyphen,
    /// A name of a parameter that can't be one.
    #[error("a parameter's name has letters, digits and _ only")]
    BadParameter,
    /// A member's name is missing, or can't be one.
    #[error("the name of a member belongs here")]
    BadMember,
    /// `[` without its end.
    #[error("`]` is missing")]
    OpenArray,
    /// Something behind `]`.
    #[error("nothing can follow `]`")]
    BehindArray,
    /// `[COUNT]` where the count is no number, or 0.
    #[error("a number from 1 to 64 belongs into the brackets")]
    BadCount,
    /// More elements than the kernel takes.
    #[error("an array has at most 64 elements")]
    CountTooBig,
    /// An unknown type.
    #[error(
        "a type is u8 to u64, s8 to s64, x8 to x64, char, string, ustring, symbol, symstr, %pd, %pD or \
         bWIDTH@OFFSET/CONTAINER"
    )]
    BadType,
    /// A string of a value that isn't in memory.
    #[error("a string is in memory: take it from there, as in +0(%di):string")]
    BadString,
    /// A symbol's name of a value that isn't a pointer.
    #[error("symstr takes a pointer from a register, an argument or the kernel's memory")]
    BadSymbolString,
    /// A text with another type than `string`.
    #[error("a text has the type string, and is no array")]
    NeedsString,
    /// A bit-field that isn't one, or is wider than its container.
    #[error("a bit-field is bWIDTH@OFFSET/CONTAINER, within a container of 8, 16, 32 or 64 bits")]
    BadBitField,
    /// An array of a value that isn't in memory.
    #[error("an array is in memory: take it from there, as in +0(%di):u8[4]")]
    BadArray,
}

impl Reason {
    /// Returns the kernel's own name for this error (`ERRORS` in `kernel/trace/trace_probe.h`), if it has one.
    #[must_use]
    pub fn kernel_name(self) -> Option<&'static str> {
        Some(match self {
            Self::NameTooLong => "ARG_NAME_TOO_LONG",
            Self::NoName => "NO_ARG_NAME",
            Self::BadName => "BAD_ARG_NAME",
            Self::UsedName => "USED_ARG_NAME",
            Self::TooLong => "ARG_TOO_LONG",
            Self::NoValue => "NO_ARG_BODY",
            Self::BadValue => "BAD_FETCH_ARG",
            Self::BadVariable => "BAD_VAR",
            Self::BadStackNumber => "BAD_STACK_NUM",
            Self::BadArgumentNumber => "BAD_ARG_NUM",
            Self::ReturnValueOnProbe => "RETVAL_ON_PROBE",
            Self::NotAtEntry => "NOFENTRY_ARGS",
            Self::VariableNotAtEntry => "NOSUP_BTFARG",
            Self::NotAlone => "BAD_VAR_ARGS",
            Self::TwiceAll => "DOUBLE_ARGS",
            Self::TooMany => "TOO_MANY_ARGS",
            Self::BadRegister => "BAD_REG_NAME",
            Self::BadAddress => "BAD_MEM_ADDR",
            Self::FileOffset => "FILE_ON_KPROBE",
            Self::NoParenthesis => "DEREF_NEED_BRACE",
            Self::BadOffset => "BAD_DEREF_OFFS",
            Self::OpenParenthesis => "DEREF_OPEN_BRACE",
            Self::TextAsAddress => "COMM_CANT_DEREF",
            Self::TooDeep => "TOO_MANY_OPS",
            Self::BadImmediate => "BAD_IMM",
            Self::OpenText => "IMMSTR_NO_CLOSE",
            Self::LoneHyphen => "BAD_HYPHEN",
            Self::BadParameter => "NO_BTFARG",
            Self::BadMember => "NO_BTF_FIELD",
            Self::OpenArray => "ARRAY_NO_CLOSE",
            Self::BehindArray => "BAD_ARRAY_SUFFIX",
            Self::BadCount => "BAD_ARRAY_NUM",
            Self::CountTooBig => "ARRAY_TOO_BIG",
            Self::BadType => "BAD_TYPE",
            Self::BadString | Self::BadArray => "BAD_STRING",
            Self::BadSymbolString => "BAD_SYMSTRING",
            Self::NeedsString => "NEED_STRING_TYPE",
            Self::BadBitField => "BAD_BITFIELD",
            Self::Space | Self::ConstantRegister(_) | Self::BadSymbol | Self::BehindParenthesis => {
                return None;
            }
        })
    }

    /// Makes the error of this reason at a place.
    pub(crate) fn at(self, span: Span) -> Wrong {
        Wrong { span, reason: self }
    }
}
