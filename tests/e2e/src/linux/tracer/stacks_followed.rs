//! Stacks through calls that return probes follow: their return addresses lead to code of ours.

use std::collections::BTreeSet;

use super::super::guest::{Guest, VM, files};
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

/// Where it is looked, and what calls it: system calls that open a file.
const PLACE: &str = "vfs_open";
const CALLERS: [&str; 3] = ["vfs_open", "path_openat", "do_sys_openat2"];
/// How often the guest opens a file.
const CALLS: u64 = 20;
/// Return addresses of such a stack at least.
const LEAST: usize = 6;

fn followed(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 1).await?;
        let work = format!("files count={CALLS}");
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.probes(&[&format!("p:s {PLACE} stack=40")]).await?;
        jump(&guest, "s").await?;
        let mut kinds: Vec<BTreeSet<Vec<u64>>> = Vec::new();
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
        // A jump has copied a piece of the stack. How much of that a system call's own frame takes is drawn anew for
        // each call (`add_random_kstack_offset`), so the last callers may be missing.
        let all = kinds.iter().flatten();
        let whole = all.clone().max_by_key(|stack| stack.len());
        let whole = whole.cloned().unwrap_or_default();
        for (stacks, with) in kinds.iter().zip(["without calls followed", "with"]) {
            check!(
                !stacks.is_empty() && stacks.iter().all(|stack| whole.starts_with(stack)),
                "stacks {with}: {stacks:x?}, the longest of all: {whole:x?}"
            );
        }
        guest.finish().await?;
        pass_with(format!("{hits} stacks of up to {} callers", whole.len()))
    })
}
