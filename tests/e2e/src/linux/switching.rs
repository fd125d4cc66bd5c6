//! Switching probes while 4 vCPUs hit them loses no hit and counts none twice.

use std::sync::atomic::{AtomicBool, Ordering};

use vmprobe_client::v1::Probe;
use vmprobe_client::{Client, ClientError};

use super::guest::{Guest, VM, files, specs};
use super::jumps::{SETTLE, is_jump, settle};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "every_switch_under_4_vcpus_leaves_hits_and_missed_ones_at_what_the_guest_executed",
        ids: &["KP23", "KP06", "TR05"],
        needs: Needs::Linux,
        run: |cx| switching(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "every_switch_under_4_vcpus_of_6_12_leaves_hits_and_missed_ones_at_what_was_executed",
        ids: &["KP23", "KP06", "TR05"],
        needs: Needs::Linux,
        run: |cx| switching(cx, files::BZIMAGE_6_12),
    },
];

const VCPUS: u32 = 4;
const FUNCTION: &str = "__x64_sys_umask";
/// Rounds of calls, and calls on each vCPU in a round.
const ROUNDS: u64 = 4;

/// A probe, and how many calls there are on each vCPU in a round.
struct Kind {
    /// The text before the probe's place.
    before: &'static str,
    /// The text behind the place.
    behind: &'static str,
    calls: u64,
}

const KINDS: [Kind; 7] = [
    Kind::new("", "regs=rdi", 3000),
    Kind::new("", "count", 3000),
    Kind::new("", "lossless", 3000),
    Kind::new("r", "", 2000),
    Kind::new("r", "count", 2000),
    Kind::new("", "regs=rdi nojump", 500),
    Kind::new("r", "nojump", 300),
];

impl Kind {
    const fn new(before: &'static str, behind: &'static str, calls: u64) -> Self {
        Self {
            before,
            behind,
            calls,
        }
    }

    fn probe(&self, name: &str) -> String {
        let kind = if self.before.is_empty() {
            "p"
        } else {
            self.before
        };
        format!("{kind}:{name} {FUNCTION} {}", self.behind)
    }

    fn is_jump(&self) -> bool {
        !self.behind.contains("nojump")
    }
}

fn switching(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, VCPUS).await?;
        let (mut calls, mut cycles) = (0, 0);
        for kind in &KINDS {
            let what = kind.probe("");
            let done = one_kind(&mut guest, kind).await;
            let done = done.map_err(|error| wrong!("{what}: {error}"))?;
            check!(
                done.cycles > 0,
                "{what}: the guest was done before the first switch"
            );
            calls += done.calls;
            cycles += done.cycles;
        }
        guest.finish().await?;
        pass_with(format!("{calls} calls, {cycles} rounds of switches"))
    })
}

/// The counts of what was done with one kind of probe.
struct Done {
    calls: u64,
    cycles: u64,
}

async fn one_kind(guest: &mut Guest, kind: &Kind) -> Result<Done, Failure> {
    let (stays, comes) = (kind.probe("stays"), kind.probe("comes"));
    guest.probes(&[&stays, &comes]).await?;
    if kind.is_jump() {
        let settled = settle(guest, &["stays", "comes"]).await?;
        check!(
            settled.probes.iter().all(is_jump),
            "no jumps: {:?}",
            settled.probes
        );
    }
    guest
        .say(&format!(
            "workload=smp syscall=umask count={} rounds={ROUNDS}",
            kind.calls
        ))
        .await?;
    let done = AtomicBool::new(false);
    let client = guest.client.clone();
    let switches = switches(&client, kind, &done);
    let work = async {
        let report = guest.console.report("done").await;
        done.store(true, Ordering::Relaxed);
        report
    };
    let (cycles, report) = tokio::join!(switches, work);
    let (cycles, report) = (cycles?, report?);
    super::guest::quiet(&report)?;
    let calls = u64::from(VCPUS) * kind.calls * ROUNDS;
    check_eq!(report["calls"], calls, "calls that the guest made");
    let stays = guest.listed("stays").await?;
    check_eq!(
        noticed(&stays),
        calls,
        "hits and missed hits of what stayed"
    );
    if kind.before.is_empty() {
        check_eq!(stays.missed, 0, "missed hits of what stayed");
    }
    let names = ["stays", "comes"];
    guest.remove(&names).await?;
    Ok(Done { calls, cycles })
}

/// Hits and missed hits.
fn noticed(probe: &Probe) -> u64 {
    probe.hits + probe.missed
}

/// Counts of both probes at a moment.
#[derive(Debug, Clone, Copy)]
struct Seen {
    stays: u64,
    comes: u64,
}

async fn seen(client: &Client) -> Result<Seen, Failure> {
    let probes = client.list_probes(VM).await?;
    let of = |name: &str| {
        let found = probes.iter().find(|probe| probe.name == name);
        found.map(noticed)
    };
    Ok(Seen {
        stays: of("stays").ok_or_else(|| wrong!("`stays` isn't listed"))?,
        comes: of("comes").unwrap_or_default(),
    })
}

/// Checks that one probe has counted as much as the other, except for hits that the vCPUs were in the middle of.
fn same(kind: &Kind, what: &str, stays: u64, comes: u64) -> Result<(), Failure> {
    // When a vCPU that has trapped stands still, its hit has been counted.
    let halfway = match kind.before.is_empty() && !kind.is_jump() {
        true => 0,
        false => VCPUS.into(),
    };
    check!(
        stays.abs_diff(comes) <= halfway,
        "{what}: {comes} noticed of {stays}"
    );
    Ok(())
}

/// Switches the probe that comes and goes, and the arming of all, until the guest is done. Returns how often.
async fn switches(client: &Client, kind: &Kind, done: &AtomicBool) -> Result<u64, Failure> {
    let name = || vec!["comes".to_owned()];
    let mut cycles = 0;
    let is_over = || done.load(Ordering::Relaxed);
    // The probe is enabled at the same stop from which on it is counted.
    let mut from = Seen { stays: 0, comes: 0 };
    while !is_over() {
        settled(client, kind, cycles).await?;
        client.pause_vm(VM).await?;
        client.disable_probes(VM, Vec::new(), name()).await?;
        let off = seen(client).await?;
        client.resume_vm(VM).await?;
        same(
            kind,
            "until it was disabled",
            off.stays - from.stays,
            off.comes - from.comes,
        )?;
        settled(client, kind, cycles + 1).await?;
        client.pause_vm(VM).await?;
        client.enable_probes(VM, Vec::new(), name()).await?;
        from = seen(client).await?;
        // No hits are counted while all are disarmed.
        client.disarm_probes(VM).await?;
        client.arm_probes(VM).await?;
        client.resume_vm(VM).await?;
        same(kind, "while it was disabled", 0, from.comes - off.comes)?;

        client.set_optimization(VM, false).await?;
        client.set_optimization(VM, true).await?;
        settled(client, kind, cycles).await?;
        if kind.is_jump() {
            client.keep_breakpoints(VM, Vec::new(), name()).await?;
            client.optimize_probes(VM, Vec::new(), name()).await?;
        }
        settled(client, kind, cycles + 1).await?;

        client.pause_vm(VM).await?;
        let removed = client.unregister_probes(VM, Vec::new(), name()).await?;
        let gone = seen(client).await?;
        client.resume_vm(VM).await?;
        let removed = removed.first().map_or(0, noticed);
        same(
            kind,
            "until it was removed",
            gone.stays - from.stays,
            removed - from.comes,
        )?;
        settled(client, kind, cycles).await?;
        client.pause_vm(VM).await?;
        client
            .register_probes(VM, specs(&[&kind.probe("comes")])?)
            .await?;
        from = seen(client).await?;
        client.resume_vm(VM).await?;
        check_eq!(from.comes, 0, "hits of a new probe");
        cycles += 1;
    }
    Ok(cycles)
}

/// Every other time, waits until the probes are settled.
async fn settled(client: &Client, kind: &Kind, turn: u64) -> Result<(), ClientError> {
    if kind.is_jump() && turn.is_multiple_of(2) {
        let all = client.wait_probes(VM, Vec::new(), Vec::new(), SETTLE);
        all.await?;
    }
    Ok(())
}
