//! Stacks through calls that return probes follow: their return addresses lead to code of ours.

use std::collections::BTreeSet;

use super::super::guest::{Config, Guest, VM, files};
use super::super::jumps::jump;
use crate::context::Context;
use crate::events;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[Test {
    name: "the_stack_of_a_jump_leads_through_calls_that_return_probes_follow",
    ids: &["TR07"],
    needs: Needs::Linux,
    run: followed,
}];

/// The place of the probe, and its callers: system calls that open a file.
const PLACE: &str = "vfs_open";
const CALLERS: [&str; 3] = ["vfs_open", "path_openat", "do_sys_openat2"];
/// How often the guest opens a file.
const CALLS: u64 = 20;
/// The least return addresses of such a stack.
const LEAST: usize = 6;

fn followed(cx: &Context) -> TestResult {
    cx.block_on(async {
        // A jump copies a piece of the stack. How many callers that has depends on the gap before a system call's own
        // frame, which the kernel draws anew for each call (`add_random_kstack_offset`).
        let config = Config {
            kernel: files::BZIMAGE_6_12,
            kernel_args: "quiet randomize_kstack_offset=off",
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        let work = format!("files count={CALLS}");
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.probes(&[&format!("p:s {PLACE} stack=40")]).await?;
        jump(&guest, "s").await?;
        let mut kinds = Vec::new();
        let mut hits = 0;
        for is_followed in [false, true] {
            let mut names = Vec::new();
            if is_followed {
                for caller in CALLERS {
                    let name = format!("followed_{caller}");
                    guest.probes(&[&format!("r:{name} {caller} count")]).await?;
                    jump(&guest, &name).await?;
                    names.push(name);
                }
                jump(&guest, "s").await?;
            }
            guest.work(&work).await?;
            let now = guest.listed("s").await?.hits;
            let (events, lost) = events::next(&mut stream, now - hits).await?;
            hits = now;
            check_eq!(lost, 0, "lost events");
            let stacks: BTreeSet<Vec<u64>> = events.into_iter().map(|event| event.stack).collect();
            check!(
                stacks.iter().all(|stack| stack.len() >= LEAST),
                "a stack ends early: {stacks:x?}"
            );
            kinds.push(stacks);
            for name in names {
                let removed = guest.remove(&[&name]).await?.remove(0);
                check!(
                    removed.hits >= CALLS,
                    "{name} followed {} calls",
                    removed.hits
                );
            }
        }
        check_eq!(
            kinds[1],
            kinds[0],
            "stacks with calls followed, and without"
        );
        guest.finish().await?;
        pass_with(format!("{hits} stacks of {} kinds", kinds[0].len()))
    })
}
