//! What tests need of this crate: lines that the kernel refuses.

/// Where and why a line can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// By its text, with the kernel's name for the error.
    Here(&'static str),
    /// Later, by the code that knows the guest's symbols and code.
    BySymbols,
    /// Later, by the code that knows the guest's types.
    ByTypes,
    /// Later, by the code that knows the other probes, if this one is there already.
    ByOtherProbes(&'static str),
    /// Not at all: a kernel without types or without arguments at returns refuses it, 6.12 takes
    /// it.
    Never,
}

use Refused::{ByOtherProbes, BySymbols, ByTypes, Here, Never};

/// The event that other events of its name have to be like.
const EVENT: &str = "p:kprobes/testevent kernel_clone";
const EVENT_WITH_ARGUMENT: &str = "p:kprobes/testevent kernel_clone abcd=\\1";

/// All lines of `kprobe_syntax_errors.tc` in its order; `^` is where the error must be.
pub const SYNTAX_ERRORS: [(&str, Refused); 58] = [
    ("p^100 vfs_read", Here("BAD_MAXACT_TYPE")),
    ("r^1a111 vfs_read", Here("BAD_MAXACT")),
    ("r^100000 vfs_read", Here("MAXACT_TOO_BIG")),
    ("p ^non_exist_func", BySymbols),
    ("p ^hoge-fuga", Here("BAD_PROBE_ADDR")),
    ("p ^hoge+1000-1000", Here("BAD_PROBE_ADDR")),
    ("r ^vfs_read+10", Here("BAD_RETPROBE")),
    ("p:^/bar vfs_read", Here("NO_GROUP_NAME")),
    (
        "p:^12345678901234567890123456789012345678901234567890123456789012345/bar vfs_read",
        Here("GROUP_TOO_LONG"),
    ),
    ("p:^foo.1/bar vfs_read", Here("BAD_GROUP_NAME")),
    ("p:^ vfs_read", Here("NO_EVENT_NAME")),
    (
        "p:foo/^12345678901234567890123456789012345678901234567890123456789012345 vfs_read",
        Here("EVENT_TOO_LONG"),
    ),
    ("p:foo/^bar.1 vfs_read", Here("BAD_EVENT_NAME")),
    ("p vfs_read ^$retval", Here("RETVAL_ON_PROBE")),
    ("p vfs_read ^$stack10000", Here("BAD_STACK_NUM")),
    ("p vfs_read ^$arg10000", Here("BAD_ARG_NUM")),
    ("p vfs_read ^$none_var", Here("BAD_VAR")),
    ("p vfs_read ^%none_reg", Here("BAD_REG_NAME")),
    ("p vfs_read ^@12345678abcde", Here("BAD_MEM_ADDR")),
    ("p vfs_read ^@+10", Here("FILE_ON_KPROBE")),
    ("p vfs_read arg1=\\^x", Here("BAD_IMM")),
    ("p vfs_read arg1=\\\"abcd^", Here("IMMSTR_NO_CLOSE")),
    ("p vfs_read ^+0@0)", Here("DEREF_NEED_BRACE")),
    ("p vfs_read ^+0ab1(@0)", Here("BAD_DEREF_OFFS")),
    ("p vfs_read +0(+0(@0^)", Here("DEREF_OPEN_BRACE")),
    ("p vfs_read +0(^$comm)", Here("COMM_CANT_DEREF")),
    ("p vfs_read ^&1", Here("BAD_FETCH_ARG")),
    (
        "p vfs_read +0(^+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(@0))))))))))))))",
        Here("TOO_MANY_OPS"),
    ),
    ("p vfs_read +0(@11):u8[10^", Here("ARRAY_NO_CLOSE")),
    ("p vfs_read +0(@11):u8[10]^a", Here("BAD_ARRAY_SUFFIX")),
    ("p vfs_read +0(@11):u8[^10a]", Here("BAD_ARRAY_NUM")),
    ("p vfs_read +0(@11):u8[^256]", Here("ARRAY_TOO_BIG")),
    ("p vfs_read @11:^unknown_type", Here("BAD_TYPE")),
    ("p vfs_read $stack0:^string", Here("BAD_STRING")),
    ("p vfs_read @11:^b10@a/16", Here("BAD_BITFIELD")),
    (
        "p vfs_read ^arg123456789012345678901234567890=@11",
        Here("ARG_NAME_TOO_LONG"),
    ),
    ("p vfs_read ^=@11", Here("NO_ARG_NAME")),
    ("p vfs_read ^var.1=@11", Here("BAD_ARG_NAME")),
    ("p vfs_read var1=@11 ^var1=@12", Here("USED_ARG_NAME")),
    (
        "p vfs_read ^+1234567(+1234567(+1234567(+1234567(+1234567(+1234567(@1234))))))",
        Here("ARG_TOO_LONG"),
    ),
    ("p vfs_read arg1=^", Here("NO_ARG_BODY")),
    ("p ^vfs_read+3", BySymbols),
    ("^r:kprobes/testevent do_exit", ByOtherProbes(EVENT)),
    (
        "p:kprobes/testevent kernel_clone ^bcd=\\1",
        ByOtherProbes(EVENT_WITH_ARGUMENT),
    ),
    (
        "p:kprobes/testevent kernel_clone ^abcd=\\1:u8",
        ByOtherProbes(EVENT_WITH_ARGUMENT),
    ),
    (
        "p:kprobes/testevent kernel_clone ^abcd=\\\"foo\"",
        ByOtherProbes(EVENT_WITH_ARGUMENT),
    ),
    (
        "^p:kprobes/testevent kernel_clone abcd=\\1",
        ByOtherProbes(EVENT_WITH_ARGUMENT),
    ),
    ("p vfs_read^%hoge", Here("BAD_ADDR_SUFFIX")),
    ("p ^vfs_read+10%return", Here("BAD_RETPROBE")),
    ("p vfs_read args=^$arg*", Here("BAD_VAR_ARGS")),
    ("p vfs_read +0(^$arg*)", Here("BAD_VAR_ARGS")),
    ("p vfs_read $arg* ^$arg*", Here("DOUBLE_ARGS")),
    // 6.12 doesn't refuse it, as it has the arguments of the entry at the return.
    ("r vfs_read ^$arg*", Never),
    ("p vfs_read+8 ^$arg*", Here("NOFENTRY_ARGS")),
    ("p vfs_read ^hoge", ByTypes),
    ("p kfree ^$arg10", ByTypes),
    ("r kfree ^$retval", ByTypes),
    // The kernel refuses it only if it has no types.
    ("p vfs_read ^$arg*", Never),
];
