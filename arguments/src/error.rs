//! Why an argument can't be compiled.

use guest_kernel::symbols::LookupError;
use thiserror::Error;
use vmprobe_spec::argument::Span;

/// Why an argument can't be compiled, and where in its text that is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{cause}")]
pub struct CompileError {
    /// The part of the text.
    pub span: Span,
    /// The reason.
    pub cause: Cause,
}

/// The reason why an argument can't be compiled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Cause {
    /// `$retval` where nothing has returned.
    #[error("$retval is only for return probes: `FUNCTION%return`")]
    ReturnValueElsewhere,
    /// `$retval` of a function that returns nothing.
    #[error("{function} returns nothing")]
    NoReturnValue {
        /// The function.
        function: String,
    },
    /// A function's argument where its registers may hold something else by now.
    #[error(
        "arguments are known at a function's entry and in return probes only; name a register, such as \
         %di, for a probe inside the function"
    )]
    NotAtEntry,
    /// An argument on the stack, after the call.
    #[error(
        "argument {number} is on the stack, and the function may have changed it before it returned; \
         only the first 6 are kept for return probes"
    )]
    StackArgumentOnReturn {
        /// Its number, from 1.
        number: u32,
    },
    /// There is no such number.
    #[error("there is no argument of number {number}: they are counted from 1, up to 2048")]
    ArgumentNumber {
        /// The number.
        number: u32,
    },
    /// There is no such number.
    #[error("the stack has no word of number {number}: the last one is 2048")]
    StackNumber {
        /// The number.
        number: u32,
    },
    /// There is no such register.
    #[error("there is no general register of number {number}")]
    RegisterNumber {
        /// The number.
        number: u8,
    },
    /// Names in a function that the types don't describe.
    #[error("no BTF for {function}: use $arg1 or %di")]
    NoTypes {
        /// The function.
        function: String,
    },
    /// The same in a function of a module.
    #[error("no BTF for {function}: load the module first, or use $arg1 or %di")]
    NoModuleTypes {
        /// The function, with its module.
        function: String,
    },
    /// No parameter of the name.
    #[error("{function} has no parameter {name:?}{}", choice(.similar, .all))]
    NoParameter {
        /// The function.
        function: String,
        /// The name.
        name: String,
        /// Similar names, the most similar first.
        similar: Vec<String>,
        /// All names that there are.
        all: Vec<String>,
    },
    /// A parameter that is passed in memory.
    #[error(
        "parameter {name:?} is {type_text:?}, passed by value on the stack; where there it and those after it are \
         depends on more than the types tell"
    )]
    ByValue {
        /// The parameter.
        name: String,
        /// Its type.
        type_text: String,
    },
    /// A member of a value without a known type.
    #[error("the type of this value isn't known, so it has no members; use +OFFSET(...)")]
    Untyped,
    /// An arrow behind a value that isn't a pointer.
    #[error("{type_text:?} is no pointer{}", if *.composite { "; use `.`" } else { "" })]
    NotPointer {
        /// The type.
        type_text: String,
        /// Whether it is a struct or union.
        composite: bool,
    },
    /// A dot behind a value that isn't a struct or union.
    #[error("{type_text:?} is no struct or union{}", if *.pointer { "; use `->`" } else { "" })]
    NotStruct {
        /// The type.
        type_text: String,
        /// Whether it is a pointer.
        pointer: bool,
    },
    /// The members of a struct aren't known.
    #[error("the kernel's types don't tell what is in {type_text:?}; use +OFFSET(...)")]
    Incomplete {
        /// The type.
        type_text: String,
    },
    /// No member of the name.
    #[error("{type_text:?} has no member {name:?}{}", hint(.similar))]
    NoMember {
        /// The struct or union.
        type_text: String,
        /// The name.
        name: String,
        /// Similar names, the most similar first.
        similar: Vec<String>,
    },
    /// A value that can't be shown by its own type.
    #[error("a value of the type {type_text:?} can't be shown; give it a type, such as `:x64`")]
    Unshowable {
        /// Its type.
        type_text: String,
    },
    /// The kernel's types are damaged.
    #[error("the kernel's types are damaged here; use $arg1 or %di, and +OFFSET(...)")]
    Damaged,
    /// A symbol that isn't there, or isn't unique.
    #[error(transparent)]
    Symbol(LookupError),
    /// A variable of which each CPU has its own.
    #[error("{name} is a per-CPU variable, and the symbol is no address")]
    PerCpu {
        /// The symbol.
        name: String,
    },
    /// `$comm` or a text where an address is needed.
    #[error("$comm and a text can't be dereferenced")]
    NoAddress,
    /// `$comm` in a kernel without types.
    #[error(
        "where a task has its name isn't known: the kernel was built without BTF (CONFIG_DEBUG_INFO_BTF)"
    )]
    NoComm,
    /// `%pd` or `%pD` in a kernel without types.
    #[error(
        "where a file has its name isn't known: the kernel was built without BTF (CONFIG_DEBUG_INFO_BTF)"
    )]
    NoNameOfDentry,
    /// `$comm` or a text of another type.
    #[error("$comm and a text are of the type string, and no array")]
    StringOnly,
    /// A string that isn't in memory.
    #[error("this value is no address of text: string needs memory, such as +0($stack0)")]
    NoString,
    /// A string of a type that isn't text.
    #[error("{type_text:?} is no text; use +0(...):string if it is there all the same")]
    NotText {
        /// The type.
        type_text: String,
    },
    /// A symbol of a value that can't be one.
    #[error("symstr is for registers, arguments, words of the stack and the kernel's memory")]
    NoSymbolString,
    /// An array in a register.
    #[error("an array needs memory, such as +0(%si):x64[2]")]
    ArrayNeedsMemory,
    /// An array of a type that has no arrays.
    #[error("there are no arrays of symstr; use symbol")]
    NoSuchArray,
    /// An array of no or too many elements.
    #[error("an array has 1 to 64 elements, not {count}")]
    ArrayLength {
        /// How many.
        count: u32,
    },
    /// A bit field that isn't in its container, or whose container isn't 8, 16, 32 or 64 bits.
    #[error(
        "b{width}@{offset}/{container} is no bit field: WIDTH is at least 1, CONTAINER is 8, 16, 32 or 64, \
         and the last bit, WIDTH+OFFSET, is in it"
    )]
    BitField {
        /// How many bits.
        width: u8,
        /// The first bit.
        offset: u8,
        /// The size in bits of what they are in.
        container: u8,
    },
    /// A number of bits that there is no type for.
    #[error("there is no number of {bits} bits: it is 8, 16, 32 or 64")]
    NumberSize {
        /// How many bits.
        bits: u8,
    },
    /// Too many pointers, one after the other.
    #[error("a value follows at most 14 pointers")]
    TooManyLoads,
    /// An offset beyond 64 bits.
    #[error("the offset is too large")]
    OffsetTooLarge,
    /// `$arg*` with a name or a type.
    #[error("$arg* has the parameters' own names and types; name each parameter for others")]
    AllArgumentsAlone,
    /// `$arg*` inside another value.
    #[error("$arg* is several values, and stands alone")]
    AllArgumentsInside,
}

fn hint(similar: &[String]) -> String {
    if similar.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", similar.join(", "))
    }
}

fn choice(similar: &[String], all: &[String]) -> String {
    match (similar, all) {
        ([], []) => "; it has none".to_owned(),
        ([], all) => format!("; it has {}", all.join(", ")),
        (similar, _) => hint(similar),
    }
}
