use std::sync::Arc;

use guest_kernel::btf::Btf;
use guest_kernel::btf::synthetic::Builder;
use guest_kernel::percpu::Variables;
use guest_kernel::symbols::Symbols;
use guest_kernel::symbols::synthetic::{Layout, TEXT, vmlinux};
use probe_engine::value::{Base, Load, Space, Take, Value as Taking};
use vmprobe_spec::argument::{Argument, BaseType, Fetch, Type, Value};

use super::*;

mod refused;
mod shown;
mod taken;

/// A kernel with some functions.
struct Guest {
    symbols: Symbols,
    types: Arc<Btf>,
    variables: Variables,
}

impl Guest {
    fn new() -> Self {
        let symbols = [
            (0, 'A', "__per_cpu_start"),
            (0x40, 'A', "runqueues"),
            (0x1000, 'A', "__per_cpu_end"),
            (TEXT, 'T', "_stext"),
            (TEXT + 0x10, 'T', "vfs_read"),
            (TEXT + 0x40, 't', "twice"),
            (TEXT + 0x50, 't', "twice"),
            (TEXT + 0x80, 'T', "_etext"),
            (TEXT + 0x100, 'D', "jiffies_64"),
            (TEXT + 0x200, 'D', "end"),
        ];
        let symbols: Vec<_> = symbols
            .into_iter()
            .map(|(address, kind, name)| (address, kind, name.to_owned()))
            .collect();
        Self {
            symbols: Symbols::from_vmlinux(&vmlinux(&symbols, Layout::V6_4)).unwrap(),
            types: Arc::new(Btf::parse(&section().bytes()).unwrap()),
            variables: Variables {
                comm: Some(0x750),
                ..Variables::default()
            },
        }
    }

    fn known(&self) -> Known<'_> {
        Known {
            symbols: &self.symbols,
            types: Some(&self.types),
            variables: &self.variables,
        }
    }

    fn compile(
        &self,
        function: Function<'_>,
        argument: &Argument,
    ) -> Result<Vec<Compiled>, CompileError> {
        compile(argument, 0, &function, &self.known())
    }

    fn one(&self, function: Function<'_>, argument: &Argument) -> Compiled {
        let mut all = self.compile(function, argument).unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }
}

/// `vfs_read`, and others whose parameters are of all types.
fn section() -> Builder {
    let mut b = Builder::new();
    let int = b.signed("int", 4);
    let long = b.signed("long int", 8);
    let unsigned = b.int("long unsigned int", 8);
    let small = b.int("short unsigned int", 2);
    let char = b.int("char", 1);
    let byte = b.int("unsigned char", 1);
    let wide = b.int("__int128 unsigned", 16);
    let bool = b.boolean();
    let size = b.typedef("size_t", unsigned);
    let constant = b.constant(char);
    let text = b.pointer(constant);
    let texts = b.pointer(text);
    let void = b.pointer(0);
    let kind = b.enumeration("kind", &[("NONE", 0), ("SOME", 1), ("BAD", -1)]);
    let secret = b.forward("secret");
    let secret = b.pointer(secret);
    let name = b.array(char, 8);
    let raw = b.array(byte, 40);
    let numbers = b.array(int, 3);
    let rest = b.array(int, 0);
    let huge = b.array(unsigned, 1000);
    let qstr = b.structure("qstr", 16, &[("len", int, 0), ("name", text, 8)]);
    let qstr_union = b.union("", 16, &[("d_name", qstr, 0), ("d_hash", unsigned, 0)]);
    let dentry = b.structure("dentry", 104, &[("", qstr_union, 32), ("d_iname", raw, 56)]);
    let dentry = b.pointer(dentry);
    let path = b.structure("path", 16, &[("mnt", void, 0), ("dentry", dentry, 8)]);
    let inode = b.structure(
        "inode",
        80,
        &[("i_ino", unsigned, 64), ("i_kind", kind, 72)],
    );
    let inode = b.pointer(inode);
    let bits = b.bit_fields(
        "bits",
        8,
        &[
            ("low", small, 0, 3),
            ("kind", kind, 3, 2),
            ("across", long, 13, 20),
        ],
    );
    let file = b.structure(
        "file",
        8200,
        &[
            ("f_mode", int, 12),
            ("f_inode", inode, 40),
            ("f_path", path, 64),
            ("f_pos", long, 112),
            ("name", name, 120),
            ("numbers", numbers, 128),
            ("bits", bits, 144),
            ("secret", secret, 152),
            ("ok", bool, 160),
            ("wide", wide, 176),
            ("huge", huge, 192),
            ("rest", rest, 8192),
        ],
    );
    let constant_file = b.constant(file);
    let file_pointer = b.pointer(constant_file);
    b.function_returning(
        "vfs_read",
        &[
            ("file", file_pointer),
            ("buf", text),
            ("count", size),
            ("pos", void),
        ],
        long,
    );
    b.function_returning(
        "many",
        &[
            ("a", int),
            ("b", bool),
            ("c", kind),
            ("d", small),
            ("", texts),
            ("f", char),
            ("g", long),
            ("h", int),
        ],
        file_pointer,
    );
    b.function_returning(
        "by_value",
        &[("first", int), ("path", path), ("after", int)],
        path,
    );
    let pte = b.structure("pte_t", 8, &[("pte", unsigned, 0)]);
    let either = b.union("", 8, &[("kernel", void, 0), ("user", void, 0)]);
    let pointer = b.structure("sockptr_t", 16, &[("", either, 0), ("is_kernel", bool, 8)]);
    let half = b.structure("half", 4, &[("b", small, 0), ("c", small, 2)]);
    let parts = b.structure("parts", 8, &[("a", small, 2), ("half", half, 4)]);
    let pair = b.structure("pair", 16, &[("low", unsigned, 0), ("high", unsigned, 8)]);
    let packed = b.structure("packed", 12, &[("a", int, 0), ("b", unsigned, 4)]);
    let big = b.structure("big", 24, &[("pair", pair, 0), ("rest", unsigned, 16)]);
    b.function_returning(
        "in_words",
        &[
            ("first", int),
            ("pte", pte),
            ("pointer", pointer),
            ("parts", parts),
            ("after", int),
            ("pair", pair),
            ("more", int),
        ],
        pointer,
    );
    b.function_returning(
        "in_memory",
        &[
            ("first", int),
            ("big", big),
            ("packed", packed),
            ("after", int),
            ("c", int),
            ("d", int),
            ("e", int),
            ("f", int),
        ],
        big,
    );
    b.function("nothing", &[]);
    b
}

const AT_ENTRY: Function<'_> = Function {
    name: "vfs_read",
    module: "",
    place: Place::Entry,
};
const AT_RETURN: Function<'_> = Function {
    place: Place::Return,
    ..AT_ENTRY
};
const INSIDE: Function<'_> = Function {
    place: Place::Inside,
    ..AT_ENTRY
};
const MANY: Function<'_> = Function {
    name: "many",
    ..AT_ENTRY
};
const UNKNOWN: Function<'_> = Function {
    name: "unknown",
    ..AT_ENTRY
};

/// A value at no place in particular.
fn value(what: Fetch) -> Value {
    Value { what, span: 0..0 }
}

fn register(number: u8) -> Value {
    value(Fetch::Register(number))
}

fn variable(name: &str) -> Value {
    value(Fetch::Variable(name.to_owned()))
}

fn symbol(name: &str, offset: i64) -> Value {
    let name = name.to_owned();
    value(Fetch::Symbol { name, offset })
}

fn memory(offset: i64, address: Value) -> Value {
    value(Fetch::Memory {
        offset,
        user: false,
        address: Box::new(address),
    })
}

fn user_memory(offset: i64, address: Value) -> Value {
    value(Fetch::Memory {
        offset,
        user: true,
        address: Box::new(address),
    })
}

fn member(of: Value, arrow: bool, field: &str) -> Value {
    value(Fetch::Member {
        of: Box::new(of),
        arrow,
        field: field.to_owned(),
    })
}

/// `path("file->f_path.dentry")`, also with `$retval` and `$arg1` in front.
fn path(text: &str) -> Value {
    let spaced = text.replace("->", " > ").replace('.', " . ");
    let mut words = spaced.split(' ');
    let first = words.next().unwrap();
    let mut found = match first.strip_prefix("$arg") {
        _ if first == "$retval" => value(Fetch::ReturnValue),
        Some(number) => value(Fetch::Argument(number.parse().unwrap())),
        None => variable(first),
    };
    while let Some(step) = words.next() {
        found = member(found, step == ">", words.next().unwrap());
    }
    found
}

fn argument(value: Value) -> Argument {
    Argument {
        name: None,
        value,
        kind: None,
        span: 0..0,
    }
}

fn of_type(value: Value, base: BaseType) -> Argument {
    array_of(value, base, None)
}

fn array_of(value: Value, base: BaseType, count: Option<u32>) -> Argument {
    Argument {
        kind: Some(Type {
            base,
            count,
            span: 0..0,
        }),
        ..argument(value)
    }
}

const REGISTERS: [&str; 16] = [
    "ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

/// A value to take as a short text: `di +40 +64/8` follows the pointer at rdi+40 and takes 8 bytes 64 behind
/// that. `"` is for text, `u` for memory of the process.
fn short(taking: &Taking) -> String {
    let load = |at: &Load| {
        let space = if at.space == Space::User { "u" } else { "" };
        format!("{:+}{space}", at.offset)
    };
    let mut text = match taking.base {
        Base::Register(number) => REGISTERS[usize::from(number)].to_owned(),
        Base::EntryRegister(number) => format!("entry-{}", REGISTERS[usize::from(number)]),
        Base::Flags => "flags".to_owned(),
        Base::InstructionPointer => "ip".to_owned(),
        Base::Constant(number) => format!("{number:#x}"),
        Base::Task => "task".to_owned(),
        Base::Cpu => "cpu".to_owned(),
    };
    for at in &taking.loads {
        text += &format!(" {}", load(at));
    }
    match &taking.take {
        Take::Word => text,
        Take::Memory { at, len } => format!("{text} {}/{len}", load(at)),
        Take::Text { at, most } => format!("{text} {}\"{most}", load(at)),
        Take::Stack { at, most } => format!("{text} {}<{most}", load(at)),
    }
}

/// All values of an argument, with how they are shown.
fn shorts(compiled: &Compiled) -> String {
    let values: Vec<_> = compiled.values.iter().map(short).collect();
    let told = compiled.told();
    let kind = format!("{:?}", told.format()).to_lowercase();
    let count = match told.elements {
        0 => String::new(),
        count => format!("[{count}]"),
    };
    let size = match told.size {
        0 => String::new(),
        size => size.to_string(),
    };
    format!("{}: {kind}{size}{count}", values.join(", "))
}
