//! Watchpoints on the kernel's data.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use vmprobe_client::Message;
use vmprobe_client::v1::{Event, EventKind};

use super::guest::{Config, Guest, VM, files, specs};
use super::mask;
use super::steps::must;
use crate::context::{Context, Place};
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_watched_variable_tells_of_every_write_on_every_vcpu",
        ids: &["KP18", "VM13"],
        needs: Needs::Linux,
        run: watched,
    },
    Test {
        name: "each_access_to_watched_bytes_is_told_once_and_of_the_vcpu_that_makes_it",
        ids: &["KP18"],
        needs: Needs::Linux,
        run: by_vcpu,
    },
];

const VCPUS: u32 = 4;
/// Processes started from each vCPU.
const FORKS: u64 = 20;
/// The kernel's count of started processes. It is incremented under a lock (kernel/fork.c).
const VARIABLE: &str = "total_forks";
/// The variable is in memory that the kernel clears first (arch/x86/kernel/head64.c). This function does it, byte by
/// byte with one repeated instruction.
const CLEARING: (&str, u64) = ("clear_bss", 0x40);
/// Size of the variable: the number of those bytes that are its own.
const SIZE: u64 = 8;

/// How often a CPU reports the zeros. For a repeated instruction it reports after each repetition, or, where it writes
/// faster than that, after a group of them (SDM volume 3, "Data Memory and I/O Breakpoint Exception Conditions"). QEMU
/// writes all at once.
fn told_of_zeros(place: Place) -> RangeInclusive<u64> {
    match place {
        Place::Host => 0..=SIZE,
        Place::LabAmd => 0..=1,
        Place::LabIntel => SIZE..=SIZE,
    }
}

fn watched(cx: &Context) -> TestResult {
    cx.block_on(async {
        // Registered before the first instruction: the other vCPUs come up later.
        let config = Config {
            vcpus: VCPUS,
            probes: specs(&[&format!("w:forks {VARIABLE}")])?,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::hold(cx, &config).await?;
        let clearing = guest.symbol(CLEARING.0).await?;
        let clearing = clearing..clearing + CLEARING.1;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        let address = guest.symbol(VARIABLE).await?;
        let read = async |guest: &Guest| {
            let bytes = guest.memory(address, 8).await?;
            Ok::<u64, Failure>(
                bytes
                    .iter()
                    .rev()
                    .fold(0, |n, byte| n << 8 | u64::from(*byte)),
            )
        };
        // Every write since the start was seen, as each adds one.
        let hits = guest.listed("forks").await?.hits;
        let (seen, lost) = events::next(&mut stream, hits).await?;
        check_eq!(lost, 0, "lost events");
        let cleared = seen.iter().filter(|event| clearing.contains(&rip(event)));
        let cleared = cleared.count() as u64;
        check!(
            told_of_zeros(cx.place).contains(&cleared),
            "{cleared} writes of zeros"
        );
        check_eq!(
            hits - cleared,
            read(&guest).await?,
            "writes to {VARIABLE} during the boot"
        );
        let done = guest.work(&format!("everywhere count={FORKS}")).await?;
        check_eq!(done["forks"], FORKS * u64::from(VCPUS), "processes started");
        let hits = guest.listed("forks").await?.hits;
        check_eq!(hits - cleared, read(&guest).await?, "writes to {VARIABLE}");

        refusals(&guest, address).await?;
        let removed = guest.remove(&["forks"]).await?;
        guest.work("forks count=5").await?;
        check!(removed[0].hits >= hits, "hits went back: {removed:?}");
        guest.quit().await?;

        let mut by_vcpu: BTreeMap<u32, u64> = BTreeMap::new();
        while let Some(message) = stream.next().await? {
            if let Message::Batch { lost, events } = message {
                check_eq!(lost, 0, "lost events");
                for event in &events {
                    well_formed(event)?;
                    *by_vcpu.entry(event.vcpu).or_default() += 1;
                }
            }
        }
        guest.power_off().await?;
        check!(
            (0..VCPUS).all(|vcpu| by_vcpu.get(&vcpu).is_some_and(|count| *count >= FORKS)),
            "events by vCPU: {by_vcpu:?}"
        );
        pass_with(format!("{hits} writes, by vCPU {by_vcpu:?}"))
    })
}

/// Calls of `umask` on each vCPU.
const CALLS: u64 = 50;
/// The vCPU that one of the probes asks for.
const ONE: u32 = 2;
/// Watchpoints that each call hits once: it exchanges the mask, which is four bytes. Other code reads the rest of the
/// eight bytes around it. One watchpoint at a time: QEMU reports only one where several are hit.
const WATCHED: [(&str, u64); 7] = [
    ("w", 1),
    ("w", 2),
    ("w", 4),
    ("w", 8),
    ("rw", 1),
    ("rw", 2),
    ("rw", 4),
];

fn by_vcpu(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, VCPUS).await?;
        guest.say("workload=tools").await?;
        let mask = mask::address(&mut guest).await?;
        let expected: BTreeMap<u32, u64> = (0..VCPUS).map(|vcpu| (vcpu, CALLS)).collect();
        let all = CALLS * u64::from(VCPUS);
        for (kind, length) in WATCHED {
            let start = mask & !(length - 1);
            let text = format!("w:mask {start:#x}/{length}:{kind}");
            let mut stream = guest.client.events(VM, Vec::new()).await?;
            guest.probe(&text).await?;
            // Another probe on the same bytes shares the debug register.
            let of_one = format!("w:one {start:#x}/{length}:{kind} count if=cpu=={ONE}");
            guest.probe(&of_one).await?;
            must(&mut guest, &format!("calls umask {CALLS}")).await?;
            check_eq!(guest.listed("mask").await?.hits, all, "accesses by {text}");
            let (seen, lost) = events::next(&mut stream, all).await?;
            check_eq!(lost, 0, "lost events");
            let mut told: BTreeMap<u32, u64> = BTreeMap::new();
            for event in &seen {
                well_formed(event)?;
                *told.entry(event.vcpu).or_default() += 1;
            }
            check_eq!(told, expected, "accesses by {text} of each vCPU");
            let counted = guest.listed("one").await?.hits;
            check_eq!(counted, CALLS, "accesses by {of_one}");
            guest.remove(&["mask", "one"]).await?;
        }
        guest.say("quit").await?;
        guest.console.report("done").await?;
        guest.finish().await?;
        pass()
    })
}

fn well_formed(event: &Event) -> Result<(), Failure> {
    check_eq!(event.kind(), EventKind::Access, "kind of {event:?}");
    check!(rip(event) >> 63 == 1, "RIP of {event:?}");
    Ok(())
}

fn rip(event: &Event) -> u64 {
    event.registers.map_or(0, |registers| registers.rip)
}

/// Checks the refusals: there are four debug registers, and what they watch is aligned.
async fn refusals(guest: &Guest, address: u64) -> Result<(), Failure> {
    for index in 1..4 {
        guest
            .probe(&format!("w:more{index} {:#x}/8:rw", address + 8 * index))
            .await?;
    }
    let fifth = guest
        .refusal(&format!("w:fifth {:#x}/1", address + 64))
        .await?;
    check!(fifth.to_string().contains("four"), "the fifth: {fifth}");
    guest.remove(&["more1", "more2", "more3"]).await?;
    for (text, part) in [(format!("w {:#x}/4", address + 1), "align")] {
        let error = guest.refusal(&text).await?;
        check!(error.to_string().contains(part), "{text}: {error}");
    }
    Ok(())
}
