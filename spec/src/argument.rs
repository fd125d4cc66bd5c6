//! The arguments of a probe: values that each of its events has, in the grammar of the kernel's
//! `kprobe_events` (`Documentation/trace/kprobetrace.rst`), with the names of C besides.

mod check;
mod error;
mod parse;
mod print;
mod registers;
mod types;
mod value;

use std::ops::Range;

pub use check::Site;
pub use error::{Reason, Wrong};
pub use parse::parse;

/// A part of the text, in bytes from its start.
pub type Span = Range<usize>;

/// One argument: `NAME=VALUE:TYPE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name, if it has one of its own.
    pub name: Option<String>,
    /// The value.
    pub value: Value,
    /// How the value is read and shown; the kernel's types say so where it is `None`.
    pub kind: Option<Type>,
    /// Where it is in the text.
    pub span: Span,
}

/// A value, and where it is in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// What it is.
    pub what: Fetch,
    /// Where it is in the text.
    pub span: Span,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// `%ax`: a general register, by its number in instruction encodings (Intel SDM vol. 2, table 2-4).
    Register(u8),
    /// `%flags`
    Flags,
    /// `%ip`
    InstructionPointer,
    /// `@0xADDRESS`: what is in memory there.
    Address(u64),
    /// `@SYMBOL+OFFSET`: what is in memory there.
    Symbol {
        /// The symbol.
        name: String,
        /// Bytes from it.
        offset: i64,
    },
    /// `$stack`: the address of the stack's top.
    Stack,
    /// `$stackN`: the word of that number on the stack.
    StackEntry(u32),
    /// `$argN`: the function's argument of that number, from 1.
    Argument(u32),
    /// `$arg*`: all of the function's arguments, by the names that the kernel's types give them.
    AllArguments,
    /// `$retval`: what the function returns.
    ReturnValue,
    /// `$comm`: the name of the current task.
    Comm,
    /// `\NUMBER`
    Number(i64),
    /// `\"TEXT"`
    Text(String),
    /// `+OFFSET(VALUE)`, or `+uOFFSET(VALUE)` for the memory of the process: what is in memory there.
    Memory {
        /// Bytes from the address.
        offset: i64,
        /// Whether it is memory of the process, and not the kernel's.
        user: bool,
        /// The address.
        address: Box<Value>,
    },
    /// A parameter of the function, by its name in C.
    Variable(String),
    /// `VALUE->FIELD` and `VALUE.FIELD`: a member of a structure.
    Member {
        /// The structure, or a pointer to it.
        of: Box<Value>,
        /// Whether it is a pointer.
        arrow: bool,
        /// The member's name.
        field: String,
    },
}

/// How a value is read and shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// What a single one is.
    pub base: BaseType,
    /// `[COUNT]`: how many there are, one behind the other in memory.
    pub count: Option<u32>,
    /// Where it is in the text.
    pub span: Span,
}

/// What a single value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseType {
    /// `u8` to `u64`: this many bits, shown in decimal.
    Unsigned(u8),
    /// `s8` to `s64`: this many bits, shown in decimal.
    Signed(u8),
    /// `x8` to `x64`: this many bits, shown in hexadecimal.
    Hex(u8),
    /// `char`
    Char,
    /// `string`
    String,
    /// `ustring`
    UserString,
    /// `symbol`: a pointer, shown as symbol and offset.
    Symbol,
    /// `symstr`: the same as a string, recorded as text.
    SymbolString,
    /// `%pd`: the name of the `struct dentry` that is pointed to.
    NameOfDentry,
    /// `%pD`: the name of the `struct file` that is pointed to.
    NameOfFile,
    /// `bWIDTH@OFFSET/CONTAINER`: bits.
    BitField {
        /// How many.
        width: u8,
        /// The first, from the lowest.
        offset: u8,
        /// The size in bits of what they are in.
        container: u8,
    },
}

#[cfg(test)]
mod tests;
