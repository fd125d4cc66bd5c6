//! Memory above 4 GiB, of huge pages, and on NUMA nodes.

use serde_json::json;
use vmprobe_client::v1::CreateVmRequest;

use super::guest::{Config, Guest, VM, files};
use super::jumps::{self, jump};
use crate::context::Context;
use crate::events;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_string_above_4_gib_is_told_by_a_breakpoint_and_by_a_jump",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: above,
    },
    Test {
        name: "a_guest_sees_the_numa_nodes_that_it_was_asked_for",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: nodes,
    },
];

/// The guest has 6 GiB, of which it uses little.
fn above(cx: &Context) -> TestResult {
    const CALLS: u64 = 3;
    cx.block_on(async {
        let config = Config {
            kernel: files::BZIMAGE_6_12,
            memory_mib: 6 << 10,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        let text = "p:open do_sys_openat2 name=+0($arg2):ustring if name == \"/above-4-gib\"";
        let probes = guest.probes(&[text]).await?;
        let mut stream = guest.client.events(VM, vec![probes[0].id]).await?;
        let mut before = jump(&guest, "open").await?;
        let mut physical = 0;
        for is_jump in [true, false] {
            guest.client.set_optimization(VM, is_jump).await?;
            let done = guest.work(&format!("above count={CALLS}")).await?;
            physical = done["physical"].as_u64().unwrap_or_default();
            check!(physical >= 1 << 32, "the name is at {physical:#x}");
            let (events, lost) = events::next(&mut stream, CALLS).await?;
            check_eq!((events.len() as u64, lost), (CALLS, 0), "events");
            let now = guest.listed("open").await?;
            check_eq!(now.hits, before.hits + CALLS, "hits, of a jump: {is_jump}");
            if is_jump {
                jumps::no_exits(&before, &now, "of a jump")?;
            }
            before = now;
        }
        guest.finish().await?;
        pass_with(format!("a page at {physical:#x}"))
    })
}

fn nodes(cx: &Context) -> TestResult {
    const MEMORY_MIB: u64 = 1024;
    cx.block_on(async {
        let config = Config {
            kernel: files::BZIMAGE_6_12,
            memory_mib: MEMORY_MIB,
            vcpus: 4,
            ..Config::new("workload=echo")
        };
        let change = |request: &mut CreateVmRequest| request.numa_nodes = 2;
        let mut guest = Guest::hold_changed(cx, &config, change).await?;
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        let done = guest.work("nodes").await?;
        let nodes = done["nodes"].as_array().ok_or_else(|| wrong!("{done}"))?;
        check_eq!(nodes.len(), 2, "nodes");
        for (node, cpus, distances) in [(&nodes[0], "0-1", "10 20"), (&nodes[1], "2-3", "20 10")] {
            check_eq!(node["cpus"], json!(cpus), "CPUs of a node");
            check_eq!(node["distances"], json!(distances), "its distances");
            // The kernel has taken some for itself.
            let mib = node["kib"].as_u64().unwrap_or_default() >> 10;
            let half = MEMORY_MIB / 2;
            check!((half * 3 / 4..=half).contains(&mib), "a node has {mib} MiB");
        }
        guest.finish().await?;
        pass()
    })
}
