//! Return addresses that the guest's own tools replace as well: `function_graph` and kretprobes on functions that jump
//! into each other, with return probes of ours on both.

use super::Way;
use crate::context::Context;
use crate::linux::guest::{Guest, files};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "the_guest_s_function_graph_and_our_return_probes_share_return_addresses",
        ids: &["KP16", "KP22"],
        needs: Needs::Linux,
        run: |cx| graph(cx, Way::Breakpoints),
    },
    Test {
        name: "the_guest_s_function_graph_and_our_returns_without_exits_share_return_addresses",
        ids: &["JP11", "KP22"],
        needs: Needs::Linux,
        run: |cx| graph(cx, Way::Jumps),
    },
    Test {
        name: "return_probes_go_while_the_guest_s_tools_have_calls_under_way",
        ids: &["KP16", "KP22"],
        needs: Needs::Linux,
        run: |cx| in_flight(cx, Way::Breakpoints),
    },
    Test {
        name: "return_probes_without_exits_go_while_the_guest_s_tools_have_calls_under_way",
        ids: &["JP11", "KP22"],
        needs: Needs::Linux,
        run: |cx| in_flight(cx, Way::Jumps),
    },
];

/// Has the guest's own tracing do something.
async fn tracing(guest: &mut Guest, orders: &str) -> Result<(), Failure> {
    guest.work(&format!("tracing at={orders}")).await.map(drop)
}

/// `path_put` jumps to `mntput`.
const PUTS: [&str; 2] = ["r64:outer path_put", "r64:inner mntput"];
/// Traces the whole system, as a user at the guest's shell would.
const GRAPH: &str = "current_tracer=function_graph";
const OFF: &str = "current_tracer=nop";

/// Registers the two probes and has the guest use files. Returns the calls that both probes have reported.
async fn put(guest: &mut Guest, way: Way) -> Result<u64, Failure> {
    guest.probes(&PUTS).await?;
    way.settle(guest, &["outer", "inner"]).await?;
    returns_of_files(guest).await
}

async fn returns_of_files(guest: &mut Guest) -> Result<u64, Failure> {
    let before = (guest.listed("outer").await?, guest.listed("inner").await?);
    guest.work("files count=100").await?;
    guest.work("sweep count=1").await?;
    let (outer, inner) = (guest.listed("outer").await?, guest.listed("inner").await?);
    let grown = (outer.hits - before.0.hits, inner.hits - before.1.hits);
    check!(
        grown.0 > 0 && grown.1 >= grown.0,
        "{} returns of path_put, {} of mntput",
        grown.0,
        grown.1
    );
    check_eq!((outer.missed, inner.missed), (0, 0), "missed calls");
    Ok(grown.0)
}

fn graph(cx: &Context, way: Way) -> TestResult {
    cx.block_on(async {
        let mut guest = way.ready(cx, files::BZIMAGE_6_12, 4).await?;
        // The guest's tracer comes while our probes are there.
        let mut calls = put(&mut guest, way).await?;
        tracing(&mut guest, GRAPH).await?;
        calls += returns_of_files(&mut guest).await?;
        // Our probes go, one at a time, and come again.
        guest.remove(&["inner"]).await?;
        guest.work("files count=10").await?;
        guest.remove(&["outer"]).await?;
        guest.work("files count=10").await?;
        calls += put(&mut guest, way).await?;
        // The guest's tracer goes.
        tracing(&mut guest, OFF).await?;
        calls += returns_of_files(&mut guest).await?;
        guest.remove(&["outer"]).await?;
        guest.work("files count=10").await?;
        guest.remove(&["inner"]).await?;
        guest.work("files count=10").await?;
        guest.finish().await?;
        pass_with(format!("{calls} calls"))
    })
}

/// Functions of which the first jumps to the second. Both sleep.
const OUTER: &str = "__x64_sys_read";
const INNER: &str = "ksys_read";
const READERS: u64 = 8;

fn in_flight(cx: &Context, way: Way) -> TestResult {
    cx.block_on(async {
        let mut guest = way.ready(cx, files::BZIMAGE_6_12, 2).await?;
        let graph = format!("set_ftrace_filter={INNER};{GRAPH}");
        let kretprobe = format!("kprobe_events=r:mine/x,{INNER};events/mine/x/enable=1");
        let off = "events/mine/x/enable=0;kprobe_events=";
        let no_graph = format!("{OFF};set_ftrace_filter=");
        for (on, off) in [(&*graph, &*no_graph), (&kretprobe, off)] {
            for gone in [&["outer"][..], &["inner"], &["outer", "inner"]] {
                for theirs_first in [false, true] {
                    if theirs_first {
                        tracing(&mut guest, on).await?;
                    }
                    guest
                        .probes(&[&format!("r64:outer {OUTER}"), &format!("r64:inner {INNER}")])
                        .await?;
                    way.settle(&guest, &["outer", "inner"]).await?;
                    if !theirs_first {
                        tracing(&mut guest, on).await?;
                    }
                    guest
                        .say(&format!("workload=readers count={READERS}"))
                        .await?;
                    guest.console.report("blocked").await?;
                    let missed = missed_between(&guest, way).await?;
                    let before = |name: &str| if name == "inner" { missed } else { 0 };
                    let gone_now = guest.remove(gone).await?;
                    guest.say("go").await?;
                    guest.console.report("done").await?;
                    for name in ["outer", "inner"] {
                        if gone.contains(&name) {
                            continue;
                        }
                        let probe = guest.listed(name).await?;
                        check!(
                            probe.hits >= READERS && probe.missed == before(name),
                            "{name} without {gone:?}: {probe:?}"
                        );
                        guest.remove(&[name]).await?;
                    }
                    // The calls that were under way. PID 1 may be reading the console by then, too.
                    let under_way = READERS..=READERS + 1;
                    check!(
                        gone_now.iter().all(|probe| {
                            under_way.contains(&(probe.missed - before(&probe.name)))
                        }),
                        "calls under way: {gone_now:?}"
                    );
                    tracing(&mut guest, off).await?;
                    guest.work("sweep count=1").await?;
                    guest.healthy().await?;
                }
            }
        }
        guest.finish().await?;
        pass_with("function_graph and a kretprobe, in either order")
    })
}

/// Returns how many calls of `inner` were missed when all readers sleep. That may only be the one that PID 1 was about
/// to make when both became jumps: a jump doesn't follow a call whose return address a breakpoint has replaced, as the
/// breakpoint of `outer` had until then.
async fn missed_between(guest: &Guest, way: Way) -> Result<u64, Failure> {
    let (outer, inner) = (guest.listed("outer").await?, guest.listed("inner").await?);
    check_eq!(outer.missed, 0, "missed calls of {outer:?}");
    let most = u64::from(way == Way::Jumps);
    check!(inner.missed <= most, "missed calls of {inner:?}");
    Ok(inner.missed)
}
