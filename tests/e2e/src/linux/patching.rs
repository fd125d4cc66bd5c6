//! What the kernel patches in its own text, and where it allows no kprobe, against the product's list.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use vmprobe_client::v1::BootMethod;
use vmprobe_client::words;

use super::decision::Answer;
use super::guest::{Config, Guest, VM, files};
use super::own_list::OwnList;
use super::text::Text;
use crate::context::Context;
use crate::note;
use crate::test::{Failure, Needs, Test, TestResult, check, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "every_byte_that_6_1_changes_in_its_text_is_one_that_the_list_says_it_patches",
        ids: &["KP02"],
        needs: Needs::Linux,
        run: |cx| patching(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "every_byte_that_6_12_changes_in_its_text_is_one_that_the_list_says_it_patches",
        ids: &["KP02"],
        needs: Needs::Linux,
        run: |cx| patching(cx, files::BZIMAGE_6_12),
    },
];

/// Kinds of changes, in the guest's order; it waits in the middle of each.
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
/// Kinds of sites that have to change. Otherwise the test proves nothing about them.
const CHANGED: [&str; 5] = [
    "ftrace",
    "jump-label",
    "static-call",
    "static-call-trampoline",
    "smp-lock",
];

/// Has the guest's kernel patch all that it can, and reads the text while it is changed.
fn patching(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        // With one CPU at first, so that the lock prefixes are patched when the others come up.
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
        let own = no_kprobes(&mut guest, &text).await?;

        guest
            .say("workload=toggle at=vfs_read,vfs_write hold=yes")
            .await?;
        let mut seen = Seen::default();
        for step in STEPS {
            guest.console.report(step).await?;
            let now = guest.memory(text.start, text.bytes.len()).await?;
            let changed = seen.add(&text, &now)?;
            note(&format!("{step}: {changed} sites are changed"));
            guest.say("").await?;
        }
        let report = guest.console.report("done").await?;
        for kind in CHANGED {
            check!(
                seen.sites.get(kind).is_some_and(|sites| !sites.is_empty()),
                "no {kind} site has changed: {report}"
            );
        }
        // The log has the messages that were switched on, so it isn't checked.
        guest.say("quit").await?;
        guest.power_off().await?;
        let sites = seen.sites.iter();
        let sites: Vec<String> = sites
            .map(|(kind, sites)| format!("{kind} {}", sites.len()))
            .collect();
        pass_with(format!(
            "{} of all sites changed in {} readings of the text; {own}; {}",
            sites.join(", "),
            seen.readings,
            report["switches"]
        ))
    })
}

/// The sites that have been seen changed.
#[derive(Debug, Default)]
struct Seen {
    readings: usize,
    sites: BTreeMap<String, BTreeSet<u64>>,
}

impl Seen {
    /// Returns how many sites are changed. Fails at a changed byte outside the sites that the kernel patches while it
    /// runs.
    fn add(&mut self, text: &Text, now: &[u8]) -> Result<usize, Failure> {
        self.readings += 1;
        let changed = text.changed(now)?;
        for (site, kind) in &changed {
            let sites = self.sites.entry((*kind).to_owned()).or_default();
            sites.insert(site.start);
        }
        Ok(changed.len())
    }
}

/// Fails unless the product's list has all places where the guest allows no kprobe. Of such kinds it may have more only
/// for parts that the compiler has split off from functions on the guest's list: that list doesn't show the parts, but
/// the kernel takes no kprobe there either.
async fn no_kprobes(guest: &mut Guest, text: &Text) -> Result<String, Failure> {
    /// The kinds in the product's list that stand for the kernel's own list.
    const OWN: [&str; 4] = ["noinstr", "entry", "kprobes", "blacklist"];
    let own = OwnList::of(guest).await?;
    let parts = parts(guest, text, &own).await?;
    let (mut theirs, mut ours) = (Bytes::of(text), Bytes::of(text));
    for (start, end) in &own.ranges {
        theirs.add(*start..*end);
    }
    for part in &parts {
        theirs.add(part.start..part.start + part.size);
    }
    for entry in &text.blacklist {
        if OWN.contains(&words::blacklist_kind(entry.kind())) {
            ours.add(entry.start..entry.end);
        }
    }
    for (one, other, what) in [
        (&theirs, &ours, "the guest allows no kprobe at"),
        (&ours, &theirs, "the guest's own list lacks"),
    ] {
        let found = one.lacks(other);
        check!(found.is_none(), "{what} {:#x}", found.unwrap_or_default());
    }
    let mut size = 0;
    for part in &parts {
        let start = format!("{:#x}", part.start);
        let done = guest
            .work(&format!("probeable at={start}+{:#x}", part.size))
            .await?;
        let answers = done["answers"][&*start].as_str().unwrap_or_default();
        let refused = Answer::parse(answers)?;
        let all = vec![Answer::Refused; part.size as usize];
        check!(
            refused == all,
            "the guest takes a kprobe in {}: {done}",
            part.name
        );
        size += part.size;
    }
    Ok(format!(
        "the guest's own list of no kprobes is ours, but for {size} bytes in {} parts of its functions, \
         where it takes none either",
        parts.len()
    ))
}

/// Part of a function.
struct Part {
    name: String,
    start: u64,
    size: u64,
}

/// Returns the parts that the compiler has split off from functions on the guest's list. That list doesn't have them.
async fn parts(guest: &Guest, text: &Text, own: &OwnList) -> Result<Vec<Part>, Failure> {
    let (symbols, more) = guest.client.lookup_symbols(VM, "*", 1_000_000).await?;
    check!(!more, "the list of symbols is cut off");
    let starts: BTreeSet<u64> = symbols.iter().map(|symbol| symbol.address).collect();
    let listed = symbols.iter().filter(|symbol| own.has(symbol.address));
    let listed: BTreeSet<&str> = listed.map(|symbol| &*symbol.name).collect();
    let split = symbols.iter().filter(|symbol| {
        let base = symbol.name.split_once('.').map(|(base, _)| base);
        let is_part = base.is_some_and(|base| listed.contains(base));
        is_part && text.range().contains(&symbol.address) && !own.has(symbol.address)
    });
    let parts = split.map(|symbol| {
        let next = starts.range(symbol.address + 1..).next();
        Part {
            name: symbol.name.clone(),
            start: symbol.address,
            size: next.map_or(0, |next| next - symbol.address),
        }
    });
    Ok(parts.collect())
}

/// A set of bytes of the text.
struct Bytes {
    start: u64,
    has: Vec<bool>,
}

impl Bytes {
    fn of(text: &Text) -> Self {
        Self {
            start: text.start,
            has: vec![false; text.bytes.len()],
        }
    }

    fn add(&mut self, range: Range<u64>) {
        let end = self.start + self.has.len() as u64;
        let from = range.start.clamp(self.start, end) - self.start;
        let to = range.end.clamp(self.start, end) - self.start;
        self.has[from as usize..to.max(from) as usize].fill(true);
    }

    /// Returns the address of the first byte that isn't in the other set.
    fn lacks(&self, other: &Self) -> Option<u64> {
        let mut both = self.has.iter().zip(&other.has);
        let at = both.position(|(one, other)| *one && !other)?;
        Some(self.start + at as u64)
    }
}
