//! Stacks through the code that ftrace generates for the guest's own probes. No table describes that code.

use std::collections::BTreeSet;

use super::super::guest::{Guest, VM, files};
use super::super::jumps::jump;
use super::stacks::Symbols;
use crate::context::Context;
use crate::events;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[Test {
    name: "a_stack_leads_through_the_code_that_ftrace_makes_for_the_guest_s_kprobe",
    ids: &["TR07"],
    needs: Needs::Linux,
    run: copied,
}];

/// The function with the guest's kprobe: at the entry, where ftrace calls the kprobe (`CONFIG_KPROBES_ON_FTRACE`).
const TRACED: &str = "do_sys_openat2";
/// What the guest's kprobe calls for each of its events.
const INSIDE: &str = "trace_event_buffer_reserve";
/// How often the guest opens a file.
const CALLS: u64 = 5;
/// The least callers of a jump's stack: the jump copies a piece, and the length of a system call's stack is random for
/// each call (`add_random_kstack_offset`).
const LEAST: usize = 2;

fn copied(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, 1).await?;
        let work = format!("files count={CALLS}");
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.client.set_optimization(VM, false).await?;
        let stack_of = |name, place| format!("p:{name} {place} stack=40");
        guest.probe(&stack_of("traced", TRACED)).await?;
        guest.work(&work).await?;
        let removed = guest.remove(&["traced"]).await?;
        let (direct, lost) = events::next(&mut stream, removed[0].hits).await?;
        check_eq!(lost, 0, "lost events");
        let callers: BTreeSet<&[u64]> = direct.iter().map(|event| &event.stack[1..]).collect();

        guest
            .work(&format!("define at=p:mine/traced,{TRACED}"))
            .await?;
        let mut symbols = Symbols::default();
        let mut compared = 0;
        for is_jump in [false, true] {
            guest.client.set_optimization(VM, is_jump).await?;
            guest.probe(&stack_of("inside", INSIDE)).await?;
            if is_jump {
                jump(&guest, "inside").await?;
            }
            guest.work(&work).await?;
            let removed = guest.remove(&["inside"]).await?;
            let (traced, lost) = events::next(&mut stream, removed[0].hits).await?;
            check_eq!(lost, 0, "lost events");
            check!(traced.len() as u64 >= CALLS, "hits: {}", traced.len());
            for event in &traced {
                let (functions, _) = symbols.functions(&guest, &event.stack).await;
                let entry = functions.iter().position(|function| function == TRACED);
                let behind = entry.map_or(functions.len(), |entry| entry + 1);
                let ours = &event.stack[behind..];
                let is_one = match is_jump {
                    true => {
                        ours.len() >= LEAST
                            && callers.iter().any(|callers| callers.starts_with(ours))
                    }
                    false => !event.stack_incomplete && callers.contains(ours),
                };
                check!(
                    is_one,
                    "jump: {is_jump}: {TRACED} and its callers aren't in {functions:?}"
                );
                // The generated code that called the kprobe has no name.
                let caller = behind
                    .checked_sub(2)
                    .and_then(|caller| functions.get(caller));
                check!(
                    caller.is_some_and(|caller| caller.starts_with("0x")),
                    "{TRACED} calls {caller:?}, and no code of ftrace's"
                );
                compared += 1;
            }
        }
        guest.work("trace").await?;
        guest.finish().await?;
        pass_with(format!("{compared} stacks of {} kinds", callers.len()))
    })
}
