//! What can't be probed in a real kernel, and what the blacklist says about it.

use std::collections::BTreeMap;

use iced_x86::Code;
use vmprobe_client::v1::BlacklistEntry;
use vmprobe_client::words;

use super::code::decode;
use super::guest::{Guest, VM, files};
use super::whole::blacklist;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, pass, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "what_6_1_lists_as_not_probeable_is_refused_for_the_listed_reason",
        ids: &["KP02"],
        needs: Needs::Linux,
        run: |cx| listed(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "what_6_12_lists_as_not_probeable_is_refused_for_the_listed_reason",
        ids: &["KP02"],
        needs: Needs::Linux,
        run: |cx| listed(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "each_place_that_makes_no_sense_is_refused_by_its_own_reason",
        ids: &["KP02"],
        needs: Needs::Linux,
        run: reasons,
    },
];

/// Entries of each kind that are tried.
const SAMPLE: usize = 12;

fn listed(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let guest = Guest::breakpoints(cx, kernel, 1).await?;
        let all = blacklist(&guest, "").await?;
        let mut kinds: BTreeMap<&str, Vec<&BlacklistEntry>> = BTreeMap::new();
        for entry in &all {
            check!(entry.start < entry.end, "an empty entry: {entry:?}");
            check!(!entry.reason.is_empty(), "no reason: {entry:?}");
            let kind = words::blacklist_kind(entry.kind());
            kinds.entry(kind).or_default().push(entry);
        }
        for kind in ["noinstr", "entry", "ftrace", "jump-label", "static-call"] {
            let found = kinds.keys().any(|found| found.contains(kind));
            check!(found, "no {kind} among {:?}", kinds.keys());
        }
        let mut tried = 0;
        for (kind, entries) in &kinds {
            let step = entries.len().div_ceil(SAMPLE);
            for entry in entries.iter().step_by(step) {
                let text = format!("{:#x}", entry.start);
                let error = guest.refusal(&text).await?.to_string();
                // Other entries may cover it as well; freed text is refused as freed.
                let known = all
                    .iter()
                    .filter(|other| (other.start..other.end).contains(&entry.start))
                    .any(|other| error.contains(&other.reason));
                check!(
                    known || error.contains("freed"),
                    "{text} is listed as {kind} ({}), but refused so: {error}",
                    entry.reason
                );
                tried += 1;
            }
        }
        let one = blacklist(&guest, "vfs_read").await?;
        check!(
            !one.is_empty() && one.iter().all(|entry| entry.symbol == "vfs_read"),
            "the list of vfs_read: {one:?}"
        );
        let counts: Vec<String> = kinds
            .iter()
            .map(|(kind, entries)| format!("{kind} {}", entries.len()))
            .collect();
        guest.finish().await?;
        pass_with(format!("{tried} tried of {}", counts.join(", ")))
    })
}

fn reasons(cx: &Context) -> TestResult {
    cx.block_on(async {
        let guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, 1).await?;
        let start = guest.symbol("vfs_read").await?;
        let code = decode(start, &guest.memory(start, 0x400).await?);
        let behind_site = code.iter().filter(|one| one.ip() >= start + 5);
        let long = behind_site.clone().find(|one| one.len() > 2);
        let long = long.map_or(0, iced_x86::Instruction::ip);
        let ud2 = find_ud2(&guest).await?;
        let data = guest.symbol("jiffies_64").await?;
        let ambiguous = ambiguous(&guest).await?;
        // The requested place, and words that must all be in the refusal.
        let cases: Vec<(String, &[&str])> = vec![
            ("no_such_symbol_at_all".into(), &["no symbol"]),
            ("vfs_read+0x100000".into(), &["outside vfs_read"]),
            ("0x1000".into(), &["not in the kernel's text"]),
            (format!("{data:#x}"), &["not in the kernel's text"]),
            (format!("{:#x}", long + 1), &["inside the instruction"]),
            (format!("{start:#x}"), &["ftrace site"]),
            ("exc_int3".into(), &["noinstr"]),
            ("entry_SYSCALL_64".into(), &["entry"]),
            (format!("{ud2:#x}"), &["BUG"]),
            ("start_kernel".into(), &["freed"]),
            (ambiguous, &["symbols of the guest kernel are called"]),
        ];
        for (text, words) in &cases {
            let error = guest.refusal(text).await?.to_string();
            for word in *words {
                check!(error.contains(word), "{text}: no {word:?} in: {error}");
            }
        }
        guest.finish().await?;
        pass()
    })
}

/// Returns the address of a BUG in a function of the kernel.
async fn find_ud2(guest: &Guest) -> Result<u64, Failure> {
    let (symbols, _) = guest.client.lookup_symbols(VM, "kmem_cache_*", 0).await?;
    for symbol in symbols
        .iter()
        .filter(|symbol| symbol.kind.eq_ignore_ascii_case("t"))
    {
        let bytes = guest.memory(symbol.address, 0x200).await?;
        let found = decode(symbol.address, &bytes)
            .into_iter()
            .find(|one| one.code() == Code::Ud2);
        if let Some(found) = found {
            let (owner, _) = guest.client.resolve_address(VM, found.ip()).await?;
            if owner.address == symbol.address {
                return Ok(found.ip());
            }
        }
    }
    Err(crate::test::wrong!("no function with a BUG was found"))
}

/// Returns a name that several functions have.
async fn ambiguous(guest: &Guest) -> Result<String, Failure> {
    let (symbols, _) = guest.client.lookup_symbols(VM, "*_show", 100_000).await?;
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for symbol in symbols.iter().filter(|symbol| symbol.kind == "t") {
        *count.entry(&symbol.name).or_default() += 1;
    }
    let found = count.iter().find(|(_, count)| **count > 1);
    found
        .map(|(name, _)| (*name).to_owned())
        .ok_or_else(|| crate::test::wrong!("no name that several functions have"))
}
