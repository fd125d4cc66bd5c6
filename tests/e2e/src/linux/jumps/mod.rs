//! Probes that become jumps: that they do, what a hit costs, and the settings.

pub mod batch;
pub mod causes;
pub mod instructions;
pub mod kinds;
pub mod parked;
pub mod records;
pub mod scribble;
pub mod smp;
pub mod tools;
pub mod whole;

use std::time::Duration;

use vmprobe_client::v1::{OptimizationState, Probe, WaitProbesResponse};
use vmprobe_client::words;

use super::guest::{Guest, VM, files};
use super::list::vmprobe;
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_hit_of_a_jump_costs_no_exit_on_1_vcpu",
        ids: &["JP01"],
        needs: Needs::Linux,
        run: |cx| no_exit(cx, files::BZIMAGE_6_1, 1),
    },
    Test {
        name: "a_hit_of_a_jump_costs_no_exit_on_4_vcpus",
        ids: &["JP01", "VM13"],
        needs: Needs::Linux,
        run: |cx| no_exit(cx, files::BZIMAGE_6_1, 4),
    },
    Test {
        name: "a_hit_of_a_jump_costs_no_exit_in_6_12",
        ids: &["JP01"],
        needs: Needs::Linux,
        run: |cx| no_exit(cx, files::BZIMAGE_6_12, 2),
    },
    Test {
        name: "the_list_shows_jumps_and_the_knobs_make_breakpoints_of_them_and_back",
        ids: &["JP02"],
        needs: Needs::Linux,
        run: list_and_knobs,
    },
];

/// First byte of a jump with a displacement of 32 bits, and of a breakpoint (Intel SDM vol. 2).
pub const JUMP: u8 = 0xe9;
pub const BREAKPOINT: u8 = 0xcc;
/// Longer than probes take to settle, also in the lab.
pub const SETTLE: Duration = Duration::from_secs(120);
/// Calls on each vCPU at a time.
const CALLS: u64 = 200;

/// Waits until these probes, or all, are settled.
///
/// # Errors
/// If one isn't settled in time.
pub async fn settle(guest: &Guest, names: &[&str]) -> Result<WaitProbesResponse, Failure> {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    let waited = guest.client.wait_probes(VM, Vec::new(), names, SETTLE);
    Ok(waited.await?)
}

/// As [`settle`], for all probes, while the guest is paused. Under thousands of breakpoints the guest would take CPU
/// time of the lab from the optimizer.
///
/// # Errors
/// Those of the calls.
pub async fn settle_paused(guest: &Guest) -> Result<WaitProbesResponse, Failure> {
    guest.client.pause_vm(VM).await?;
    let settled = settle(guest, &[]).await?;
    guest.client.resume_vm(VM).await?;
    Ok(settled)
}

/// Returns true if a probe is a jump.
pub fn is_jump(probe: &Probe) -> bool {
    let optimization = probe.optimization.as_ref();
    optimization.is_some_and(|told| told.state() == OptimizationState::Optimized)
}

/// Waits until a probe is settled, and fails unless it is a jump then.
///
/// # Errors
/// As said, with the reason why it isn't.
pub async fn jump(guest: &Guest, name: &str) -> Result<Probe, Failure> {
    let mut settled = settle(guest, &[name]).await?.probes;
    match settled.pop() {
        Some(probe) if is_jump(&probe) => Ok(probe),
        Some(probe) => Err(wrong!(
            "{name} on `{}` is no jump: {:?}",
            probe.instruction,
            probe.optimization
        )),
        None => Err(wrong!("probe {name} isn't there")),
    }
}

/// Checks that a probe that was a jump at `before` has had no exit of a hit since, whatever its state is now.
///
/// A vCPU whose hit was under way in the stop that made the jump is inside the jump's region, and comes to a tripwire
/// afterwards: once at most for each exit that the breakpoint had.
///
/// # Errors
/// If the probe has had an exit of a hit, or more trips than that.
pub fn no_exits(before: &Probe, now: &Probe, what: &str) -> Result<(), Failure> {
    let of_hits = |probe: &Probe| probe.exits - probe.trips;
    check_eq!(of_hits(now), of_hits(before), "exits of hits {what}");
    check!(
        now.trips <= of_hits(before),
        "{} exits at tripwires {what}, and the breakpoint had {} exits",
        now.trips,
        of_hits(before)
    );
    Ok(())
}

/// Waits until a probe is settled. Fails if it is a jump then, or if there is no reason why it isn't.
///
/// # Errors
/// As said.
pub async fn no_jump(guest: &Guest, name: &str) -> Result<Probe, Failure> {
    let mut settled = settle(guest, &[name]).await?.probes;
    let probe = settled.pop();
    let probe = probe.ok_or_else(|| wrong!("probe {name} isn't there"))?;
    check!(!is_jump(&probe), "{name} is still a jump");
    let told = probe.optimization.clone().unwrap_or_default();
    check!(
        !words::no_jump(&told).is_empty() && !told.reason.is_empty(),
        "there is no reason why {name} is no jump: {told:?}"
    );
    Ok(probe)
}

/// Returns the byte at a probe's place in the guest's text.
///
/// # Errors
/// If it can't be read.
pub async fn first_byte(guest: &Guest, probe: &Probe) -> Result<u8, Failure> {
    Ok(guest.memory(probe.address, 1).await?[0])
}

/// How often vCPUs have left guest mode for breakpoints.
pub async fn breakpoint_exits(guest: &Guest) -> Result<u64, Failure> {
    let vm = guest.client.get_vm(VM).await?;
    Ok(vm.exits.map_or(0, |exits| exits.breakpoint))
}

fn no_exit(cx: &Context, kernel: &'static str, vcpus: u32) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, vcpus).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let calls = ["umask", "getuid", "getpgid"];
        let probes = guest
            .probes(&[
                "full=__x64_sys_umask",
                "count=__x64_sys_getuid count",
                "some=__x64_sys_getpgid regs=rdi+rsp",
            ])
            .await?;
        let names = ["full", "count", "some"];
        let mut before = Vec::new();
        for name in names {
            let probe = jump(&guest, name).await?;
            check_eq!(first_byte(&guest, &probe).await?, JUMP, "code at {name}");
            before.push(probe);
        }
        let exits = breakpoint_exits(&guest).await?;
        let expected = CALLS * u64::from(vcpus);
        for call in calls {
            let done = guest
                .work(&format!("threads syscall={call} count={CALLS}"))
                .await?;
            check_eq!(
                done["calls"],
                expected,
                "calls of {call} that the guest made"
            );
        }
        for before in &before {
            let name = &before.name;
            let probe = guest.listed(name).await?;
            check!(is_jump(&probe), "{name} is no jump any more: {probe:?}");
            check_eq!(probe.hits, expected, "hits of {name}");
            check_eq!(probe.missed, 0, "missed hits of {name}");
            check_eq!(probe.exits, before.exits, "exits for {name}");
        }
        // The guest's own int3s count as well while ours are watched for.
        let exits = breakpoint_exits(&guest).await? - exits;
        check!(
            exits < expected / 10,
            "{exits} breakpoint exits for {} hits of jumps",
            3 * expected
        );

        let (events, lost) = events::next(&mut stream, 2 * expected).await?;
        let of = |id| events.iter().filter(move |event| event.probe_id == id);
        check_eq!(lost, 0, "lost events");
        check_eq!(of(probes[0].id).count() as u64, expected, "events of full");
        check_eq!(of(probes[1].id).count(), 0, "events of count");
        check_eq!(of(probes[2].id).count() as u64, expected, "events of some");
        for event in of(probes[2].id) {
            let all = event.registers.unwrap_or_default();
            check_eq!(all.rip, probes[2].address, "RIP of {event:?}");
            check!(
                all.rdi != 0 && all.rsp != 0 && (all.rax, all.rbp, all.rflags) == (0, 0, 0),
                "registers of {event:?}"
            );
        }
        for vcpu in 0..vcpus {
            let seen = of(probes[0].id).filter(|event| event.vcpu == vcpu).count();
            check_eq!(seen as u64, CALLS, "events of vCPU {vcpu}");
        }
        guest.finish().await?;
        pass_with(format!("{} hits, {exits} breakpoint exits", 3 * expected))
    })
}

/// Returns how many lines of the list in the kernel's form have the mark of a jump.
fn marked(cx: &Context, guest: &Guest) -> Result<usize, Failure> {
    let lines = vmprobe(cx, guest, &["probe", "list", "--kernel"])?;
    let marked = lines.iter().filter(|line| line.ends_with("[OPTIMIZED]"));
    Ok(marked.count())
}

fn list_and_knobs(cx: &Context) -> TestResult {
    const VCPUS: u32 = 2;
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let start = guest.symbol("_stext").await?;
        let length = (guest.symbol("_etext").await? - start) as usize;
        // The kernel patches first what it patches at a first use.
        let request = format!("threads syscall=umask count={CALLS}");
        guest.work(&request).await?;
        let before = guest.memory(start, length).await?;
        let all = CALLS * u64::from(VCPUS);
        guest
            .probes(&[
                "a=__x64_sys_umask",
                "b=__x64_sys_getuid count",
                "p:never __x64_sys_getpgid nojump",
            ])
            .await?;
        let a = jump(&guest, "a").await?;
        jump(&guest, "b").await?;
        no_jump(&guest, "never").await?;
        check_eq!(marked(cx, &guest)?, 2, "probes with [OPTIMIZED]");
        guest.work(&request).await?;
        let fast = guest.listed("a").await?;
        check_eq!(
            (fast.hits, fast.exits),
            (all, a.exits),
            "hits and exits of a jump"
        );

        vmprobe(cx, &guest, &["probe", "optimize", "off"])?;
        check!(
            !guest.client.probe_list(VM).await?.optimizing,
            "the list doesn't say that jumps are switched off"
        );
        check_eq!(marked(cx, &guest)?, 0, "probes with [OPTIMIZED] when off");
        no_jump(&guest, "a").await?;
        check_eq!(
            first_byte(&guest, &a).await?,
            BREAKPOINT,
            "code at a when off"
        );
        guest.work(&request).await?;
        let slow = guest.listed("a").await?;
        check_eq!(slow.hits, 2 * all, "hits when off");
        check!(
            slow.exits >= fast.exits + all,
            "{} exits for {all} hits of a breakpoint",
            slow.exits - fast.exits
        );
        guest.probe("late=__x64_sys_getppid").await?;
        no_jump(&guest, "late").await?;

        vmprobe(cx, &guest, &["probe", "optimize", "on"])?;
        vmprobe(cx, &guest, &["probe", "wait", "--timeout", "120"])?;
        for name in ["a", "b", "late"] {
            jump(&guest, name).await?;
        }
        check_eq!(
            marked(cx, &guest)?,
            3,
            "probes with [OPTIMIZED] when on again"
        );
        check_eq!(
            first_byte(&guest, &a).await?,
            JUMP,
            "code at a when on again"
        );
        guest.work(&request).await?;
        let again = guest.listed("a").await?;
        check_eq!(
            (again.hits, again.exits),
            (3 * all, slow.exits),
            "hits and exits when on again"
        );

        vmprobe(cx, &guest, &["probe", "optimize", "off", "a"])?;
        no_jump(&guest, "a").await?;
        jump(&guest, "b").await?;
        guest.work(&request).await?;
        check_eq!(
            guest.listed("a").await?.hits,
            4 * all,
            "hits with its own knob off"
        );
        vmprobe(cx, &guest, &["probe", "optimize", "on", "a"])?;
        jump(&guest, "a").await?;

        guest.remove(&["a", "b", "never", "late"]).await?;
        check!(
            guest.memory(start, length).await? == before,
            "the kernel's text isn't what it was"
        );
        guest.finish().await?;
        pass()
    })
}
