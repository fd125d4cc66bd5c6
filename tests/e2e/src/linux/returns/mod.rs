//! Return probes.

pub mod own;
pub mod patched;
pub mod shared;

use std::collections::BTreeMap;
use std::time::Instant;

use vmprobe_client::v1::{Event, EventKind, FollowedCall, Registers, Return, event};

use super::guest::{Guest, VM, files};
use super::jumps::{SETTLE, jump};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_return_has_its_value_its_entry_and_its_time",
        ids: &["KP16"],
        needs: Needs::Linux,
        run: |cx| values(cx, Way::Breakpoints),
    },
    Test {
        name: "returns_of_nested_and_recursive_calls_are_told_innermost_first",
        ids: &["KP16"],
        needs: Needs::Linux,
        run: |cx| nesting(cx, Way::Breakpoints),
    },
    Test {
        name: "calls_beyond_maxactive_are_missed_and_counted",
        ids: &["KP06", "KP16"],
        needs: Needs::Linux,
        run: |cx| maxactive(cx, Way::Breakpoints),
    },
    Test {
        name: "return_probes_are_removed_and_switched_with_calls_in_flight",
        ids: &["KP16"],
        needs: Needs::Linux,
        run: |cx| in_flight(cx, Way::Breakpoints),
    },
    Test {
        name: "calls_that_never_return_do_no_harm",
        ids: &["KP16"],
        needs: Needs::Linux,
        run: |cx| never(cx, Way::Breakpoints),
    },
    Test {
        name: "a_return_without_an_exit_has_its_value_its_entry_and_its_time",
        ids: &["JP11"],
        needs: Needs::Linux,
        run: |cx| values(cx, Way::Jumps),
    },
    Test {
        name: "returns_of_nested_calls_without_an_exit_are_told_innermost_first",
        ids: &["JP11"],
        needs: Needs::Linux,
        run: |cx| nesting(cx, Way::Jumps),
    },
    Test {
        name: "calls_beyond_maxactive_are_missed_without_an_exit_and_counted",
        ids: &["JP11"],
        needs: Needs::Linux,
        run: |cx| maxactive(cx, Way::Jumps),
    },
    Test {
        name: "return_probes_that_are_jumps_are_removed_and_switched_with_calls_in_flight",
        ids: &["JP11"],
        needs: Needs::Linux,
        run: |cx| in_flight(cx, Way::Jumps),
    },
    Test {
        name: "calls_that_never_return_do_no_harm_to_jumps",
        ids: &["JP11"],
        needs: Needs::Linux,
        run: |cx| never(cx, Way::Jumps),
    },
];

/// How calls are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Breakpoints,
    Jumps,
}

impl Way {
    pub(super) async fn ready(
        self,
        cx: &Context,
        kernel: &'static str,
        vcpus: u32,
    ) -> Result<Guest, Failure> {
        match self {
            Self::Breakpoints => Guest::breakpoints(cx, kernel, vcpus).await,
            Self::Jumps => Guest::ready(cx, kernel, vcpus).await,
        }
    }

    /// Waits until these probes are settled in this way.
    pub(super) async fn settle(self, guest: &Guest, names: &[&str]) -> Result<(), Failure> {
        if self == Self::Jumps {
            for name in names {
                jump(guest, name).await?;
            }
        }
        Ok(())
    }
}

/// A return's event and its details.
struct Returned {
    event: Event,
    detail: Return,
    entry: Registers,
}

impl Returned {
    fn new(event: Event) -> Result<Self, Failure> {
        check_eq!(event.kind(), EventKind::Return, "kind of {event:?}");
        let Some(event::Detail::Return(detail)) = event.detail else {
            return Err(wrong!("a return without detail: {event:?}"));
        };
        let entry = detail.entry.ok_or_else(|| wrong!("no entry: {event:?}"))?;
        check!(event.tsc > detail.entry_tsc, "no time passed in {event:?}");
        Ok(Self {
            event,
            detail,
            entry,
        })
    }

    fn registers(&self) -> Registers {
        self.event.registers.unwrap_or_default()
    }
}

/// All returns until the guest's end.
async fn rest(stream: &mut vmprobe_client::EventStream) -> Result<Vec<Returned>, Failure> {
    crate::events::all(stream)
        .await?
        .into_iter()
        .map(Returned::new)
        .collect()
}

fn values(cx: &Context, way: Way) -> TestResult {
    const CALLS: u64 = 100;
    /// The mask that each call leaves, and the next one returns.
    const UMASK: u64 = 0o022;
    cx.block_on(async {
        let mut guest = way.ready(cx, files::BZIMAGE_6_1, 2).await?;
        guest.work("threads syscall=umask count=1").await?;
        let probe = guest.probe("r:umask __x64_sys_umask").await?;
        way.settle(&guest, &["umask"]).await?;
        let before = guest.listed("umask").await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest
            .work(&format!("threads syscall=umask count={CALLS}"))
            .await?;
        let listed = guest.listed("umask").await?;
        check_eq!(listed.hits, 2 * CALLS, "returns");
        check_eq!(listed.missed, 0, "missed calls");
        let exits = match way {
            Way::Breakpoints => 4 * CALLS,
            Way::Jumps => 0,
        };
        check_eq!(listed.exits - before.exits, exits, "exits");
        let caller = guest.symbol("do_syscall_64").await?;
        guest.remove(&["umask"]).await?;
        guest.quit().await?;
        let returns = rest(&mut stream).await?;
        guest.power_off().await?;
        check_eq!(returns.len() as u64, 2 * CALLS, "events");
        for one in &returns {
            check_eq!(one.registers().rax, UMASK, "value returned");
            check_eq!(one.entry.rip, probe.address, "RIP at the entry");
            check_eq!(
                one.registers().rsp,
                one.entry.rsp + 8,
                "stack after the return"
            );
            check_eq!(
                one.registers().rip,
                one.detail.caller,
                "RIP after the return"
            );
            let within = one.detail.caller.wrapping_sub(caller);
            check!(within < 0x1000, "returned to {:#x}", one.detail.caller);
        }
        pass()
    })
}

fn nesting(cx: &Context, way: Way) -> TestResult {
    const POLLS: u64 = 10;
    /// A pattern, as some compilers add an ending to the name.
    const RECURSIVE: &str = "__ep_eventpoll_poll*";
    cx.block_on(async {
        let mut guest = way.ready(cx, files::BZIMAGE_6_1, 1).await?;
        let (symbols, _) = guest.client.lookup_symbols(VM, RECURSIVE, 1).await?;
        let function = symbols.first().map_or(RECURSIVE, |symbol| &symbol.name);
        let probes = guest
            .probes(&[
                &format!("entry={function}"),
                &format!("r64:again {function}"),
                "r64:outer do_sys_poll",
            ])
            .await?;
        way.settle(&guest, &["entry", "again", "outer"]).await?;
        let ids = probes[1..].iter().map(|probe| probe.id).collect();
        let mut stream = guest.client.events(VM, ids).await?;
        let done = guest.work(&format!("nested count={POLLS}")).await?;
        let depth = done["depth"].as_u64().unwrap_or_default();
        let (entry, again) = (guest.listed("entry").await?, guest.listed("again").await?);
        check_eq!(again.hits, entry.hits, "returns of {function}, and calls");
        check!(
            entry.hits >= POLLS * depth,
            "{} calls in {POLLS} polls of a chain of {depth}",
            entry.hits
        );
        check_eq!(again.missed, 0, "missed calls");
        guest.remove(&["entry", "again", "outer"]).await?;
        guest.quit().await?;
        let returns = rest(&mut stream).await?;
        guest.power_off().await?;

        let mut deepest = 0;
        for (index, one) in returns.iter().enumerate() {
            // Calls that were entered later and returned earlier lie wholly within this one.
            let inner = returns[..index]
                .iter()
                .rev()
                .take_while(|inner| inner.detail.entry_tsc > one.detail.entry_tsc);
            let mut count = 0;
            for inner in inner {
                check!(
                    inner.event.tsc < one.event.tsc && inner.entry.rsp < one.entry.rsp,
                    "a call isn't nested in the one around it: {:?}",
                    inner.event
                );
                count += 1;
            }
            if one.event.probe_id == probes[1].id {
                deepest = deepest.max(count + 1);
            }
        }
        check_eq!(deepest, depth, "depth of the recursion");
        pass_with(format!("{} returns, {depth} deep", returns.len()))
    })
}

const READERS: u64 = 8;

fn maxactive(cx: &Context, way: Way) -> TestResult {
    const MOST: u64 = 3;
    cx.block_on(async {
        let mut guest = way.ready(cx, files::BZIMAGE_6_1, 2).await?;
        // The return probes are on two functions of which one calls the other, as jumps of one function share one
        // limit.
        guest
            .probes(&[
                &format!("r{MOST}:few pipe_read"),
                "r64:many vfs_read",
                "entry=pipe_read",
            ])
            .await?;
        way.settle(&guest, &["few", "many", "entry"]).await?;
        guest
            .say(&format!("workload=readers count={READERS}"))
            .await?;
        guest.console.report("blocked").await?;
        for (name, hits, missed) in [("entry", READERS, 0), ("few", 0, READERS - MOST)] {
            let probe = guest.listed(name).await?;
            check_eq!(
                (probe.hits, probe.missed),
                (hits, missed),
                "{name} in flight"
            );
        }
        // These are the calls that the guest's live patching would wait for.
        let id = guest.listed("few").await?.id;
        let calls = guest.client.calls(VM).await?;
        let few: Vec<_> = calls
            .iter()
            .filter(|call| call.probe_ids.contains(&id))
            .collect();
        check_eq!(few.len() as u64, MOST, "calls listed: {calls:?}");
        let known = |call: &&FollowedCall| call.pid.is_some() && call.comm() == "init";
        check!(few.iter().all(known), "whose calls: {few:?}");
        guest.say("go").await?;
        guest.console.report("done").await?;
        let calls = guest.client.calls(VM).await?;
        let left = calls.iter().any(|call| call.probe_ids.contains(&id));
        check!(!left, "calls listed that are over: {calls:?}");
        let (few, many) = (guest.listed("few").await?, guest.listed("many").await?);
        check_eq!(
            (few.hits, few.missed),
            (MOST, READERS - MOST),
            "few in the end"
        );
        check!(
            many.hits >= READERS && many.missed == 0,
            "calls around them: {many:?}"
        );
        // Calls that have returned leave room for other calls.
        guest.work("pipes count=10").await?;
        let few = guest.listed("few").await?;
        check!(few.hits > MOST, "no call is followed any more: {few:?}");
        guest.finish().await?;
        pass()
    })
}

fn in_flight(cx: &Context, way: Way) -> TestResult {
    cx.block_on(async {
        let mut guest = way.ready(cx, files::BZIMAGE_6_12, 2).await?;
        for change in ["remove", "disable", "disarm", "replace"] {
            guest
                .probes(&[
                    "r64:pipe pipe_read",
                    "r64:vfs vfs_read",
                    "r64:other pipe_read",
                ])
                .await?;
            way.settle(&guest, &["pipe", "vfs", "other"]).await?;
            guest
                .say(&format!("workload=readers count={READERS}"))
                .await?;
            guest.console.report("blocked").await?;
            let pipe = vec!["pipe".to_owned()];
            match change {
                "remove" => drop(guest.remove(&["pipe"]).await?),
                "disable" => drop(guest.client.disable_probes(VM, Vec::new(), pipe).await?),
                "disarm" => drop(guest.client.disarm_probes(VM).await?),
                _ => {
                    guest.remove(&["pipe", "vfs"]).await?;
                    guest
                        .probes(&["r64:pipe pipe_read", "vfs=vfs_read"])
                        .await?;
                }
            }
            // Other probes use the arena before the calls return.
            guest
                .probes(&["ksys_read", "ksys_write", "r64:w vfs_write"])
                .await?;
            if change != "disarm" {
                way.settle(&guest, &["w"]).await?;
            }
            guest.say("go").await?;
            guest.console.report("done").await?;
            if change != "disarm" {
                let other = guest.listed("other").await?;
                check_eq!(
                    other.hits,
                    READERS,
                    "returns of the probe that stays ({change})"
                );
            }
            guest.client.arm_probes(VM).await?;
            let all = guest.client.list_probes(VM).await?;
            let ids = all.iter().map(|probe| probe.id).collect();
            guest.client.unregister_probes(VM, ids, Vec::new()).await?;
            guest.work("sweep count=1").await?;
        }
        guest.finish().await?;
        pass()
    })
}

/// Has tasks end inside `do_exit` until such a call is followed again: then the engine has noticed that other tasks
/// have ended.
async fn until_followed(guest: &mut Guest) -> Result<(), Failure> {
    let mut missed = guest.listed("exit").await?.missed;
    loop {
        guest.work("forks count=1").await?;
        let now = guest.listed("exit").await?.missed;
        if now == missed {
            return Ok(());
        }
        missed = now;
    }
}

fn never(cx: &Context, way: Way) -> TestResult {
    const FORKS: u64 = 30;
    const MOST: u64 = 4;
    cx.block_on(async {
        let mut guest = way.ready(cx, files::BZIMAGE_6_1, 2).await?;
        let exit = format!("r{MOST}:exit do_exit");
        guest
            .probes(&[&exit, "calls=do_exit", "r64:read vfs_read"])
            .await?;
        way.settle(&guest, &["exit", "calls", "read"]).await?;
        // As many calls as are followed at a time end inside. Then there is room for others, also when the probe has
        // been removed and registered again.
        for _ in 0..3 {
            guest.work(&format!("forks count={MOST}")).await?;
            let told = guest.listed("exit").await?;
            check_eq!((told.hits, told.missed), (0, 0), "calls of do_exit");
            for _ in 0..2 * MOST {
                until_followed(&mut guest).await?;
            }
            guest.remove(&["exit"]).await?;
            guest.probe(&exit).await?;
            way.settle(&guest, &["exit"]).await?;
        }
        let before = guest.listed("calls").await?.hits;
        guest.work(&format!("forks count={FORKS}")).await?;
        // Each of these calls ended inside, or was beyond the limit. A task takes a moment to end.
        let end = Instant::now() + SETTLE;
        let calls = loop {
            let (exit, calls) = (guest.listed("exit").await?, guest.listed("calls").await?);
            let all = calls.hits - before;
            check!(all >= FORKS, "calls of do_exit: {all}");
            check_eq!(exit.hits, 0, "returns of do_exit");
            if exit.missed + exit.ended == all {
                check!(exit.ended >= MOST, "calls that ended inside: {exit:?}");
                break calls;
            }
            check!(
                exit.missed + exit.ended < all && Instant::now() < end,
                "{all} calls of do_exit: {exit:?}"
            );
        };
        let reads = guest.listed("read").await?.hits;
        guest.work("files count=10").await?;
        check!(
            guest.listed("read").await?.hits >= reads + 10,
            "returns are not told any more"
        );
        let all = guest.remove(&["exit", "calls", "read"]).await?;
        let by_name: BTreeMap<&str, _> = all
            .iter()
            .map(|probe| (&*probe.name, (probe.missed, probe.ended)))
            .collect();
        guest.work("sweep count=1").await?;
        guest.finish().await?;
        pass_with(format!(
            "{} exits; missed, and ended inside: {by_name:?}",
            calls.hits
        ))
    })
}
