//! What the kernel patches in its own text, and where it allows no kprobe, against the product's list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;
use vmprobe_client::v1::BootMethod;

use super::guest::{Config, Guest, files};
use super::text::Text;
use crate::context::Context;
use crate::say;
use crate::test::{Failure, Needs, Test, TestResult, check, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "every_byte_that_6_1_changes_in_its_text_is_one_that_the_list_says_it_patches",
    ids: &["KP02"],
    needs: Needs::Linux,
    run: |cx| patching(cx, files::BZIMAGE_6_1),
}];

/// Kinds of changes, in the guest's order; it reports each.
const STEPS: [&str; 10] = [
    "cpus",
    "settings",
    "features",
    "preemption",
    "sockets",
    "counters",
    "events",
    "tracers",
    "modules",
    "messages",
];
/// Kinds of sites that have to change, or nothing is proved of them.
const CHANGED: [&str; 5] = [
    "ftrace",
    "jump-label",
    "static-call",
    "static-call-trampoline",
    "smp-lock",
];

/// Between two readings of the text.
const BETWEEN: Duration = Duration::from_secs(2);

/// Has the guest make its kernel patch all that it can, and reads the text over and over meanwhile.
fn patching(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        // With one CPU at first, so that the lock prefixes are patched when the others come.
        let config = Config {
            kernel,
            boot: BootMethod::Elf,
            vcpus: 2,
            kernel_args: "quiet maxcpus=1",
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        let text = Text::of(&guest).await?;
        let own = guest.work("blacklist").await?;
        let outside = no_kprobes(&own, &text)?;

        let before = guest.client.clone();
        let done = AtomicBool::new(false);
        let (start, length) = (text.start, text.bytes.len());
        guest
            .say("workload=toggle at=vfs_read,vfs_write hold=yes")
            .await?;
        let watch = async {
            let mut seen = Seen::default();
            while !done.load(Ordering::Relaxed) {
                let now = read(&before, start, length).await?;
                seen.add(&text, &now)?;
                // In the lab each reading takes its time from the guest's.
                sleep(BETWEEN).await;
            }
            Ok::<Seen, Failure>(seen)
        };
        let work = async {
            let done_after = async {
                for step in STEPS {
                    let report = guest.console.report(step).await?;
                    say(&format!("{step}: {} switches", report["switches"]));
                    guest.say("").await?;
                }
                guest.console.report("done").await
            };
            let report = done_after.await;
            done.store(true, Ordering::Relaxed);
            report
        };
        let (seen, report) = tokio::join!(watch, work);
        let (seen, report) = (seen?, report?);
        for kind in CHANGED {
            check!(
                seen.sites.get(kind).is_some_and(|sites| !sites.is_empty()),
                "no {kind} site has changed: {report}"
            );
        }
        // The messages that were switched on are in the log, so that isn't looked at.
        guest.say("quit").await?;
        guest.power_off().await?;
        let sites = seen.sites.iter();
        let sites: Vec<String> = sites
            .map(|(kind, sites)| format!("{kind} {}", sites.len()))
            .collect();
        pass_with(format!(
            "{} of all sites changed in {} readings of the text; the guest's own list of no kprobes lies \
             in ours, {outside}; {}",
            sites.join(", "),
            seen.readings,
            report["switches"]
        ))
    })
}

/// The kernel's text, read while it changes.
async fn read(
    client: &vmprobe_client::Client,
    start: u64,
    length: usize,
) -> Result<Vec<u8>, Failure> {
    const MOST: usize = 1 << 20;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let at = start + bytes.len() as u64;
        let more = (length - bytes.len()).min(MOST) as u32;
        let part = client.read_memory(super::guest::VM, 0, at, more).await?;
        check!(!part.is_empty(), "{at:#x} isn't mapped");
        bytes.extend(part);
    }
    Ok(bytes)
}

/// Which sites have been seen changed.
#[derive(Debug, Default)]
struct Seen {
    readings: usize,
    sites: BTreeMap<String, BTreeSet<u64>>,
}

impl Seen {
    /// Fails at a byte that is of no site that the kernel patches while it runs.
    fn add(&mut self, text: &Text, now: &[u8]) -> Result<(), Failure> {
        self.readings += 1;
        for (site, kind) in text.changed(now)? {
            let sites = self.sites.entry(kind.to_owned()).or_default();
            sites.insert(site.start);
        }
        Ok(())
    }
}

/// Fails unless all that the guest allows no kprobe in is in the product's list. How many bytes the
/// product's list has beyond that of the same kinds.
fn no_kprobes(own: &Value, text: &Text) -> Result<String, Failure> {
    /// Those that are the kernel's own list, in the product's.
    const OWN: [&str; 4] = ["noinstr", "entry", "kprobes", "blacklist"];
    let theirs = own["ranges"].as_str().unwrap_or_default();
    let theirs: Option<Vec<(u64, u64)>> = theirs.split_whitespace().map(range).collect();
    let theirs = theirs.ok_or_else(|| wrong!("odd ranges: {own}"))?;
    check!(
        theirs.len() > 10,
        "the guest's own list is too short: {own}"
    );
    let mut map = vec![0_u8; text.bytes.len()];
    let mut mark = |(start, end): (u64, u64), bit: u8| {
        let (first, last) = (text.range().start, text.range().end);
        let from = start.clamp(first, last) - first;
        let to = end.clamp(first, last) - first;
        for byte in &mut map[from as usize..to.max(from) as usize] {
            *byte |= bit;
        }
    };
    for range in &theirs {
        mark(*range, 1);
    }
    for entry in &text.blacklist {
        let own = OWN.contains(&&*entry.kind);
        mark((entry.start, entry.end), if own { 6 } else { 2 });
    }
    let missing = map.iter().position(|byte| byte & 3 == 1);
    check!(
        missing.is_none(),
        "the guest allows no kprobe at {:#x}, and our list has nothing there",
        text.start + missing.unwrap_or_default() as u64
    );
    let both = map.iter().filter(|byte| **byte & 5 == 5).count();
    let only = map.iter().filter(|byte| **byte & 5 == 4).count();
    let first = map.iter().position(|byte| byte & 5 == 4);
    let first = first.map(|at| format!(" from {:#x} on", text.start + at as u64));
    Ok(format!(
        "{both} bytes in both, {only} of such kinds in ours only{}",
        first.unwrap_or_default()
    ))
}

fn range(text: &str) -> Option<(u64, u64)> {
    let (start, end) = text.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}
