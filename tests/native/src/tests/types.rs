//! Arguments by name, and types and values as C, in Debian's kernels.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use guest_kernel::Kernel;
use probe_engine::value::{Base, Load, Space, Take, Taken, VALUE_MAX};
use vmm::boot::bzimage::read_kernel;
use vmprobe_arguments::{Cause, Function, Known, Place, compile};
use vmprobe_spec::argument::{Argument, BaseType, Fetch, Type, Value};

static KERNELS: LazyLock<Vec<(String, Kernel)>> = LazyLock::new(|| {
    let kernels = lab::ensure_kernels().unwrap();
    let read = |kernel: lab::Kernel| {
        let file = std::fs::read(&kernel.vmlinuz).unwrap();
        let elf = read_kernel(file).unwrap().elf;
        (kernel.release, Kernel::from_image(&elf).unwrap())
    };
    [kernels.v6_1, kernels.v6_12]
        .into_iter()
        .map(read)
        .collect()
});

/// `path(&["file", "->f_path", ".dentry"])`
fn path(steps: &[&str]) -> Value {
    let mut what = Fetch::Variable(steps[0].to_owned());
    for step in &steps[1..] {
        let arrow = step.starts_with("->");
        what = Fetch::Member {
            of: Box::new(Value { what, span: 0..0 }),
            arrow,
            field: step.trim_start_matches(['-', '>', '.']).to_owned(),
        };
    }
    Value { what, span: 0..0 }
}

fn argument(value: Value, base: Option<BaseType>) -> Argument {
    let kind = base.map(|base| Type {
        base,
        count: None,
        span: 0..0,
    });
    Argument {
        name: None,
        value,
        kind,
        span: 0..0,
    }
}

#[test]
fn names_lead_where_debians_kernels_have_their_members() {
    for (release, kernel) in &*KERNELS {
        let types = kernel.types.as_ref().expect("Debian's kernels have types");
        let prototype = types.prototype("vfs_read").unwrap();
        let parameters: Vec<_> = prototype
            .parameters
            .iter()
            .map(|parameter| types.declarator(parameter.type_id, parameter.name))
            .collect();
        let expected = [
            "struct file *file",
            "char *buf",
            "size_t count",
            "loff_t *pos",
        ];
        assert_eq!(parameters, expected, "{release}");
        assert_eq!(types.type_text(prototype.returns), "ssize_t", "{release}");

        let function = Function {
            name: "vfs_read",
            module: "",
            place: Place::Entry,
        };
        let known = Known::from(kernel);
        let offset = |of: &str, member: &str| types.member(of, member).unwrap().offset as i64;
        let load = |offset| Load {
            offset,
            space: Space::Any,
        };
        let name = path(&["file", "->f_path", ".dentry", "->d_name", ".name"]);
        let name = argument(name, Some(BaseType::String));
        let compiled = compile(&name, 0, &function, &known).unwrap().remove(0);
        let value = &compiled.values[0];
        assert_eq!(value.base, Base::Register(7), "{release}");
        assert_eq!(
            value.loads,
            [
                load(offset("file", "f_path.dentry")),
                load(offset("dentry", "d_name.name")),
            ],
            "{release}"
        );
        let text = Take::Text {
            at: load(0),
            most: 256,
        };
        assert_eq!(value.take, text, "{release}");

        let inode = path(&["file", "->f_inode", "->i_ino"]);
        let compiled = compile(&argument(inode, None), 0, &function, &known).unwrap();
        let value = &compiled[0].values[0];
        assert_eq!(value.loads, [load(offset("file", "f_inode"))], "{release}");
        let taken = Take::Memory {
            at: load(offset("inode", "i_ino")),
            len: 8,
        };
        assert_eq!(value.take, taken, "{release}");
    }
}

#[test]
fn structures_that_debians_kernels_pass_in_registers_have_their_members() {
    // A register each for `kuid_t`, two for `sockptr_t`; `len` comes after it.
    let cases = [
        ("from_kuid_munged", path(&["kuid", ".val"]), 6),
        ("sock_setsockopt", path(&["optval", ".kernel"]), 1),
        ("sock_setsockopt", path(&["optval", ".is_kernel"]), 8),
        ("sock_setsockopt", path(&["optlen"]), 9),
    ];
    for (release, kernel) in &*KERNELS {
        for (name, value, register) in &cases {
            let function = Function {
                name,
                module: "",
                place: Place::Entry,
            };
            let known = Known::from(kernel);
            let compiled = compile(&argument(value.clone(), None), 0, &function, &known);
            let values = compiled.unwrap().remove(0).values;
            let [value] = values.as_slice() else {
                panic!("{release}: {name}: {values:?}");
            };
            assert_eq!(value.base, Base::Register(*register), "{release}: {name}");
            assert_eq!(value.take, Take::Word, "{release}: {name}");
        }
    }
}

/// A value that isn't compiled is refused for a reason that the function's types show.
#[test]
fn all_functions_of_debians_kernels_have_their_arguments_by_name() {
    for (release, kernel) in &*KERNELS {
        let types = kernel.types.as_ref().unwrap();
        let known = Known::from(kernel);
        let all = argument(
            Value {
                what: Fetch::AllArguments,
                span: 0..0,
            },
            None,
        );
        let (mut functions, mut arguments) = (0_u32, 0_usize);
        let mut refused = BTreeMap::<&str, u32>::new();
        for symbol in kernel.symbols.iter() {
            if !kernel.symbols.is_text(symbol.address) || !types.has_function(symbol.name) {
                continue;
            }
            for place in [Place::Entry, Place::Return] {
                let function = Function {
                    name: symbol.name,
                    module: "",
                    place,
                };
                functions += 1;
                match compile(&all, 0, &function, &known) {
                    Ok(all) => {
                        arguments += all.len();
                        for compiled in all {
                            let taken = [Taken::Bytes(vec![0xff; VALUE_MAX.into()])];
                            let shown = compiled.format.show(Some(types), &kernel.symbols, &taken);
                            assert!(shown.value.is_some(), "{}", symbol.name);
                        }
                    }
                    Err(error) => {
                        let why = match error.cause {
                            Cause::ByValue { .. } => "by value",
                            Cause::StackArgumentOnReturn { .. } => "on the stack",
                            other => panic!("{release}: {}: {other}", symbol.name),
                        };
                        *refused.entry(why).or_default() += 1;
                    }
                }
            }
        }
        println!("{release}: {arguments} arguments of {functions} places, refused: {refused:?}");
        assert!(functions > 20_000, "{release}: {functions}");
        let refused: u32 = refused.values().sum();
        assert!(
            refused * 50 < functions,
            "{release}: {refused} of {functions}"
        );
    }
}

#[test]
fn all_types_of_debians_kernels_and_any_value_of_them_are_written_in_bounds() {
    const MOST: usize = 4096;
    let bytes: Vec<u8> = (0..VALUE_MAX)
        .map(|i| (i * 7 + i / 256) as u8 | 1)
        .collect();
    for (release, kernel) in &*KERNELS {
        let types = kernel.types.as_ref().unwrap();
        let names = types.types_matching("*", usize::MAX);
        assert!(names.len() > 5_000, "{release}: {}", names.len());
        let mut cut = 0;
        for name in &names {
            let declaration = types.declaration(name).unwrap();
            assert!(declaration.len() < 1 << 20, "{release}: {name}");
            assert!(!declaration.contains('?'), "{release}: {declaration}");
            let id = types.type_named(name).unwrap();
            let text = types.value_text(id, &bytes, MOST);
            assert!(
                text.len() <= MOST && !text.contains('\n'),
                "{release}: {name}: {text}"
            );
            cut += u32::from(text.contains("..."));
            let zero = types.value_text(id, &[0; 1 << 12], MOST);
            assert!(zero.len() < 64, "{release}: {name}: {zero}");
        }
        println!("{release}: {} types, {cut} values cut", names.len());
    }
}
