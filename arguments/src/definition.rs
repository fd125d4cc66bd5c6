//! Arguments as text again, in one form for each.

use std::fmt::Write as _;

use vmprobe_spec::argument::{Argument, BaseType, Fetch, Type, Value};

/// The general registers by number, as the kernel names them (`arch/x86/kernel/ptrace.c`).
const REGISTERS: [&str; 16] = [
    "ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
/// Deeper values than any argument's text has room for.
pub(crate) const MAX_DEPTH: usize = 256;

/// The text of an argument, without its name.
pub(crate) fn definition(argument: &Argument) -> String {
    let mut text = String::new();
    value(&argument.value, MAX_DEPTH, &mut text);
    if let Some(kind) = &argument.kind {
        text.push(':');
        type_text(kind, &mut text);
    }
    text
}

fn value(of: &Value, depth: usize, text: &mut String) {
    let Some(depth) = depth.checked_sub(1) else {
        text.push_str("...");
        return;
    };
    // Writing to a `String` doesn't fail.
    let _ = match &of.what {
        Fetch::Register(number) => {
            let name = REGISTERS.get(usize::from(*number)).unwrap_or(&"?");
            write!(text, "%{name}")
        }
        Fetch::Flags => write!(text, "%flags"),
        Fetch::InstructionPointer => write!(text, "%ip"),
        Fetch::Address(address) => write!(text, "@{address:#x}"),
        Fetch::Symbol { name, offset: 0 } => write!(text, "@{name}"),
        Fetch::Symbol { name, offset } => write!(text, "@{name}{offset:+}"),
        Fetch::Stack => write!(text, "$stack"),
        Fetch::StackEntry(number) => write!(text, "$stack{number}"),
        Fetch::Argument(number) => write!(text, "$arg{number}"),
        Fetch::AllArguments => write!(text, "$arg*"),
        Fetch::ReturnValue => write!(text, "$retval"),
        Fetch::Comm => write!(text, "$comm"),
        Fetch::Number(number) => write!(text, "\\{number}"),
        Fetch::Text(constant) => write!(text, "\\\"{constant}\""),
        Fetch::Memory {
            offset,
            user,
            address,
        } => {
            let sign = if *offset < 0 { '-' } else { '+' };
            let user = if *user { "u" } else { "" };
            let _ = write!(text, "{sign}{user}{}(", offset.unsigned_abs());
            value(address, depth, text);
            write!(text, ")")
        }
        Fetch::Variable(name) => write!(text, "{name}"),
        Fetch::Member { of, arrow, field } => {
            value(of, depth, text);
            write!(text, "{}{field}", if *arrow { "->" } else { "." })
        }
    };
}

fn type_text(of: &Type, text: &mut String) {
    let _ = match of.base {
        BaseType::Unsigned(bits) => write!(text, "u{bits}"),
        BaseType::Signed(bits) => write!(text, "s{bits}"),
        BaseType::Hex(bits) => write!(text, "x{bits}"),
        BaseType::Char => write!(text, "char"),
        BaseType::String => write!(text, "string"),
        BaseType::UserString => write!(text, "ustring"),
        BaseType::Symbol => write!(text, "symbol"),
        BaseType::SymbolString => write!(text, "symstr"),
        BaseType::BitField {
            width,
            offset,
            container,
        } => write!(text, "b{width}@{offset}/{container}"),
    };
    if let Some(count) = of.count {
        let _ = write!(text, "[{count}]");
    }
}
