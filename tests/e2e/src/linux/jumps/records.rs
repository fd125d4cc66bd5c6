//! What records of jumps contain, and which hits leave one.

use std::collections::BTreeMap;

use iced_x86::Instruction;
use vmprobe_client::EventStream;
use vmprobe_client::v1::{Event, Registers};

use super::{breakpoint_exits, is_jump, jump, no_exits, no_jump, settle};
use crate::context::Context;
use crate::events;
use crate::linux::code;
use crate::linux::guest::{Config, Guest, VM, files};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_jump_and_a_breakpoint_tell_the_same_of_the_same_calls",
        ids: &["JP06"],
        needs: Needs::Linux,
        run: same_registers,
    },
    Test {
        name: "events_of_jumps_and_breakpoints_come_in_one_order",
        ids: &["JP06"],
        needs: Needs::Linux,
        run: one_order,
    },
    Test {
        name: "only_hits_that_meet_a_jump_s_conditions_count_and_the_others_cost_no_exit",
        ids: &["JP12"],
        needs: Needs::Linux,
        run: conditions,
    },
];

const VCPUS: u32 = 2;
/// System calls whose instructions are compared.
const CALLED: [&str; 2] = ["umask", "getpgid"];
/// Calls on each vCPU at a time, and on all.
const CALLS: u64 = 100;
const ALL: u64 = CALLS * VCPUS as u64;

/// Boots a guest whose kernel doesn't shift its stack at each system call.
async fn steady(cx: &Context) -> Result<Guest, Failure> {
    let config = Config {
        vcpus: VCPUS,
        kernel_args: "quiet randomize_kstack_offset=off",
        ..Config::new("workload=echo")
    };
    let mut guest = Guest::boot(cx, &config).await?;
    guest.console.report("ready").await?;
    Ok(guest)
}

/// Returns the registers that most of the events have.
fn usual(events: &[&Event]) -> Result<Registers, Failure> {
    let mut counts: BTreeMap<String, (usize, Registers)> = BTreeMap::new();
    for event in events {
        let registers = event.registers.unwrap_or_default();
        let entry = counts.entry(format!("{registers:?}"));
        entry.or_insert((0, registers)).0 += 1;
    }
    let most = counts.values().max_by_key(|(count, _)| *count);
    match most {
        Some((count, registers)) if count * 2 > events.len() => Ok(*registers),
        _ => Err(wrong!(
            "{} events have {} different registers: the calls don't repeat themselves",
            events.len(),
            counts.len()
        )),
    }
}

/// Checks that the thread went from one vCPU to the next and that time advanced. Returns the usual registers on each
/// vCPU.
fn of_each_vcpu(events: &[Event]) -> Result<Vec<Registers>, Failure> {
    check_eq!(events.len() as u64, ALL, "events");
    for pair in events.windows(2) {
        check!(
            pair[0].tsc < pair[1].tsc && pair[0].vcpu <= pair[1].vcpu,
            "out of order: {pair:?}"
        );
    }
    let on = |vcpu| events.iter().filter(move |event| event.vcpu == vcpu);
    (0..VCPUS)
        .map(|vcpu| {
            let events: Vec<&Event> = on(vcpu).collect();
            check_eq!(events.len() as u64, CALLS, "events of vCPU {vcpu}");
            usual(&events)
        })
        .collect()
}

/// Returns the usual registers on each vCPU at a jump in this place, and checks that a breakpoint there has the same;
/// `None` if there is no jump.
async fn compare(
    guest: &mut Guest,
    stream: &mut EventStream,
    place: &str,
    call: &str,
) -> Result<Option<Vec<Registers>>, Failure> {
    let request = format!("pairs syscall={call} count={CALLS}");
    match guest.probe(&format!("a={place}")).await {
        Ok(_) => {}
        // The place takes no probe at all.
        Err(Failure::Client(_)) => return Ok(None),
        Err(other) => return Err(other),
    }
    let settled = settle(guest, &["a"]).await?;
    if !settled.probes.iter().all(is_jump) {
        guest.remove(&["a"]).await?;
        return Ok(None);
    }
    guest.work(&request).await?;
    let (fast, lost) = events::next(stream, ALL).await?;
    check_eq!(lost, 0, "lost events of the jump at {place}");
    let task = fast[0].task;
    check!(
        task != 0 && fast.iter().all(|event| event.task == task),
        "one thread made the calls, but the events have several tasks"
    );

    let names = vec!["a".to_owned()];
    guest.client.keep_breakpoints(VM, Vec::new(), names).await?;
    no_jump(guest, "a").await?;
    guest.work(&request).await?;
    let (slow, lost) = events::next(stream, ALL).await?;
    check_eq!(lost, 0, "lost events of the breakpoint at {place}");
    check!(
        slow[0].tsc > fast[fast.len() - 1].tsc,
        "the breakpoint's time is before the jump's at {place}"
    );
    let (fast, slow) = (of_each_vcpu(&fast)?, of_each_vcpu(&slow)?);
    for (vcpu, (jump, breakpoint)) in fast.iter().zip(&slow).enumerate() {
        check_eq!(jump, breakpoint, "registers at {place} on vCPU {vcpu}");
    }
    guest.remove(&["a"]).await?;
    Ok(Some(fast))
}

fn same_registers(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = steady(cx).await?;
        // Work of the first call only is over then.
        for call in CALLED {
            guest.work(&format!("pairs syscall={call} count=1")).await?;
        }
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let (mut jumps, mut others) = (0, Vec::new());
        for call in CALLED {
            let function = format!("__x64_sys_{call}");
            let entry = guest.probe(&format!("a={function}")).await?.address;
            guest.remove(&["a"]).await?;
            // One place after the other, so that some have live flags and registers.
            let straight = code::straight(&guest, &function).await?;
            let places = straight.iter().map(Instruction::ip);
            for place in places.filter(|place| *place >= entry) {
                let place = format!("{place:#x}");
                match compare(&mut guest, &mut stream, &place, call).await? {
                    Some(_) => jumps += 1,
                    None => others.push(place),
                }
            }
        }
        check!(
            jumps >= 4,
            "only {jumps} places take a jump, not {others:?}"
        );

        // The same with only some registers.
        let all = compare(&mut guest, &mut stream, "__x64_sys_umask", "umask").await?;
        let all = all.ok_or_else(|| wrong!("there is no jump at __x64_sys_umask"))?;
        guest.probe("a=__x64_sys_umask regs=rsi+rdi+rflags").await?;
        jump(&guest, "a").await?;
        guest
            .work(&format!("pairs syscall=umask count={CALLS}"))
            .await?;
        let (some, _) = events::next(&mut stream, ALL).await?;
        for (some, all) in of_each_vcpu(&some)?.iter().zip(&all) {
            let expected = Registers {
                rip: all.rip,
                rsi: all.rsi,
                rdi: all.rdi,
                rflags: all.rflags,
                ..Registers::default()
            };
            check_eq!(*some, expected, "chosen registers");
        }
        guest.finish().await?;
        pass_with(format!(
            "{jumps} places compared, {} of no jump",
            others.len()
        ))
    })
}

fn one_order(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = steady(cx).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let probes = guest
            .probes(&["p:slow __x64_sys_getppid nojump", "fast=__x64_sys_umask"])
            .await?;
        no_jump(&guest, "slow").await?;
        jump(&guest, "fast").await?;
        guest
            .work(&format!("pairs syscall=umask count={CALLS}"))
            .await?;
        let (events, lost) = events::next(&mut stream, 2 * ALL).await?;
        check_eq!(lost, 0, "lost events");
        check_eq!(events.len() as u64, 2 * ALL, "events");
        for (at, pair) in events.chunks(2).enumerate() {
            let ids: Vec<u64> = pair.iter().map(|event| event.probe_id).collect();
            check_eq!(ids, [probes[0].id, probes[1].id], "probes of pair {at}");
            check!(pair[0].tsc < pair[1].tsc, "times of pair {at}: {pair:?}");
        }
        guest.finish().await?;
        pass_with(format!("{} events alternate", events.len()))
    })
}

/// Conditions on `vfs_read(file, buffer, 64, ...)` of the guest's first process, and whether they hold. No other
/// process in the guest calls it with 64.
const CONDITIONS: [(&str, bool); 16] = [
    ("if=rdx==64", true),
    ("if=edx==64&&tgid==1", true),
    ("if=dx==64&&pid==1", true),
    ("if=dl==0x40&&rdx==64", true),
    ("if=rdx>63&&rdx<65", true),
    ("if=rdx>=64&&rdx<=64", true),
    ("if=rdx>s-1&&rdx==64", true),
    ("if=rdx&0x40&&rdx==64", true),
    ("if=rdx==64&&cpu<8", true),
    ("if=rdx==64&&rdi!=0", true),
    ("if=rdx==64&&tgid!=1", false),
    ("if=rdx==64&&pid>s1", false),
    ("if=rdx==64&&cpu==7", false),
    ("if=rdx==64&&edx<-1", false),
    ("if=rdx==64&&dl&0x3f", false),
    ("if=rdi==0", false),
];

fn conditions(cx: &Context) -> TestResult {
    const READS: u64 = 50;
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let request = format!("files count={READS}");
        for (condition, holds) in CONDITIONS {
            for capture in ["", " count"] {
                guest
                    .probe(&format!("a=vfs_read {condition}{capture}"))
                    .await?;
                let before = jump(&guest, "a").await?;
                check_eq!(before.hits, 0, "hits of {condition} before the reads");
                let exits = breakpoint_exits(&guest).await?;
                let done = guest.work(&request).await?;
                check_eq!(done["reads"], READS, "reads");
                let removed = guest.remove(&["a"]).await?;
                let expected = if holds { READS } else { 0 };
                check_eq!(removed[0].hits, expected, "hits of {condition}{capture}");
                let what = format!("with {condition}{capture}");
                no_exits(&before, &removed[0], &what)?;
                let exits = breakpoint_exits(&guest).await? - exits;
                check!(
                    exits < READS / 2,
                    "{exits} breakpoint exits with {condition}"
                );
                if holds && capture.is_empty() {
                    let (events, lost) = events::next(&mut stream, READS).await?;
                    check_eq!(lost, 0, "lost events of {condition}");
                    for event in &events {
                        check_eq!(event.probe_id, removed[0].id, "probe of an event");
                        let registers = event.registers.unwrap_or_default();
                        check_eq!(registers.rdx, 64, "RDX with {condition}");
                    }
                }
            }
        }
        guest.client.set_optimization(VM, false).await?;
        // A breakpoint judges the condition as a jump does.
        for (condition, holds) in CONDITIONS {
            guest
                .probe(&format!("a=vfs_read {condition} count"))
                .await?;
            guest.work(&request).await?;
            let removed = guest.remove(&["a"]).await?;
            let expected = if holds { READS } else { 0 };
            check_eq!(
                removed[0].hits,
                expected,
                "hits of a breakpoint with {condition}"
            );
        }
        guest.finish().await?;
        threads(cx).await?;
        pass_with(format!("{} conditions", CONDITIONS.len()))
    })
}

/// Checks that threads have the number of their process, and numbers of their own.
async fn threads(cx: &Context) -> Result<(), Failure> {
    let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
    for (condition, expected) in [
        ("tgid==1", ALL),
        ("pid==1", 0),
        ("pid!=1&&tgid==1", ALL),
        ("cpu==0", CALLS),
        ("cpu==1", CALLS),
        ("cpu>=1", ALL - CALLS),
    ] {
        let probe = format!("a=__x64_sys_umask if={condition} count");
        guest.probe(&probe).await?;
        jump(&guest, "a").await?;
        guest
            .work(&format!("threads syscall=umask count={CALLS}"))
            .await?;
        let removed = guest.remove(&["a"]).await?;
        check_eq!(
            removed[0].hits,
            expected,
            "hits of threads with {condition}"
        );
    }
    guest.finish().await
}
