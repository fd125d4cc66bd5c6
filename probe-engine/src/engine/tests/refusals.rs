use super::fixture::Fixture;

/// Each refusal, and what its message must say.
const REFUSALS: &[(&str, &[&str])] = &[
    ("no_such_function", &["no symbol", "no_such_function"]),
    ("twice", &["0xffffffff81000140", "0xffffffff81000180"]),
    ("table", &["not in the kernel's text", "0xffffffff81000b00"]),
    ("0x1000", &["not in the kernel's text"]),
    ("0xffffffff81000b00", &["not in the kernel's text"]),
    ("plain+0x40", &["outside plain", "0x40 bytes"]),
    ("plain+0xffffffffffffffff", &["end of the address space"]),
    (
        "plain+0xb",
        &["`mov %rsp,%rbp`", "begins at 0xffffffff8100000a"],
    ),
    ("plain+0x1", &["endbr64", "0xffffffff81000009"]),
    ("0xffffffff81000000", &["endbr64", "0xffffffff81000009"]),
    ("0xffffffff81000004", &["ftrace site", "0xffffffff81000009"]),
    ("0xffffffff81000040", &["ftrace site", "0xffffffff81000045"]),
    ("plain+0xf", &["`int3`"]),
    ("traced+0xf", &["`ud2`"]),
    ("traced+0xd", &["`iretq`", "can't be probed"]),
    ("traced+0x11", &["%ss", "blocks interrupts"]),
    ("data_in_text+0x1", &["no instruction", "06 06"]),
    (
        "kprobed+0x2",
        &["breakpoint of its own at 0xffffffff810001c1"],
    ),
    // Padding after a last call.
    ("memory+0x14", &["`int3`"]),
    ("memory+0x16", &["`int3`"]),
    ("empty", &["no instruction after its entry"]),
    ("a b=plain", &["\"a b\""]),
    ("=plain", &["\"\""]),
];

#[test]
fn each_refusal_says_what_is_wrong() {
    for (place, words) in REFUSALS {
        let f = Fixture::new();
        let message = f.refusal(place).to_string();
        for word in *words {
            assert!(
                message.contains(word),
                "{place}: {message:?} lacks {word:?}"
            );
        }
        assert!(f.engine.list().is_empty());
        assert!(!f.engine.debugging().breakpoints);
    }
}

#[test]
fn the_same_probe_twice_is_refused_and_the_first_named() {
    let f = Fixture::new();
    let first = f.probe("plain");
    let message = f.refusal("plain").to_string();
    assert!(message.contains(&first.id.to_string()), "{message}");
    assert!(
        message.contains("plain+0x9") && message.contains("0xffffffff81000009"),
        "{message}"
    );
    let message = f.register(&["traced", "traced"]).unwrap_err().to_string();
    assert!(message.contains("twice"), "{message}");
}
