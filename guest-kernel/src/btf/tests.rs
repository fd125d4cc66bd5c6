use proptest::prelude::*;

use super::synthetic::Builder;
use super::*;

mod as_c;

fn section() -> Vec<u8> {
    builder().bytes()
}

fn builder() -> Builder {
    let mut b = Builder::new();
    let int = b.int("int", 4);
    let long = b.int("long unsigned int", 8);
    let alias = b.typedef("size_t", long);
    let list = b.structure("list_head", 16, &[("next", long, 0), ("prev", long, 8)]);
    let pointer = b.pointer(list);
    let names = b.array(int, 14);
    let empty = b.array(long, 0);
    let layout = b.structure("layout", 24, &[("base", pointer, 0), ("size", int, 8)]);
    let inner = b.structure("", 16, &[("low", int, 0), ("high", long, 8)]);
    let either = b.union("", 16, &[("", inner, 0), ("whole", alias, 0)]);
    b.structure(
        "module",
        200,
        &[
            ("state", int, 0),
            ("list", list, 8),
            ("name", names, 24),
            ("core", layout, 80),
            ("", either, 104),
            ("rest", empty, 200),
        ],
    );
    b.bit_fields(
        "flags",
        8,
        &[("a", int, 0, 3), ("b", int, 13, 16), ("c", int, 32, 0)],
    );
    b.enumeration("state", &[("LIVE", 0), ("COMING", 1), ("NONE", -1)]);
    b.function("do_init_module", &[("mod", pointer), ("count", int)]);
    b.function("nothing", &[]);
    b
}

fn btf() -> Btf {
    Btf::parse(&section()).unwrap()
}

#[test]
fn a_module_s_types_go_on_where_its_kernel_s_end() {
    let kernel = builder();
    let mut b = Builder::of_module(&kernel);
    // The kernel's `int`, which is its first type.
    let tun = b.structure("tun_file", 24, &[("flags", 1, 8), ("index", 1, 16)]);
    let tun = b.pointer(tun);
    b.function("nothing", &[("tfile", tun), ("clean", 1)]);
    let kernel = Arc::new(Btf::parse(&kernel.bytes()).unwrap());
    let module = Btf::parse_module(&b.bytes(), &kernel).unwrap();
    assert_eq!(module.size_of("tun_file"), Ok(24));
    assert_eq!(module.size_of("module"), Ok(200));
    assert_eq!(module.member("tun_file", "index").unwrap().offset, 16);
    assert_eq!(module.member("module", "list.prev").unwrap().offset, 16);
    assert!(kernel.size_of("tun_file").is_err());
    let declared = module.declaration("tun_file").unwrap();
    assert!(declared.contains("int flags;"), "{declared}");
    // Both have such a function; the module's is meant.
    let names = |types: &Btf| types.parameters("nothing").map(|names| names.join(" "));
    assert_eq!(names(&module).as_deref(), Some("tfile clean"));
    assert_eq!(names(&kernel).as_deref(), Some(""));
    assert_eq!(module.parameters("do_init_module"), None);
    assert!(module.is_module_s() && !kernel.is_module_s());
    let own = module.types_matching("*", 10);
    assert_eq!(own, ["struct tun_file"]);
}

#[test]
fn sizes_are_found_by_name() {
    let btf = btf();
    for (name, size) in [
        ("int", 4),
        ("size_t", 8),
        ("list_head", 16),
        ("module", 200),
        ("state", 4),
    ] {
        assert_eq!(btf.size_of(name), Ok(size), "{name}");
    }
    for name in ["", "none", "nothing"] {
        let message = btf.size_of(name).unwrap_err().to_string();
        assert_eq!(message, format!("the guest kernel has no type {name:?}"));
    }
}

#[test]
fn members_are_found_through_embedded_and_unnamed_types() {
    let btf = btf();
    for (path, offset, size) in [
        ("state", 0, 4),
        ("list", 8, 16),
        ("list.prev", 16, 8),
        ("core.base", 80, 8),
        ("core.size", 88, 4),
        ("low", 104, 4),
        ("high", 112, 8),
        ("whole", 104, 8),
    ] {
        let member = Member {
            offset,
            size,
            array: None,
            bits: None,
        };
        assert_eq!(btf.member("module", path), Ok(member), "{path}");
    }
}

#[test]
fn an_array_tells_its_elements() {
    let btf = btf();
    for (path, offset, count, element_size) in [("name", 24, 14, 4), ("rest", 200, 0, 8)] {
        let member = Member {
            offset,
            size: count * element_size,
            array: Some(Array {
                count,
                element_size,
            }),
            bits: None,
        };
        assert_eq!(btf.member("module", path), Ok(member), "{path}");
    }
}

#[test]
fn a_bit_field_tells_its_bits() {
    let btf = btf();
    for (path, offset, bits) in [
        ("a", 0, Some(BitField { shift: 0, len: 3 })),
        ("b", 1, Some(BitField { shift: 5, len: 16 })),
        ("c", 4, None),
    ] {
        let found = btf.member("flags", path).unwrap();
        assert_eq!((found.offset, found.bits), (offset, bits), "{path}");
    }
}

#[test]
fn missing_types_and_members_are_named() {
    let btf = btf();
    for (of, path, message) in [
        ("none", "x", "the guest kernel has no type \"none\""),
        (
            "module",
            "x",
            "the guest kernel's type \"module\" has no member \"x\"",
        ),
        (
            "module",
            "list.x.y",
            "the guest kernel's type \"module\" has no member \"list.x\"",
        ),
        (
            "module",
            "core.base.next",
            "has no member \"core.base.next\"",
        ),
        ("module", "", "has no member \"\""),
        ("int", "x", "the guest kernel has no type \"int\""),
    ] {
        let found = btf.member(of, path).unwrap_err().to_string();
        assert!(found.contains(message), "{of}.{path}: {found}");
    }
}

#[test]
fn constants_have_their_values() {
    let btf = btf();
    for (name, value) in [("LIVE", 0), ("COMING", 1), ("NONE", -1)] {
        assert_eq!(btf.constant("state", name), Ok(value));
    }
    let message = btf.constant("state", "GONE").unwrap_err().to_string();
    assert!(message.contains("has no constant \"GONE\""), "{message}");
    assert!(btf.constant("module", "LIVE").is_err());
}

#[test]
fn functions_have_their_parameters() {
    let btf = btf();
    assert_eq!(btf.parameters("do_init_module"), Some(vec!["mod", "count"]));
    assert_eq!(btf.parameters("nothing"), Some(vec![]));
    assert_eq!(btf.parameters("module"), None);
    assert!(btf.has_function("nothing") && !btf.has_function("state"));
}

#[test]
fn types_that_go_round_end() {
    let mut b = Builder::new();
    b.typedef("loop", 1);
    let array = b.array(2, 3);
    b.structure("array", 8, &[("of", array, 0)]);
    let mut members = vec![("", 4, 0); 0xffff];
    members.push(("", 4, 8));
    b.structure("nested", 8, &members[..0xffff]);
    let btf = Btf::parse(&b.bytes()).unwrap();
    assert!(matches!(
        btf.size_of("loop"),
        Err(TypeError::Damaged { .. })
    ));
    assert!(matches!(
        btf.member("array", "of"),
        Err(TypeError::Damaged { .. })
    ));
    assert!(matches!(
        btf.member("nested", "x"),
        Err(TypeError::NoMember { .. })
    ));
}

#[test]
fn bytes_that_are_no_btf_are_refused() {
    let good = section();
    for len in [0, 1, 23, 24, good.len() - 1] {
        assert!(
            matches!(Btf::parse(&good[..len]), Err(BtfError::Truncated)),
            "{len}"
        );
    }
    let mut other = good.clone();
    other[2] = 2;
    assert!(matches!(Btf::parse(&other), Err(BtfError::NotBtf)));
    let mut b = Builder::new();
    b.int("int", 4);
    b.record("strange", 30, 0, 0, &[]);
    assert!(matches!(
        Btf::parse(&b.bytes()),
        Err(BtfError::BadType { id: 2 })
    ));
    let mut b = Builder::new();
    b.record("short", 4, 2, 8, &[]);
    assert!(matches!(
        Btf::parse(&b.bytes()),
        Err(BtfError::BadType { id: 1 })
    ));
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = section();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(btf) = Btf::parse(&bytes) {
            for name in ["module", "flags", "size_t", "list_head"] {
                let _ = btf.size_of(name);
                for path in ["list.prev", "whole", "rest", "b"] {
                    let _ = btf.member(name, path);
                }
            }
            let _ = btf.constant("state", "NONE");
            let _ = btf.parameters("do_init_module");
        }
    }
}
