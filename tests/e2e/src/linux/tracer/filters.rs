//! Filters: which hits count, at breakpoints and in detours.

use super::super::guest::{Guest, VM, files};
use super::super::jumps;
use crate::context::Context;
use crate::events;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "only_hits_that_meet_a_breakpoint_s_filter_count",
        ids: &["TR04"],
        needs: Needs::Linux,
        run: |cx| filters(cx, false),
    },
    Test {
        name: "only_hits_that_meet_a_jump_s_filter_count_and_no_hit_costs_an_exit",
        ids: &["TR04"],
        needs: Needs::Linux,
        run: |cx| filters(cx, true),
    },
];

/// How often the guest opens and reads `/init`.
const CALLS: u64 = 20;

/// A probe, and whether all of the calls meet its filter or none.
const PROBES: &[(&str, bool)] = &[
    (
        "p:a do_sys_openat2 name=+u0($arg2):ustring if name == \"/init\"",
        true,
    ),
    (
        "p:b do_sys_openat2 name=+u0($arg2):ustring if name == \"/ini\"",
        false,
    ),
    (
        "p:c do_sys_openat2 name=+u0($arg2):ustring if name != \"/init\"",
        false,
    ),
    (
        "p:d do_sys_openat2 name=+u0($arg2):ustring if name ~ \"*in?t\"",
        true,
    ),
    (
        "p:e do_sys_openat2 name=+u0($arg2):ustring if name ~ \"*x*\"",
        false,
    ),
    (
        "p:u do_sys_openat2 name=+u0($arg2):ustring if name ~ \"[!a-z][h-j]n?[a-z]\"",
        true,
    ),
    (
        "p:v do_sys_openat2 name=+u0($arg2):ustring if name ~ \"*[a-z][!t]\"",
        false,
    ),
    (
        "p:f do_sys_openat2 dfd=$arg1:s32 if dfd == -100 && comm == \"init\"",
        true,
    ),
    (
        "p:g do_sys_openat2 dfd=$arg1:s32 if dfd > 0 || pid != 1",
        false,
    ),
    (
        "p:h do_sys_openat2 if comm ~ \"in*\" && !(cpu > 0) && tgid == 1",
        true,
    ),
    (
        "p:i vfs_read size=$arg3:u64 if size == 64 && comm == \"init\"",
        true,
    ),
    ("p:j vfs_read size=$arg3:u64 if size & 1", false),
    (
        "p:k vfs_read at=+0($arg4):s64 size=$arg3:u32 if at == 0 && size >= 64 && size < 65",
        true,
    ),
    (
        "p:l vfs_read bad=+0(\\8):x64 if bad == 0 || bad != 0",
        false,
    ),
    (
        "r:m do_sys_openat2 fd=$retval:s32 if fd >= 0 && comm == \"init\"",
        true,
    ),
    ("r:n do_sys_openat2 fd=$retval:s32 if fd < 0", false),
    (
        "r:o do_sys_openat2 count fd=$retval:s32 if fd >= 0 && pid == 1",
        true,
    ),
    ("r:q do_sys_openat2 count fd=$retval:s32 if fd < 0", false),
    (
        "r:w do_sys_openat2 name=+u0($arg2):ustring fd=$retval:s32 if name ~ \"*[i]n?t\" && fd >= 0",
        true,
    ),
    (
        "r:x do_sys_openat2 name=+u0($arg2):ustring if name ~ \"*x*\" || tgid > 1",
        false,
    ),
    (
        "p:s do_sys_openat2 count dfd=$arg1:s32 if dfd == -100",
        true,
    ),
    ("p:t do_sys_openat2 count if comm != \"init\"", false),
];

fn filters(cx: &Context, jump: bool) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 1).await?;
        guest.client.set_optimization(VM, jump).await?;
        let mut tried = 0;
        // One probe at a time, so that each has the jump that it asks for.
        for (text, meets) in PROBES {
            let probe = guest.probe(text).await?;
            if jump {
                jumps::jump(&guest, &probe.name).await?;
            }
            let before = guest.listed(&probe.name).await?;
            let mut stream = guest.client.events(VM, vec![probe.id]).await?;
            guest.work(&format!("files count={CALLS}")).await?;
            let after = guest.remove(&[&probe.name]).await?.remove(0);
            let hits = after.hits - before.hits;
            let expected = if *meets { CALLS } else { 0 };
            check_eq!(hits, expected, "hits of `{text}`");
            check_eq!(after.missed, 0, "missed hits of `{text}`");
            if jump {
                check_eq!(after.exits - before.exits, 0, "exits of `{text}`");
            }
            let is_counted = text.contains(" count ");
            let told = if is_counted { 0 } else { expected };
            let (all, lost) = events::next(&mut stream, told).await?;
            check_eq!(lost, 0, "lost events");
            check_eq!(all.len() as u64, told, "events of `{text}`");
            for event in &all {
                let context = event.context.clone().unwrap_or_default();
                check_eq!(context.comm, b"init", "the name of the task");
                check_eq!((context.pid, context.tgid), (1, 1), "the task's numbers");
                check!(context.time_ns > 0, "the event has no time");
            }
            tried += 1;
        }
        guest.finish().await?;
        pass_with(format!("{tried} filters of {CALLS} calls each"))
    })
}
