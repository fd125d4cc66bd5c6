//! Memory above 4 GiB, of huge pages, and on NUMA nodes.

use serde_json::json;
use vmprobe_client::v1::CreateVmRequest;

use super::guest::{Config, Guest, VM, files};
use super::jumps::{self, jump};
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_string_above_4_gib_is_told_by_a_breakpoint_and_by_a_jump",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: above,
    },
    Test {
        name: "a_guest_of_huge_pages_takes_them_when_it_is_made_and_gives_them_back",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: huge_pages,
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

/// The host's huge pages of 2 MiB: how many there are to be, and how many are free.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE_HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Reserves as many of them on the host as the guest takes. If the test lacks the privilege for that, it only tries
/// what happens without them.
fn huge_pages(cx: &Context) -> TestResult {
    const MEMORY_MIB: u64 = 512;
    const PAGES: u64 = MEMORY_MIB / 2;
    let config = Config {
        kernel: files::BZIMAGE_6_12,
        memory_mib: MEMORY_MIB,
        ..Config::new("workload=echo")
    };
    let change = |request: &mut CreateVmRequest| request.huge_pages = true;
    let number = |path: &str| -> Result<u64, Failure> {
        let text = std::fs::read_to_string(path).map_err(Failure::io("read huge pages"))?;
        text.trim()
            .parse()
            .map_err(|_| wrong!("{path} has {text:?}"))
    };
    cx.block_on(async {
        let (before, free) = (number(HUGE_PAGES)?, number(FREE_HUGE_PAGES)?);
        if free < PAGES {
            let refused = Guest::hold_changed(cx, &config, change).await;
            let refused = refused.map(drop).map_err(|error| error.to_string());
            let told =
                format!("take {PAGES} huge pages of 2 MiB, and the host has {free} that are free");
            check!(
                refused.as_ref().is_err_and(|error| error.contains(&told)),
                "too few huge pages: {refused:?}"
            );
            let more = before + PAGES - free;
            if std::fs::write(HUGE_PAGES, more.to_string()).is_err() {
                return pass_with("huge pages can't be had here".to_owned());
            }
        }
        let free = number(FREE_HUGE_PAGES)?;
        check!(free >= PAGES, "the host has only {free} free huge pages");
        let mut guest = Guest::hold_changed(cx, &config, change).await?;
        // Reserved pages count as free until they are touched.
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        let used = free - number(FREE_HUGE_PAGES)?;
        check!((1..=PAGES).contains(&used), "{used} huge pages are used");
        let probe = guest.probe("do_sys_openat2").await?;
        let before_work = jump(&guest, &probe.name).await?;
        guest.work("files count=3").await?;
        let now = guest.listed(&probe.name).await?;
        check!(
            now.hits >= before_work.hits + 3,
            "3 files were opened: {now:?}"
        );
        guest.finish().await?;
        check_eq!(
            number(FREE_HUGE_PAGES)?,
            free,
            "free huge pages after the guest"
        );
        std::fs::write(HUGE_PAGES, before.to_string())
            .map_err(Failure::io("give huge pages back"))?;
        pass_with(format!("{used} of {PAGES} huge pages were used"))
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
            // The kernel has taken some memory for itself.
            let mib = node["kib"].as_u64().unwrap_or_default() >> 10;
            let half = MEMORY_MIB / 2;
            check!((half * 3 / 4..=half).contains(&mib), "a node has {mib} MiB");
        }
        guest.finish().await?;
        pass()
    })
}
