//! The guest's own tools on functions that have jumps of ours.

use super::{JUMP, first_byte, jump};
use crate::context::Context;
use crate::linux::code::straight;
use crate::linux::guest::{Guest, files};
use crate::linux::text::Text;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "the_guest_s_kprobes_and_our_jumps_count_the_same_calls_on_6_1",
        ids: &["JP04", "KP13"],
        needs: Needs::Linux,
        run: |cx| kprobes(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "the_guest_s_kprobes_and_our_jumps_count_the_same_calls_on_6_12",
        ids: &["JP04", "KP13"],
        needs: Needs::Linux,
        run: |cx| kprobes(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "the_guest_s_kprobe_on_our_jump_outlives_it_and_is_outlived_by_it",
        ids: &["JP04", "KP13"],
        needs: Needs::Linux,
        run: same_place,
    },
    Test {
        name: "the_guest_s_function_tracers_and_our_jumps_count_the_same_calls",
        ids: &["JP04", "KP13"],
        needs: Needs::Linux,
        run: tracers,
    },
    Test {
        name: "the_guest_patches_its_static_keys_while_jumps_count_every_call",
        ids: &["JP04", "KP12"],
        needs: Needs::Linux,
        run: static_keys,
    },
];

const FUNCTION: &str = "__x64_sys_umask";
const CALLS: u64 = 100;
/// Bytes of a jump.
const JUMP_LEN: u64 = 5;

/// Checks that our jump has counted `calls` calls since `before`, without exits.
async fn counted(guest: &Guest, before: (u64, u64), calls: u64) -> Result<(u64, u64), Failure> {
    let probe = jump(guest, "ours").await?;
    check_eq!(
        (probe.hits - before.0, probe.missed),
        (calls, 0),
        "hits and missed hits of ours at `{}`",
        probe.instruction
    );
    check_eq!(probe.exits, before.1, "exits of ours");
    Ok((probe.hits, probe.exits))
}

fn kprobes(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 2).await?;
        let request = format!("kprobe syscall=umask count={CALLS}");
        guest.work(&request).await?;
        let text = Text::of(&guest).await?;
        let start = guest.symbol(FUNCTION).await?;
        let code = straight(&guest, FUNCTION).await?;
        let entry = guest.probe(&format!("ours={FUNCTION}")).await?;
        let mut before = (0, jump(&guest, "ours").await?.exits);
        // At the entry, by its ftrace site, and at the return.
        let done = guest.work(&request).await?;
        for name in ["p0", "r0"] {
            let event = &done["events"][name];
            check_eq!(event["hits"], CALLS, "hits of the guest's {name}: {done}");
            check_eq!(event["missed"], 0, "misses of the guest's {name}");
        }
        before = counted(&guest, before, CALLS).await?;
        // At each instruction behind the jump's. For the kernel, the instructions that the jump has overwritten don't
        // exist any more, and it refuses them; the others are as before.
        let behind = code.iter().map(iced_x86::Instruction::ip);
        let behind: Vec<u64> = behind.filter(|ip| *ip > entry.address).collect();
        let end = entry.address + JUMP_LEN;
        let hidden = behind.iter().filter(|ip| **ip < end).count();
        check!(behind.len() > hidden, "{FUNCTION} is too short: {code:x?}");
        let places: Vec<String> = behind
            .iter()
            .map(|ip| format!("{FUNCTION}+{:#x}", ip - start))
            .collect();
        let done = guest
            .work(&format!("{request} at={}", places.join(",")))
            .await?;
        for (index, ip) in behind.iter().enumerate() {
            let name = format!("p{index}");
            let hits = done["events"][&name]["hits"].as_u64();
            let expected = (*ip >= end).then_some(CALLS);
            check_eq!(hits, expected, "hits of the guest's own at {ip:#x}: {done}");
            check_eq!(
                done["refused"][&name].is_string(),
                *ip < end,
                "whether the kernel refuses its own at {ip:#x}: {done}"
            );
        }
        counted(&guest, before, CALLS).await?;
        guest.remove(&["ours"]).await?;
        text.unchanged(&guest).await?;
        guest.finish().await?;
        pass_with(format!(
            "{} of the guest's kprobes behind our jump, {hidden} refused in it",
            behind.len() - hidden
        ))
    })
}

/// When our jump goes away from under the guest's int3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    BeforeCalls,
    AfterCalls,
    AfterTheirs,
}

/// The guest's kprobe is on the instruction that is our jump, and the kernel takes our jump for its own code.
fn same_place(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, 2).await?;
        let request = format!("kprobe syscall=umask count={CALLS}");
        guest.work(&request).await?;
        let text = Text::of(&guest).await?;
        let start = guest.symbol(FUNCTION).await?;
        // A jump with several instructions under it, and one with a single instruction.
        let code = straight(&guest, FUNCTION).await?;
        let mut places = vec![FUNCTION.to_owned()];
        let entry = guest.probe(&format!("look={FUNCTION}")).await?.address;
        guest.remove(&["look"]).await?;
        let short = code.iter().find(|it| it.ip() > entry && it.len() < 5);
        places.extend(short.map(|it| format!("{FUNCTION}+{:#x}", it.ip() - start)));
        for place in &places {
            for goes in [Goes::AfterTheirs, Goes::AfterCalls, Goes::BeforeCalls] {
                round(&mut guest, &text, place, goes).await?;
            }
        }
        guest.finish().await?;
        pass_with(format!("at {}", places.join(" and ")))
    })
}

async fn round(guest: &mut Guest, text: &Text, place: &str, goes: Goes) -> Result<(), Failure> {
    let what = format!("{place}, ours goes {goes:?}");
    guest.probe(&format!("ours={place}")).await?;
    let ours = jump(guest, "ours").await?;
    check_eq!(first_byte(guest, &ours).await?, JUMP, "code of {what}");
    let offset = ours.address - text.start;
    let at = text.start + offset;
    let function = guest.symbol(FUNCTION).await?;
    guest
        .say(&format!(
            "workload=kprobe syscall=umask count={CALLS} at={FUNCTION}+{:#x} hold=yes",
            at - function
        ))
        .await?;
    let armed = guest.console.report("armed").await?;
    check_eq!(
        armed["events"][0],
        "p0",
        "the guest's kprobe at {what}: {armed}"
    );
    let mut hits = CALLS;
    if goes == Goes::BeforeCalls {
        hits = 0;
        guest.remove(&["ours"]).await?;
    }
    guest.say("").await?;
    guest.console.report("called").await?;
    if goes == Goes::AfterCalls {
        let removed = guest.remove(&["ours"]).await?;
        check_eq!(removed[0].hits, hits, "hits of ours at {what}");
    }
    guest.say("").await?;
    let done = guest.console.report("done").await?;
    let event = &done["events"]["p0"];
    check_eq!(
        event["hits"],
        CALLS,
        "hits of the guest's at {what}: {done}"
    );
    if goes == Goes::AfterTheirs {
        let probe = guest.listed("ours").await?;
        check_eq!(
            (probe.hits, probe.missed),
            (hits, 0),
            "hits of ours at {what}"
        );
        guest.remove(&["ours"]).await?;
    }
    // All are gone now: the function works as before, and can be probed again.
    guest
        .work(&format!("threads syscall=umask count={CALLS}"))
        .await?;
    guest.probe(&format!("ours={place}")).await?;
    jump(guest, "ours").await?;
    guest
        .work(&format!("threads syscall=umask count={CALLS}"))
        .await?;
    let again = guest.remove(&["ours"]).await?;
    check_eq!(
        again[0].hits,
        2 * CALLS,
        "hits of ours afterwards at {what}"
    );
    let now = guest.memory(at, 16).await?;
    let was = text.at(at, 16);
    check!(now == was, "{what} left {now:02x?} of {was:02x?}");
    text.unchanged(guest).await?;
    guest.healthy().await
}

fn tracers(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 2).await?;
        let request = format!("ftrace syscall=umask count={CALLS}");
        guest.work(&request).await?;
        let text = Text::of(&guest).await?;
        guest.probe(&format!("ours={FUNCTION}")).await?;
        let before = jump(&guest, "ours").await?;
        let done = guest.work(&request).await?;
        for tracer in ["function", "function_graph"] {
            let seen = &done["seen"][tracer][FUNCTION];
            check_eq!(*seen, CALLS, "calls that the guest's {tracer} tracer saw");
        }
        // Once for each tracer.
        counted(&guest, (0, before.exits), 2 * CALLS).await?;
        guest.remove(&["ours"]).await?;
        text.unchanged(&guest).await?;
        guest.finish().await?;
        pass_with(format!("{} calls", 2 * CALLS))
    })
}

fn static_keys(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, 4).await?;
        let request = "statickeys syscall=umask count=20 rounds=2";
        guest.work(request).await?;
        let text = Text::of(&guest).await?;
        // Functions whose jump labels are switched, at each instruction that can be probed and isn't in another probe's
        // region. If the region of a jump would contain a label, the probe has to stay a breakpoint.
        let mut places = Vec::new();
        for name in [
            "__schedule",
            "ttwu_do_wakeup",
            "send_signal_locked",
            "__run_timers",
        ] {
            let Ok(start) = guest.symbol(name).await else {
                continue;
            };
            let bytes = guest.memory(start, 0x200).await?;
            let code = crate::linux::code::decode(start, &bytes);
            let mut free = start;
            for instruction in code {
                if instruction.ip() >= free {
                    places.push(format!("{:#x}", instruction.ip()));
                    free = instruction.ip() + 20;
                }
            }
        }
        let places = crate::linux::whole::accepted(&guest, &places).await?;
        let texts: Vec<String> = places.iter().map(|it| format!("p {it} count")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let others = guest.probes(&texts).await?;
        guest.probe(&format!("ours={FUNCTION}")).await?;
        let before = jump(&guest, "ours").await?;
        let settled = super::settle(&guest, &[]).await?.probes;
        let jumps = settled.iter().filter(|it| super::is_jump(it)).count();
        check!(jumps > 1, "no jumps: {settled:?}");
        let done = guest.work(request).await?;
        let calls = done["calls"].as_u64().unwrap_or_default();
        check!(calls > 0, "no calls: {done}");
        counted(&guest, (0, before.exits), calls).await?;
        let mut ids: Vec<u64> = others.iter().map(|probe| probe.id).collect();
        ids.push(before.id);
        let vm = crate::linux::guest::VM;
        let removed = guest.client.unregister_probes(vm, ids, Vec::new()).await?;
        text.unchanged(&guest).await?;
        guest.finish().await?;
        let hits: u64 = removed.iter().map(|probe| probe.hits).sum();
        pass_with(format!(
            "{calls} calls, {} switches, {jumps} jumps, {hits} hits",
            done["switches"]
        ))
    })
}
