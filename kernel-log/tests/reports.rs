//! Whole texts of consoles, and the reports in them.

use vmprobe_kernel_log::{Kind, Lines, Place, Report, Reports};

/// Returns all reports on a console.
fn reports_of(console: &str) -> Vec<Report> {
    let mut lines = Lines::new();
    let mut reports = Reports::new();
    let mut found = Vec::new();
    let mut all = lines.push(console.as_bytes());
    all.extend(lines.finish());
    for line in all {
        found.extend(reports.line(&line));
    }
    while let Some(report) = reports.finish() {
        found.push(report);
    }
    found
}

/// Returns the parts of a report that the tables below compare.
fn told(report: &Report) -> String {
    let Report {
        kind,
        title,
        cpu,
        task,
        stack,
        truncated,
        ..
    } = report;
    let mut text = format!("{kind}: {title}");
    if let Some(at) = report.at {
        text += &format!(" | at {:.6}", at.as_secs_f64());
    }
    if let Some(cpu) = cpu {
        text += &format!(" | cpu {cpu}");
    }
    if let Some(task) = task {
        text += &format!(" | {}/{}", task.comm, task.pid);
    }
    if let Some(place) = report.place() {
        text += &format!(" | in {}", shown(place));
    }
    let frames: Vec<_> = stack.iter().filter(|frame| frame.reliable).collect();
    let names: Vec<_> = frames.iter().map(|frame| shown(&frame.place)).collect();
    text += &format!(" | {} lines | [{}]", report.lines.len(), names.join(" "));
    if *truncated {
        text += " | truncated";
    }
    text
}

fn shown(place: &Place) -> String {
    match place {
        Place::Symbol {
            name,
            offset,
            module: None,
            ..
        } => format!("{name}+{offset:#x}"),
        Place::Symbol {
            name,
            offset,
            module: Some(module),
            ..
        } => format!("{module}:{name}+{offset:#x}"),
        Place::Address(address) => format!("{address:#x}"),
    }
}

fn check(console: &str, expected: &[&str]) {
    let found: Vec<_> = reports_of(console).iter().map(told).collect();
    assert_eq!(found, expected, "{console}");
}

/// Puts a time in front of each line.
fn stamped(text: &str) -> String {
    text.lines()
        .map(|line| format!("[    3.000001] {line}\r\n"))
        .collect()
}

/// Composed after the formats of `arch/x86/mm/fault.c` and `arch/x86/kernel/dumpstack.c` of 6.12.
const OOPS: &str = "\
BUG: kernel NULL pointer dereference, address: 0000000000000010
#PF: supervisor write access in kernel mode
#PF: error_code(0x0002) - not-present page
PGD 0 P4D 0
Oops: Oops: 0002 [#1] PREEMPT SMP NOPTI
CPU: 1 UID: 0 PID: 77 Comm: my prog Tainted: G        W          6.12.1 #1
Tainted: [W]=WARN
Hardware name: none
RIP: 0010:store+0x12/0x40 [mod]
Code: 90 90 <c7> 00
RSP: 0018:ffffc900001a7d38 EFLAGS: 00010246
RAX: 0000000000000010 RBX: 0000000000000000 RCX: 0000000000000000
FS:  0000000000000000(0000) GS:ffff88807dc80000(0000) knlGS:0000000000000000
Call Trace:
 <TASK>
 ? __die_body+0x68/0xb0
 vfs_write+0x100/0x400
 do_syscall_64+0x50/0x110
 entry_SYSCALL_64_after_hwframe+0x76/0x7e
RIP: 0033:0x7f0000001234
 </TASK>
Modules linked in: mod
CR2: 0000000000000010
---[ end trace 0000000000000000 ]---
RIP: 0010:store+0x12/0x40 [mod]
Code: 90 90 <c7> 00
";

const PANIC: &str = "\
Kernel panic - not syncing: Fatal exception
Kernel Offset: disabled
---[ end Kernel panic - not syncing: Fatal exception ]---
";

const OOPS_TOLD: &str = "oops: BUG: kernel NULL pointer dereference, address: 0000000000000010 | at 3.000001 | cpu 1 | my prog/77 | in mod:store+0x12 | 24 lines | [vfs_write+0x100 do_syscall_64+0x50 entry_SYSCALL_64_after_hwframe+0x76]";

#[test]
fn an_oops_ends_with_its_mark_and_the_panic_behind_it_is_another_report() {
    check(
        &stamped(&format!("Run /init as init process\n{OOPS}{PANIC}more\n")),
        &[
            OOPS_TOLD,
            "panic: Kernel panic - not syncing: Fatal exception | at 3.000001 | 3 lines | []",
        ],
    );
    let report = &reports_of(&stamped(OOPS))[0];
    assert!(!report.stack[0].reliable);
    assert_eq!(report.lines[0], report.title);
}

#[test]
fn a_kernel_without_times_is_read_as_well() {
    check(OOPS, &[&OOPS_TOLD.replace(" | at 3.000001", "")]);
}

#[test]
fn what_a_program_prints_is_no_report_where_the_kernel_prints_times() {
    check(
        &format!("[    0.000000] Linux version 6.12\r\n{OOPS}{PANIC}"),
        &[],
    );
    // The lines of a program between those of a report aren't part of it either.
    let mixed = stamped(OOPS).replace("\r\n", "\r\nhello\r\n");
    check(&mixed, &[OOPS_TOLD]);
}

#[test]
fn a_report_behind_a_prompt_is_found() {
    let console = stamped(OOPS);
    check(
        &format!("[    0.000000] Linux version 6.12\r\n~ # {console}"),
        &[OOPS_TOLD],
    );
}

#[test]
fn a_log_that_a_program_shows_is_not_reported_again() {
    let console = stamped(OOPS);
    check(
        &format!("{console}[    3.500000] Run /init\r\n{console}"),
        &[OOPS_TOLD],
    );
}

#[test]
fn older_and_shorter_oopses_are_known() {
    check(
        "general protection fault, probably for non-canonical address 0xdead000000000000: 0000 [#1] SMP\n\
         CPU: 0 PID: 1 Comm: init Not tainted 6.1.1 #1\n\
         RIP: 0010:f+0x1/0x2\n\
         ---[ end trace 0000000000000000 ]---\n",
        &[
            "general-protection: general protection fault, probably for non-canonical address 0xdead000000000000: 0000 [#1] SMP | cpu 0 | init/1 | in f+0x1 | 4 lines | []",
        ],
    );
    check(
        "------------[ cut here ]------------\n\
         kernel BUG at mm/x.c:12!\n\
         Oops: invalid opcode: 0000 [#1] SMP\n\
         CPU: 0 PID: 1 Comm: init Not tainted 6.1.1 #1\n\
         RIP: 0010:0xffffffff81012345\n\
         Call Trace:\n \
         ? 0xffffffff81011111\n \
         0xffffffff81022222\n\
         ---[ end trace 0000000000000000 ]---\n",
        &[
            "bug: kernel BUG at mm/x.c:12! | cpu 0 | init/1 | in 0xffffffff81012345 | 9 lines | [0xffffffff81022222]",
        ],
    );
    check(
        "BUG: unable to handle kernel paging request at ffffc90000001000\n\
         Oops: 0000 [#1] SMP\n\
         CPU: 0 PID: 1 Comm: init Not tainted 4.4.0 #1\n\
         RIP: 0010:[<ffffffff81012345>]  [<ffffffff81012345>] f+0x1/0x2\n\
         Call Trace:\n \
         [<ffffffff81022222>] ? g+0x1/0x2\n \
         [<ffffffff81022222>] h+0x1/0x2\n\
         ---[ end trace 1234567812345678 ]---\n",
        &[
            "oops: BUG: unable to handle kernel paging request at ffffc90000001000 | cpu 0 | init/1 | in f+0x1 | 8 lines | [h+0x1]",
        ],
    );
}

#[test]
fn an_oops_within_an_oops_is_a_report_of_its_own() {
    check(
        "Oops: 0000 [#1] SMP\nCPU: 0 PID: 1 Comm: a Not tainted 6.1.1 #1\n\
         Oops: 0000 [#2] SMP\nCPU: 0 PID: 1 Comm: a Not tainted 6.1.1 #1\n\
         ---[ end trace 0000000000000000 ]---\n",
        &[
            "oops: Oops: 0000 [#1] SMP | cpu 0 | a/1 | 2 lines | [] | truncated",
            "oops: Oops: 0000 [#2] SMP | cpu 0 | a/1 | 3 lines | []",
        ],
    );
}

#[test]
fn a_warning_has_its_message_with_it() {
    // 6.1 prints the message in front of the first line, 6.19 behind it (`__warn_printk`, `__warn` in
    // kernel/panic.c).
    check(
        &stamped(
            "------------[ cut here ]------------\n\
             refcount_t: underflow; use-after-free.\n\
             WARNING: CPU: 1 PID: 22 at lib/refcount.c:28 refcount_warn+0x1/0x2\n\
             CPU: 1 PID: 22 Comm: a Not tainted 6.1.1 #1\n\
             RIP: 0010:refcount_warn+0x1/0x2\n\
             Call Trace:\n <TASK>\n put+0x1/0x2\n </TASK>\n\
             ---[ end trace 0000000000000000 ]---\n",
        ),
        &[
            "warning: WARNING: CPU: 1 PID: 22 at lib/refcount.c:28 refcount_warn+0x1/0x2 | at 3.000001 | cpu 1 | a/22 | in refcount_warn+0x1 | 10 lines | [put+0x1]",
        ],
    );
    check(
        "------------[ cut here ]------------\n\
         WARNING: lib/x.c:3 at f+0x1/0x2, CPU#1: a/22\n\
         RIP: 0010:f+0x1/0x2\n\
         Kernel panic - not syncing: kernel: panic_on_warn set ...\n\
         CPU: 1 UID: 0 PID: 22 Comm: a Not tainted 6.19.0 #1\n\
         Call Trace:\n <TASK>\n vpanic+0x1/0x2\n </TASK>\n\
         Rebooting in 1 seconds..\n",
        &[
            "warning: WARNING: lib/x.c:3 at f+0x1/0x2, CPU#1: a/22 | cpu 1 | a/22 | in f+0x1 | 3 lines | [] | truncated",
            "panic: Kernel panic - not syncing: kernel: panic_on_warn set ... | cpu 1 | a/22 | 7 lines | [vpanic+0x1]",
        ],
    );
}

#[test]
fn a_panic_without_its_mark_ends_with_the_console_or_the_next_boot() {
    let panic = "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)\n\
                 CPU: 0 UID: 0 PID: 1 Comm: swapper/0 Not tainted 6.12.1 #1\n\
                 Call Trace:\n <TASK>\n panic+0x1/0x2\n mount_root+0x1/0x2\n </TASK>\n";
    let told = "panic: Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0) | cpu 0 | swapper/0/1 | in mount_root+0x1 | 7 lines | [panic+0x1 mount_root+0x1]";
    check(panic, &[told]);
    check(
        &format!("{panic}Linux version 6.12.1\n{PANIC}"),
        &[
            told,
            "panic: Kernel panic - not syncing: Fatal exception | 3 lines | []",
        ],
    );
}

/// Composed after `mm/kasan/report.c` of 6.12.
const KASAN: &str = "\
==================================================================
BUG: KASAN: slab-use-after-free in f+0x10/0x20
Read of size 1 at addr ffff888001234567 by task a/12

CPU: 0 UID: 0 PID: 12 Comm: a Not tainted 6.12.1 #1
Call Trace:
 <TASK>
 dump_stack_lvl+0x1/0x2
 print_report+0x1/0x2
 kasan_report+0x1/0x2
 f+0x10/0x20
 </TASK>

Allocated by task 12:
 kasan_save_stack+0x1/0x2
 g+0x1/0x2

Freed by task 12:
 h+0x1/0x2

The buggy address belongs to the object at ffff888001234560
==================================================================
";

#[test]
fn reports_of_the_checkers_of_memory_are_between_two_rules() {
    check(
        &format!("{KASAN}Disabling lock debugging due to kernel taint\n"),
        &[
            "kasan: BUG: KASAN: slab-use-after-free in f+0x10/0x20 | cpu 0 | a/12 | in f+0x10 | 22 lines | [dump_stack_lvl+0x1 print_report+0x1 kasan_report+0x1 f+0x10]",
        ],
    );
    check(
        "==================================================================\n\
         BUG: KFENCE: use-after-free read in f+0x1/0x2\n\n\
         Use-after-free read at 0x00000000abcdabcd (in kfence-#1):\n \
         f+0x1/0x2\n g+0x1/0x2\n\n\
         freed by task 1 on cpu 1 at 3.0s:\n h+0x1/0x2\n\n\
         CPU: 0 UID: 0 PID: 12 Comm: a Not tainted 6.12.1 #1\n\
         ==================================================================\n",
        // The CPU is that of the first line that names one.
        &[
            "kfence: BUG: KFENCE: use-after-free read in f+0x1/0x2 | cpu 1 | a/12 | in f+0x1 | 12 lines | [f+0x1 g+0x1]",
        ],
    );
    check(
        "==================================================================\n\
         BUG: KCSAN: data-race in f / g\n\n\
         write to 0xffffffff81234567 of 8 bytes by task 12 on cpu 1:\n \
         f+0x1/0x2\n\n\
         read to 0xffffffff81234567 of 8 bytes by task 13 on cpu 0:\n g+0x1/0x2\n\n\
         Reported by Kernel Concurrency Sanitizer on:\n\
         CPU: 1 UID: 0 PID: 12 Comm: a Not tainted 6.12.1 #1\n\
         ==================================================================\n",
        &["kcsan: BUG: KCSAN: data-race in f / g | cpu 1 | a/12 | in f+0x1 | 12 lines | [f+0x1]"],
    );
    // lib/ubsan.c of 6.1, and of 6.12.
    let body = "UBSAN: shift-out-of-bounds in lib/x.c:3:4\nshift exponent 64 is too large\n\
                CPU: 0 PID: 12 Comm: a Not tainted 6.1.1 #1\nCall Trace:\n <TASK>\n f+0x1/0x2\n </TASK>\n";
    let rule = "=".repeat(80);
    let told = "ubsan: UBSAN: shift-out-of-bounds in lib/x.c:3:4 | cpu 0 | a/12 | in f+0x1 | 9 lines | [f+0x1]";
    check(&format!("{rule}\n{body}{rule}\n"), &[told]);
    check(
        &format!("------------[ cut here ]------------\n{body}---[ end trace ]---\n"),
        &[told],
    );
}

#[test]
fn the_end_of_one_report_does_not_announce_another() {
    check(
        &format!("{KASAN}WARNING: nothing of the kernel's\n"),
        &[
            "kasan: BUG: KASAN: slab-use-after-free in f+0x10/0x20 | cpu 0 | a/12 | in f+0x10 | 22 lines | [dump_stack_lvl+0x1 print_report+0x1 kasan_report+0x1 f+0x10]",
        ],
    );
}

/// Composed after `kernel/locking/lockdep.c` of 6.12.
const LOCKDEP: &str = "
======================================================
WARNING: possible circular locking dependency detected
6.12.1 #1 Not tainted
------------------------------------------------------
a/12 is trying to acquire lock:
ffffffff82000000 (one){+.+.}-{3:3}, at: f+0x10/0x20

but task is already holding lock:
ffffffff82000040 (two){+.+.}-{3:3}, at: g+0x10/0x20

the existing dependency chain (in reverse order) is:

-> #1 (two){+.+.}-{3:3}:
       lock_acquire+0xd1/0x2e0
       h+0x1/0x2

stack backtrace:
CPU: 1 UID: 0 PID: 12 Comm: a Not tainted 6.12.1 #1
Call Trace:
 <TASK>
 dump_stack_lvl+0x1/0x2
 print_circular_bug+0x1/0x2
 __lock_acquire+0x1/0x2
 f+0x10/0x20
 </TASK>
";

#[test]
fn a_report_of_lockdep_ends_with_its_stack() {
    let told = "lockdep: WARNING: possible circular locking dependency detected | cpu 1 | a/12 | in f+0x10 | 25 lines | [dump_stack_lvl+0x1 print_circular_bug+0x1 __lock_acquire+0x1 f+0x10]";
    check(&format!("{LOCKDEP}Run /init\n"), &[told]);
    // Before 5.16 the stack has no marks.
    let old = LOCKDEP.replace(" <TASK>\n", "").replace(" </TASK>\n", "");
    check(
        &format!("{old}Run /init\n"),
        &[&told.replace("25 lines", "23 lines")],
    );
}

#[test]
fn sleeping_in_atomic_context_ends_with_its_stack() {
    check(
        "BUG: sleeping function called from invalid context at mm/x.c:3\n\
         in_atomic(): 1, irqs_disabled(): 0, non_block: 0, pid: 12, name: a\n\
         preempt_count: 1, expected: 0\n\
         1 lock held by a/12:\n #0: ffffffff82000000 (one){+.+.}-{2:2}, at: f+0x1/0x2\n\
         CPU: 0 UID: 0 PID: 12 Comm: a Not tainted 6.12.1 #1\n\
         Call Trace:\n <TASK>\n dump_stack_lvl+0x1/0x2\n __might_resched+0x1/0x2\n f+0x1/0x2\n </TASK>\n\
         next\n",
        &[
            "sleep-in-atomic: BUG: sleeping function called from invalid context at mm/x.c:3 | cpu 0 | a/12 | in f+0x1 | 12 lines | [dump_stack_lvl+0x1 __might_resched+0x1 f+0x1]",
        ],
    );
}

#[test]
fn a_stall_goes_on_as_long_as_its_dumps() {
    check(
        &stamped(
            "INFO: task a:12 blocked for more than 10 seconds.\n      \
             Not tainted 6.12.1 #1\n\
             \"echo 0 > /proc/sys/kernel/hung_task_timeout_secs\" disables this message.\n\
             task:a               state:D stack:0     pid:12    tgid:12    ppid:1      flags:0x00004000\n\
             Call Trace:\n <TASK>\n __schedule+0x1/0x2\n schedule+0x1/0x2\n f+0x1/0x2\n </TASK>\n\n\
             Showing all locks held in the system:\n\
             1 lock held by khungtaskd/9:\n #0: ffffffff82000000 (rcu_read_lock){....}-{1:3}, at: d+0x1/0x2\n\n\
             =============================================\n\n\
             next\n",
        ),
        &[
            "hung-task: INFO: task a:12 blocked for more than 10 seconds. | at 3.000001 | a/12 | in f+0x1 | 16 lines | [__schedule+0x1 schedule+0x1 f+0x1]",
        ],
    );
    check(
        "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [a:12]\n\
         CPU#1 Utilization every 4s during lockup:\n\
         \t#1: 100% system,\t  0% softirq,\t  0% hardirq,\t  0% idle\n\
         Modules linked in:\n\
         CPU: 1 UID: 0 PID: 12 Comm: a Not tainted 6.12.1 #1\n\
         RIP: 0010:f+0x1/0x2\n\
         RAX: 0000000000000000 RBX: 0000000000000000 RCX: 0000000000000000\n\
         Call Trace:\n <IRQ>\n ? watchdog_timer_fn+0x1/0x2\n </IRQ>\n <TASK>\n g+0x1/0x2\n </TASK>\n\
         random: crng init done\n",
        &[
            "soft-lockup: watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [a:12] | cpu 1 | a/12 | in f+0x1 | 14 lines | [g+0x1]",
        ],
    );
    check(
        "rcu: INFO: rcu_preempt self-detected stall on CPU\n\
         rcu: \t1-....: (2099 ticks this GP) idle=1/1/0x4 softirq=1/2 fqs=3\n\
         rcu: \t(t=2100 jiffies g=1 q=2 ncpus=2)\n\
         CPU: 1 UID: 0 PID: 12 Comm: a Not tainted 6.12.1 #1\n\
         RIP: 0010:f+0x1/0x2\n\
         Call Trace:\n <TASK>\n g+0x1/0x2\n </TASK>\n\
         random: crng init done\n",
        &[
            "rcu-stall: rcu: INFO: rcu_preempt self-detected stall on CPU | cpu 1 | a/12 | in f+0x1 | 9 lines | [g+0x1]",
        ],
    );
    check(
        "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 30s!\n\
         Showing busy workqueues and worker pools:\n\
         workqueue events: flags=0x0\n  pwq 2: cpus=0 node=0 flags=0x0 nice=0 active=1 refcnt=2\n    in-flight: 12:f\n\
         pool 2: cpus=0 node=0 flags=0x0 nice=0 hung=30s workers=3\n\
         random: crng init done\n",
        &[
            "workqueue-lockup: BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 30s! | 6 lines | []",
        ],
    );
}

#[test]
fn short_reports_are_told_at_once() {
    let mut reports = Reports::new();
    let line = "kmemleak: 2 new suspected memory leaks (see /sys/kernel/debug/kmemleak)";
    assert_eq!(reports.line(line).unwrap().kind, Kind::Kmemleak);
    let line = "Out of memory: Killed process 12 (a) total-vm:1kB, anon-rss:1kB";
    let report = reports.line(line).unwrap();
    assert_eq!(
        (report.kind, report.task.unwrap().pid),
        (Kind::OutOfMemory, 12)
    );
    assert!(!report.kind.is_failure());
    assert_eq!(reports.finish(), None);
}

#[test]
fn the_out_of_memory_killer_says_last_whom_it_kills() {
    check(
        "b invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n\
         CPU: 0 UID: 0 PID: 13 Comm: b Not tainted 6.12.1 #1\n\
         Call Trace:\n <TASK>\n dump_header+0x1/0x2\n f+0x1/0x2\n </TASK>\n\
         Mem-Info:\n\
         Out of memory: Killed process 12 (a) total-vm:1kB\n",
        &[
            "out-of-memory: Out of memory: Killed process 12 (a) total-vm:1kB | cpu 0 | b/13 | in f+0x1 | 9 lines | [dump_header+0x1 f+0x1]",
        ],
    );
}

#[test]
fn lines_of_several_cpus_are_told_apart_by_their_callers() {
    let of = |caller: &str, text: &str| -> Vec<String> {
        text.lines()
            .map(|line| format!("[    3.000001][{caller:>6}] {line}\n"))
            .collect()
    };
    let (one, other) = (of("T77", OOPS), of("T12", LOCKDEP));
    let longest = one.len().max(other.len());
    let take = |lines: &[String], at: usize| lines.get(at).cloned().unwrap_or_default();
    let mixed: String = (0..longest)
        .map(|at| take(&one, at) + &take(&other, at))
        .collect();
    check(
        &mixed,
        &[
            OOPS_TOLD,
            "lockdep: WARNING: possible circular locking dependency detected | at 3.000001 | cpu 1 | a/12 | in f+0x10 | 25 lines | [dump_stack_lvl+0x1 print_circular_bug+0x1 __lock_acquire+0x1 f+0x10]",
        ],
    );
}

#[test]
fn the_stacks_of_other_cpus_belong_to_the_stall_that_asks_for_them() {
    check(
        "[    3.000001][    C0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n\
         [    3.000002][    C0] rcu: \t1-....: (1 GPs behind) idle=1/1/0x4\n\
         [    3.000003][    C0] Sending NMI from CPU 0 to CPUs 1:\n\
         [    3.000004][    C1] NMI backtrace for cpu 1\n\
         [    3.000005][    C1] CPU: 1 UID: 0 PID: 12 Comm: a Not tainted 6.12.1 #1\n\
         [    3.000006][    C1] RIP: 0010:f+0x1/0x2\n\
         [    3.000007][    T1] init: other\n\
         [    3.000008][    C1] Call Trace:\n\
         [    3.000009][    C1]  g+0x1/0x2\n\
         [    3.000010][    C0] random: crng init done\n",
        &[
            "rcu-stall: rcu: INFO: rcu_preempt detected stalls on CPUs/tasks: | at 3.000001 | cpu 1 | a/12 | in f+0x1 | 8 lines | [g+0x1]",
        ],
    );
}

#[test]
fn a_report_that_is_silent_has_lost_its_end() {
    let mut reports = Reports::new();
    assert_eq!(reports.line("[    3.000000] Oops: 0000 [#1] SMP"), None);
    assert_eq!(
        reports.line("[    4.000000] CPU: 0 PID: 1 Comm: a Not tainted 6"),
        None
    );
    let report = reports.line("[   10.000000] x").unwrap();
    assert!(report.truncated);
    assert_eq!(report.lines.len(), 2);
}

#[test]
fn a_report_without_an_end_is_cut_at_its_bound() {
    let mut reports = Reports::new();
    reports.line("Oops: 0000 [#1] SMP");
    let found: Vec<_> = (0..2000).filter_map(|_| reports.line("line")).collect();
    assert_eq!(found.len(), 1);
    assert!(found[0].truncated);
    assert_eq!(found[0].lines.len(), vmprobe_kernel_log::MAX_REPORT_LINES);
}

#[test]
fn each_kind_has_a_word_of_its_own() {
    let words: std::collections::HashSet<_> = Kind::ALL.iter().map(|kind| kind.word()).collect();
    assert_eq!(words.len(), Kind::ALL.len());
}

/// Consoles of Linux 6.12.8 in the configuration of the lab's test kernel (`tests/lab/test-kernel.config`), in QEMU,
/// the one of the soft lockup as a guest of ours. The faults are those of `drivers/misc/lkdtm`.
#[test]
fn reports_on_real_consoles_are_found() {
    check(
        include_str!("consoles/exception-warning-bug.txt"),
        &[
            "kasan: BUG: KASAN: null-ptr-deref in lkdtm_EXCEPTION+0xc/0x20 | at 7.233001 | cpu 1 | sh/44 | in lkdtm_EXCEPTION+0xc | 36 lines | [dump_stack_lvl+0x62 kasan_report+0xec lkdtm_EXCEPTION+0xc lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
            "oops: BUG: kernel NULL pointer dereference, address: 0000000000000000 | at 7.245751 | cpu 1 | sh/44 | in lkdtm_EXCEPTION+0xc | 57 lines | [lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
            "warning: WARNING: CPU: 0 PID: 46 at drivers/misc/lkdtm/bugs.c:112 lkdtm_WARNING+0xf/0x20 | at 8.399906 | cpu 0 | sh/46 | in lkdtm_WARNING+0xf | 59 lines | [lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
            "bug: kernel BUG at drivers/misc/lkdtm/bugs.c:105! | at 9.595801 | cpu 0 | sh/48 | in lkdtm_BUG+0x5 | 59 lines | [lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
        ],
    );
    check(
        include_str!("consoles/use-after-free.txt"),
        &[
            "kasan: BUG: KASAN: slab-use-after-free in lkdtm_READ_AFTER_FREE+0xb3/0x1b0 | at 5.662811 | cpu 0 | sh/44 | in lkdtm_READ_AFTER_FREE+0xb3 | 93 lines | [dump_stack_lvl+0x62 print_report+0xc4 kasan_report+0xec lkdtm_READ_AFTER_FREE+0xb3 lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
        ],
    );
    check(
        include_str!("consoles/lock-left-held.txt"),
        &[
            "lockdep: WARNING: lock held when returning to user space! | at 5.800957 | sh/45 | 7 lines | []",
            "sleep-in-atomic: BUG: scheduling while atomic: sh/45/0x00000002 | at 5.806327 | cpu 0 | sh/45 | in irqentry_exit_to_user_mode+0x95 | 22 lines | [dump_stack_lvl+0x7c __schedule_bug+0x80 __schedule+0xc7e schedule+0x73 irqentry_exit_to_user_mode+0x95 asm_exc_page_fault+0x22]",
        ],
    );
    check(
        include_str!("consoles/hung-task.txt"),
        &[
            "hung-task: INFO: task init:45 blocked for more than 10 seconds. | at 22.263225 | init/45 | in lkdtm_HUNG_TASK+0x44 | 45 lines | [__schedule+0x5ba schedule+0x73 lkdtm_HUNG_TASK+0x44 lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
            "hung-task: INFO: task init:45 blocked for more than 20 seconds. | at 32.502943 | init/45 | in lkdtm_HUNG_TASK+0x44 | 45 lines | [__schedule+0x5ba schedule+0x73 lkdtm_HUNG_TASK+0x44 lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
        ],
    );
    check(
        include_str!("consoles/sysrq-panic.txt"),
        &[
            "panic: Kernel panic - not syncing: sysrq triggered crash | at 6.649283 | cpu 1 | init/1 | in sysrq_handle_crash+0x39 | 31 lines | [panic+0x3f4 sysrq_handle_crash+0x39 __handle_sysrq+0x127 write_sysrq_trigger+0x62 proc_reg_write+0xd6 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
        ],
    );
    check(
        include_str!("consoles/panic-on-warning.txt"),
        &[
            "warning: WARNING: CPU: 0 PID: 43 at drivers/misc/lkdtm/bugs.c:117 lkdtm_WARNING_MESSAGE+0x20/0x30 | at 6.758960 | cpu 0 | sh/43 | in lkdtm_WARNING_MESSAGE+0x20 | 49 lines | [lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
            "panic: Kernel panic - not syncing: kernel: panic_on_warn set ... | at 6.778846 | cpu 0 | sh/43 | in lkdtm_do_action+0x22 | 48 lines | [panic+0x3f4 check_panic_on_warn+0x59 __warn+0xac report_bug+0x1c6 handle_bug+0x4f exc_invalid_op+0x13 asm_exc_invalid_op+0x16 lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
        ],
    );
    check(
        include_str!("consoles/rcu-stall.txt"),
        &[
            "rcu-stall: rcu: INFO: rcu_sched self-detected stall on CPU | at 36.432490 | cpu 1 | init/44 | in lkdtm_SOFTLOCKUP+0xe | 64 lines | [lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
        ],
    );
    check(
        include_str!("consoles/warnings-in-kasan.txt"),
        &[
            "warning: WARNING: CPU: 0 PID: 46 at lib/stackdepot.c:451 depot_fetch_stack+0x83/0xa0 | at 45.723605 | cpu 0 | sh/46 | in depot_fetch_stack+0x83 | 23 lines | []",
            "warning: WARNING: CPU: 0 PID: 46 at lib/stackdepot.c:719 stack_depot_print+0x36/0x40 | at 45.723605 | cpu 0 | sh/46 | in stack_depot_print+0x36 | 24 lines | []",
            "warning: WARNING: CPU: 0 PID: 46 at lib/stackdepot.c:451 depot_fetch_stack+0x83/0xa0 | at 45.723605 | cpu 0 | sh/46 | in depot_fetch_stack+0x83 | 24 lines | []",
            "warning: WARNING: CPU: 0 PID: 46 at lib/stackdepot.c:719 stack_depot_print+0x36/0x40 | at 45.723605 | cpu 0 | sh/46 | in stack_depot_print+0x36 | 24 lines | []",
            "kasan: BUG: KASAN: slab-out-of-bounds in recursive_loop+0x10d/0x130 | at 45.721754 | cpu 0 | sh/46 | 46 lines | []",
            "oops: BUG: kernel NULL pointer dereference, address: 0000000000000000 | at 45.814047 | cpu 1 | init/44 | 36 lines | []",
        ],
    );
    check(
        include_str!("consoles/soft-lockup.txt"),
        &[
            "soft-lockup: watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [init:45] | at 41.457400 | cpu 1 | init/45 | in lkdtm_SOFTLOCKUP+0xe | 58 lines | [lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
            "rcu-stall: rcu: INFO: rcu_sched self-detected stall on CPU | at 42.557830 | cpu 1 | init/45 | in lkdtm_SOFTLOCKUP+0xe | 66 lines | [lkdtm_do_action+0x22 direct_entry+0xa6 full_proxy_write+0x91 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
            "panic: Kernel panic - not syncing: sysrq triggered crash | at 52.162940 | cpu 0 | init/1 | in sysrq_handle_crash+0x39 | 36 lines | [panic+0x3f4 sysrq_handle_crash+0x39 __handle_sysrq+0x127 write_sysrq_trigger+0x62 proc_reg_write+0xd6 vfs_write+0x191 ksys_write+0xb8 do_syscall_64+0x64 entry_SYSCALL_64_after_hwframe+0x4b]",
        ],
    );
}
