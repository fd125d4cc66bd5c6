//! Faults of instructions that jumps of ours have moved: they are fixed up or reported as without probes.

use std::collections::BTreeMap;

use serde_json::Value;

use vmprobe_client::words;

use super::after::{COPIES, failed_alike};
use super::code::decode;
use super::guest::{Guest, VM, files};
use super::jumps::{is_jump, jump, settle};
use crate::context::Context;
use crate::guest_ram::GuestRam;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "faults_beside_and_in_a_jump_of_6_12_are_fixed_up_or_told_as_without_it",
        ids: &["KP04"],
        needs: Needs::Linux,
        run: |cx| faults(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "faults_beside_and_in_a_jump_of_6_1_are_fixed_up_or_told_as_without_it",
        ids: &["KP04"],
        needs: Needs::Linux,
        run: |cx| faults(cx, files::BZIMAGE_6_1),
    },
];

/// Bytes that a jump takes at most: up to the end of an instruction that begins in its fifth.
const REGION: u64 = 4 + 15;
/// A setting of the kernel's, its file, the table that describes it, and the function that reads and writes such
/// settings.
const SETTING: &str = "vm_swappiness";
const FILE: &str = "/proc/sys/vm/swappiness";
const TABLE: &str = "vm_table";
const HANDLER: &str = "proc_dointvec_minmax";
/// An address in the page at 0, and one that isn't canonical.
const NULL_PAGE: u64 = 0x18;
const NOT_CANONICAL: u64 = 0x00de_ad00_0000_0000;

fn faults(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 1).await?;
        let fixed_up = fix_ups(&mut guest).await?;
        guest.healthy().await?;
        let ram = GuestRam::of(&guest).await?;
        let setting = Setting::find(&guest).await?;
        let own = own_text(&guest).await?;
        // The pointer to the value is used in the first instruction of a jump's region, the pointer to its highest
        // value in a later one.
        let read = Fault {
            at: FILE.to_owned(),
            word: setting.value,
            bad: NULL_PAGE,
            before: 0,
        };
        let write = Fault {
            at: format!("{FILE}=60"),
            word: setting.highest,
            bad: NOT_CANONICAL,
            before: 1,
        };
        let told = [
            read.check(&mut guest, &ram).await?,
            write.check(&mut guest, &ram).await?,
        ];
        check!(own_text(&guest).await? == own, "something of ours is left");
        let done = guest.work(&format!("oops at={FILE}")).await?;
        check_eq!(done["signal"], Value::Null, "the setting can be read again");
        guest.say("quit").await?;
        guest.power_off().await?;
        pass_with(format!("{fixed_up}; {}", told.join("; ")))
    })
}

/// Checks that system calls with bad pointers fail as before, with jumps at the instructions that fault, or near them.
async fn fix_ups(guest: &mut Guest) -> Result<String, Failure> {
    let unprobed = guest.work("fault count=2").await?;
    let mut places = Vec::new();
    for function in COPIES {
        let Ok(start) = guest.symbol(function).await else {
            continue;
        };
        let mut free = start;
        for instruction in decode(start, &guest.memory(start, 0x180).await?) {
            let (owner, _) = guest.client.resolve_address(VM, instruction.ip()).await?;
            if owner.address != start {
                break;
            }
            if instruction.ip() >= free {
                places.push(format!("{:#x}", instruction.ip()));
                free = instruction.ip() + REGION;
            }
        }
    }
    let places = super::whole::accepted(guest, &places).await?;
    let texts: Vec<String> = places.iter().map(|at| format!("p {at} count")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let probes = guest.probes(&texts).await?;
    let settled = settle(guest, &[]).await?.probes;
    let jumps = settled.iter().filter(|probe| is_jump(probe)).count();
    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    for probe in settled.iter().filter(|probe| !is_jump(probe)) {
        let told = probe.optimization.clone().unwrap_or_default();
        *refused.entry(words::no_jump(&told)).or_default() += 1;
    }
    let expected = refused.get("exception table").copied().unwrap_or_default();
    check!(jumps > 5, "only {jumps} jumps: {refused:?}");
    check!(expected > 5, "only {expected} can't be moved: {refused:?}");
    let probed = guest.work("fault count=2").await?;
    failed_alike(&probed, &unprobed)?;
    let ids = probes.iter().map(|probe| probe.id).collect();
    let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    let hit = removed.iter().filter(|probe| probe.hits > 0).count();
    check!(hit > 5, "only {hit} probes were hit");
    Ok(format!(
        "{} calls failed as ever beside {jumps} jumps and {expected} breakpoints that can be none",
        probed["faulted"]
    ))
}

/// Reads the kernel's functions that have our breakpoints for oopses, as they are now.
async fn own_text(guest: &Guest) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    for (name, length) in [
        ("__die", 16),
        ("die", 16),
        ("die_addr", 16),
        ("show_opcodes", 0xd0),
    ] {
        text.extend(guest.memory(guest.symbol(name).await?, length).await?);
    }
    Ok(text)
}

/// The addresses of the pointers in the kernel's table entry of the setting (`struct ctl_table`,
/// `include/linux/sysctl.h`).
struct Setting {
    value: u64,
    highest: u64,
}

impl Setting {
    async fn find(guest: &Guest) -> Result<Self, Failure> {
        /// Words of an entry at most, and bytes of the table.
        const ENTRY: usize = 8;
        const ALL: usize = 40 * 8 * ENTRY;
        let start = guest.symbol(TABLE).await?;
        let value = guest.symbol(SETTING).await?;
        let handler = guest.symbol(HANDLER).await?;
        let bytes = guest.memory(start, ALL).await?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| {
                word.iter()
                    .rev()
                    .fold(0, |all, byte| all << 8 | u64::from(*byte))
            })
            .collect();
        let address = |index: usize| start + 8 * index as u64;
        let first = words.iter().position(|word| *word == value);
        let first = first.ok_or_else(|| wrong!("no entry of {SETTING} in {TABLE}"))?;
        let called = words[first..]
            .iter()
            .take(ENTRY)
            .position(|word| *word == handler);
        let called = called.ok_or_else(|| wrong!("no handler in the entry of {SETTING}"))?;
        // proc_handler, poll, extra1, extra2
        Ok(Self {
            value: address(first),
            highest: address(first + called + 3),
        })
    }
}

/// A bad pointer that the guest's kernel follows for a process.
struct Fault {
    /// What the process reads or writes.
    at: String,
    /// Where the pointer is.
    word: u64,
    bad: u64,
    /// The number of instructions between the jump and the one that faults.
    before: usize,
}

impl Fault {
    /// Makes the fault happen without a probe and in a detour, and compares what the kernel reports.
    async fn check(&self, guest: &mut Guest, ram: &GuestRam) -> Result<String, Failure> {
        let good = ram.replace(self.word, self.bad)?;
        let request = format!("oops at={}", self.at);
        let unprobed = guest.work(&request).await?;
        let expected = Told::of(&unprobed)?;
        let place = expected.place()?;
        let (function, offset) = place.split_once('+').unwrap_or_default();
        let start = guest.symbol(function).await?;
        let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16);
        let faults = start + offset.map_err(|error| wrong!("{place}: {error}"))?;
        let code = decode(
            start,
            &guest.memory(start, (faults - start) as usize + 15).await?,
        );
        let index = code
            .iter()
            .position(|instruction| instruction.ip() == faults);
        let probed = index.and_then(|index| code.get(index.checked_sub(self.before)?));
        let probed = probed.ok_or_else(|| wrong!("no instruction at {place}: {code:x?}"))?;
        guest.probe(&format!("ours={:#x}", probed.ip())).await?;
        let ours = jump(guest, "ours").await?;

        let again = guest.work(&request).await?;
        check_eq!(
            again["signal"],
            unprobed["signal"],
            "what {place} ends with"
        );
        let told = Told::of(&again)?;
        check_eq!(
            told,
            expected,
            "what the kernel tells of {place} in a detour"
        );
        let after = guest.listed("ours").await?;
        check_eq!((after.hits, after.missed), (1, 0), "hits and missed hits");
        check_eq!(after.exits, ours.exits, "exits");
        guest.remove(&["ours"]).await?;
        ram.replace(self.word, good)?;
        Ok(format!("{place} under a jump at `{}`", probed))
    }
}

/// The lines of an oops that are the same each time.
#[derive(Debug, PartialEq, Eq)]
struct Told(Vec<String>);

impl Told {
    fn of(report: &Value) -> Result<Self, Failure> {
        let log = report["log"].as_array().into_iter().flatten();
        let lines = log.filter_map(Value::as_str);
        let told: Vec<String> = lines
            .filter(|line| is_lasting(line))
            .map(numberless)
            .collect();
        for what in ["RIP: 0010:", "Code: ", "+0x"] {
            let found = told.iter().any(|line| line.contains(what));
            check!(found, "no {what:?} in {report}");
        }
        Ok(Self(told))
    }

    /// Returns the place of the oops, as function and offset.
    fn place(&self) -> Result<&str, Failure> {
        let rip = self
            .0
            .iter()
            .find_map(|line| line.strip_prefix("RIP: 0010:"));
        let place = rip.and_then(|place| place.split('/').next());
        place.ok_or_else(|| wrong!("no RIP in {self:?}"))
    }
}

/// Returns true if a line tells what happened, where, and by which calls. Lines of numbers, of addresses on stacks, or
/// of what the stack has kept of earlier calls don't count.
fn is_lasting(line: &str) -> bool {
    let heads = [
        "BUG:",
        "Oops:",
        "general protection",
        "#PF:",
        "RIP:",
        "Code:",
    ];
    let call = line.starts_with(' ') && line.contains("+0x") && !line.contains(" ? ");
    call || heads.iter().any(|head| line.starts_with(head))
}

/// Removes the number of the oops: `[#1]`.
fn numberless(line: &str) -> String {
    match line.split_once("[#") {
        Some((head, tail)) => format!("{head}{}", tail.split_once(']').map_or("", |(_, it)| it)),
        None => line.to_owned(),
    }
}
