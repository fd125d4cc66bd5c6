//! The kernel's own tests of kprobe events (`tools/testing/selftests/ftrace/test.d/kprobe/` of Linux 6.12),
//! as far as a definition's text alone decides them. What its scripts choose by the machine or by the
//! kernel's age is taken as on x86-64 with 6.12: `kernel_clone` for `$FUNCTION_FORK`, `%ax` and `%di` for
//! registers.

use super::*;
use crate::{Command, SpecError};

use crate::testing::Refused::{ByOtherProbes, BySymbols, ByTypes, Here, Never};
use crate::testing::{Refused, SYNTAX_ERRORS};

#[test]
fn every_syntax_error_of_the_kernels_tests_is_at_its_column() {
    for (marked, refused) in SYNTAX_ERRORS {
        let column = marked.find('^').unwrap() + 1;
        let text = marked.replacen('^', "", 1);
        let found = parse(&text);
        let Here(name) = refused else {
            assert!(found.is_ok(), "{text}: {found:?}");
            continue;
        };
        let SpecError {
            column: at, kernel, ..
        } = found.expect_err(&text);
        assert_eq!((at, kernel), (column, Some(name)), "{text}");
    }
}

#[test]
fn the_syntax_errors_that_need_more_than_the_text_are_few() {
    let count = |wanted: fn(&Refused) -> bool| {
        SYNTAX_ERRORS
            .iter()
            .filter(|(_, refused)| wanted(refused))
            .count()
    };
    assert_eq!(count(|refused| matches!(refused, Here(_))), 46);
    assert_eq!(count(|refused| matches!(refused, BySymbols)), 2);
    assert_eq!(count(|refused| matches!(refused, ByTypes)), 3);
    assert_eq!(count(|refused| matches!(refused, ByOtherProbes(_))), 5);
    assert_eq!(count(|refused| matches!(refused, Never)), 2);
}

/// What the other tests write to `kprobe_events`, each with the file that it is from.
const TAKEN: [(&str, &str); 61] = [
    ("add_and_remove", "p:myevent kernel_clone"),
    (
        "kprobe_args",
        "p:testprobe kernel_clone $stack $stack0 +0($stack)",
    ),
    ("kprobe_args", "-:testprobe"),
    (
        "kprobe_args_char",
        "p:testprobe eventfs_add_dir arg1=+0(%di):char",
    ),
    (
        "kprobe_args_char",
        "p:testprobe eventfs_add_dir arg1=+0(%di):char arg2=+0(%di):char[4]",
    ),
    ("kprobe_args_comm", "p:testprobe kernel_clone comm=$comm "),
    (
        "kprobe_args_string",
        "p:testprobe tracefs_create_dir arg1=+0(%di):string",
    ),
    (
        "kprobe_args_string",
        "p:testprobe tracefs_create_dir arg1=+0(%di):string arg2=+0(%di):string",
    ),
    (
        "kprobe_args_symbol",
        "p:testprobe_u kernel_clone arg1=@linux_proc_banner:u64 arg2=@linux_proc_banner:u32 \
         arg3=@linux_proc_banner:u16 arg4=@linux_proc_banner:u8",
    ),
    (
        "kprobe_args_symbol",
        "p:testprobe_s kernel_clone arg1=@linux_proc_banner:s64 arg2=@linux_proc_banner:s32 \
         arg3=@linux_proc_banner:s16 arg4=@linux_proc_banner:s8",
    ),
    (
        "kprobe_args_symbol",
        "p:testprobe_x kernel_clone arg1=@linux_proc_banner:x64 arg2=@linux_proc_banner:x32 \
         arg3=@linux_proc_banner:x16 arg4=@linux_proc_banner:x8",
    ),
    (
        "kprobe_args_symbol",
        "p:testprobe_bf kernel_clone arg1=@linux_proc_banner:b8@4/32",
    ),
    (
        "kprobe_args_symbol",
        "p:testprobe_str kernel_clone arg1=@linux_proc_banner:string",
    ),
    ("kprobe_args_syntax", "p vfs_read %ax"),
    ("kprobe_args_syntax", "p vfs_read @_sdata"),
    ("kprobe_args_syntax", "p vfs_read @0xffffffff82a05940"),
    ("kprobe_args_syntax", "p vfs_read @_sdata+10"),
    ("kprobe_args_syntax", "p vfs_read @_sdata-10"),
    ("kprobe_args_syntax", "p vfs_read $stack"),
    ("kprobe_args_syntax", "p vfs_read $stack0"),
    ("kprobe_args_syntax", "p vfs_read $stack1"),
    ("kprobe_args_syntax", "r vfs_read $retval"),
    ("kprobe_args_syntax", "p vfs_read $comm"),
    ("kprobe_args_syntax", "p vfs_read +0(%ax)"),
    ("kprobe_args_syntax", "p vfs_read -0(%ax)"),
    ("kprobe_args_syntax", "p vfs_read +10($stack)"),
    ("kprobe_args_syntax", "p vfs_read +0($stack1)"),
    ("kprobe_args_syntax", "p vfs_read +10(@_sdata-10)"),
    ("kprobe_args_syntax", "p vfs_read +0(+10(+20($stack)))"),
    ("kprobe_args_syntax", "p vfs_read varname=%ax"),
    ("kprobe_args_syntax", "p vfs_read %ax:x16"),
    ("kprobe_args_syntax", "p vfs_read $comm:string"),
    ("kprobe_args_syntax", "p vfs_read +0($stack):string"),
    // The kernel refuses this for a symbol that isn't there; its text has nothing wrong with it.
    ("kprobe_args_syntax", "p vfs_read @deaqswdefr"),
    (
        "kprobe_args_type",
        "p:testprobe kernel_clone $stack0:s64 $stack0:u64 $stack0:x64 $stack0:b4@4/64",
    ),
    (
        "kprobe_args_type",
        "p:testprobe kernel_clone $stack0:s32 $stack0:u32 $stack0:x32 $stack0:b4@4/32",
    ),
    (
        "kprobe_args_type",
        "p:testprobe kernel_clone $stack0:s16 $stack0:u16 $stack0:x16 $stack0:b4@4/16",
    ),
    (
        "kprobe_args_type",
        "p:testprobe kernel_clone $stack0:s8 $stack0:u8 $stack0:x8 $stack0:b4@4/8",
    ),
    (
        "kprobe_args_user",
        "p:myevent2 do_sys_openat2 path=+0($arg2):ustring path2=+u0($arg2):string",
    ),
    (
        "kprobe_args_user",
        "p:myevent vfs_symlink path=+0($arg3):ustring path2=+u0($arg3):string",
    ),
    ("kprobe_eventname", "p vfs_read"),
    ("kprobe_eventname", "p:event1 vfs_read"),
    ("kprobe_eventname", "p:kprobes2/event2 vfs_read"),
    ("kprobe_eventname", "p vfs_read.isra.0"),
    ("kprobe_ftrace", "p:testprobe kernel_clone"),
    ("kprobe_insn_boundary", "p kernel_clone+255"),
    ("kprobe_module", "p:event0 trace_printk_irq_work"),
    ("kprobe_module", "-:kprobes/event0"),
    ("kprobe_module", "p trace_printk:trace_printk_irq_work"),
    (
        "kprobe_module",
        "p:kprobes1/event1 trace_printk:trace_printk_irq_work",
    ),
    ("kprobe_multiprobe", "p:kprobes/testevent do_exit"),
    ("kprobe_multiprobe", "-:kprobes/testevent kernel_clone"),
    // The code that knows the guest's symbols refuses it.
    ("kprobe_non_uniq_symbol", "p:test_non_unique name_show"),
    ("kprobe_opt_types", "p:testprobe kernel_clone+17"),
    ("kretprobe_args", "r:testprobe2 kernel_clone $retval"),
    ("kretprobe_entry_arg", "r:myevent2 vfs_open arg=$arg1"),
    ("kretprobe_maxactive", "r:myprobeaccept inet_csk_accept"),
    ("kretprobe_maxactive", "r10:myprobeaccept inet_csk_accept"),
    ("kretprobe_maxactive", "r10 inet_csk_accept"),
    ("multiple_kprobes", "p vfs_read+5"),
    ("probepoint", "p:testprobe 0xffffffff812f0c15"),
];

#[test]
fn every_definition_of_the_kernels_tests_is_read() {
    for (file, text) in TAKEN {
        let found: Vec<_> = definitions(text).collect();
        let [Ok(command)] = &found[..] else {
            panic!("{file}: {text}: {found:?}");
        };
        if let Command::Register(spec) = command {
            assert_eq!(
                parse(&definition(spec)).as_ref(),
                Ok(spec),
                "{file}: {text}"
            );
        }
    }
}

/// What the other tests have refused, without a column.
const REFUSED: [(&str, &str); 27] = [
    ("kprobe_args_syntax", "p vfs_read %ex"),
    ("kprobe_args_syntax", "p vfs_read @"),
    ("kprobe_args_syntax", "p vfs_read @_sdata*10"),
    ("kprobe_args_syntax", "p vfs_read @_sdata/10"),
    ("kprobe_args_syntax", "p vfs_read @_sdata%10"),
    ("kprobe_args_syntax", "p vfs_read @_sdata&10"),
    ("kprobe_args_syntax", "p vfs_read @_sdata|10"),
    ("kprobe_args_syntax", "p vfs_read $stackp"),
    ("kprobe_args_syntax", "p vfs_read $stack0+10"),
    ("kprobe_args_syntax", "p vfs_read $stack1-10"),
    ("kprobe_args_syntax", "p vfs_read $retval"),
    ("kprobe_args_syntax", "p vfs_read +(%ax)"),
    ("kprobe_args_syntax", "p vfs_read (%ax+10)"),
    ("kprobe_args_syntax", "p vfs_read -(%ax)"),
    ("kprobe_args_syntax", "p vfs_read (%ax)"),
    ("kprobe_args_syntax", "p vfs_read +10($comm)"),
    ("kprobe_args_syntax", "p vfs_read +0(%ax)+10"),
    ("kprobe_args_syntax", "p vfs_read varname=varname2=%ax"),
    ("kprobe_args_syntax", "p vfs_read %ax::x16"),
    ("kprobe_args_syntax", "p vfs_read %ax:y16"),
    ("kprobe_args_syntax", "p vfs_read x16:%ax"),
    ("kprobe_args_syntax", "p vfs_read $comm:x64"),
    ("kprobe_args_syntax", "p vfs_read $stack:string"),
    ("kprobe_args_syntax", "p vfs_read %ax:string"),
    ("kretprobe_maxactive", "a:myprobeaccept inet_csk_accept"),
    (
        "kretprobe_maxactive",
        "r1000000:myprobeaccept inet_csk_accept",
    ),
    (
        "kretprobe_maxactive",
        "r10fuzz:myprobeaccept inet_csk_accept",
    ),
];

#[test]
fn every_definition_that_the_kernels_tests_refuse_is_refused() {
    for (file, text) in REFUSED {
        assert!(parse(text).is_err(), "{file}: {text}");
    }
    // `probepoint`: a place before the symbol.
    assert!(parse("p:testprobe tracefs_create_dir-16").is_err());
}

#[test]
fn a_suffix_makes_the_same_return_probe_as_the_letter() {
    // `kretprobe_return_suffix`
    assert_eq!(
        parse("r:myprobeaccept vfs_read"),
        parse("p:myprobeaccept vfs_read%return")
    );
}
