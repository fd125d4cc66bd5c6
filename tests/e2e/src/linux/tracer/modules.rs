//! Arguments by name and type in modules, whose types the kernel keeps apart from its own.

use std::collections::{BTreeMap, BTreeSet};

use vmprobe_client::v1::{BlacklistEntry, BlacklistKind};

use super::super::guest::{Guest, VM, files};
use super::super::jumps;
use super::super::list::vmprobe;
use super::super::whole::blacklist;
use super::definitions::Definition;
use super::{by_event, define, text};
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "arguments_by_name_in_a_module_of_6_12_are_those_of_the_guest_s_own_events",
        ids: &["TR02", "KP21"],
        needs: Needs::Linux,
        run: |cx| modules(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "arguments_by_name_in_a_module_of_6_1_are_what_the_module_has_set",
        ids: &["TR02", "KP21"],
        needs: Needs::Linux,
        run: |cx| modules(cx, files::BZIMAGE_6_1),
    },
];

/// How often the module's device is opened and closed.
const CALLS: usize = 4;
/// Probes whose arguments have types of the module's and of the kernel's. `#` stands for a name of the kind's own.
const PROBES: [&str; 3] = [
    "p:open# tun:tun_chr_open file=file flags=file->f_flags inode=inode->i_rdev",
    "r:opened# tun:tun_chr_open result=$retval",
    "p:detach# tun:__tun_detach file=tfile->socket.file buffer=tfile->sk.sk_sndbuf queue=tfile->queue_index",
];

fn modules(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 1).await?;
        let loaded = guest.work("load module=tun").await?;
        found_at(&guest, &loaded).await?;
        for (text, why) in [
            ("p no_such:tun_chr_open file", "load the module first"),
            ("p no_such:tun_chr_*", "isn't loaded"),
            ("p tun:no_such_*", "no function of module"),
        ] {
            let error = guest.refusal(text).await?.to_string();
            check!(error.contains(why), "{text}: {error}");
        }
        types(&guest).await?;
        listed(cx, &guest).await?;
        pattern(&mut guest).await?;
        for jump in [false, true] {
            compare(&mut guest, jump, kernel == files::BZIMAGE_6_12).await?;
        }
        guest.finish().await?;
        pass_with(format!(
            "{} definitions as breakpoints and as jumps",
            PROBES.len()
        ))
    })
}

/// Checks that an address in the module is found, although the guest has not stood still for any probe yet.
async fn found_at(guest: &Guest, loaded: &serde_json::Value) -> Result<(), Failure> {
    let text = loaded["text"].as_str().unwrap_or_default();
    let address = u64::from_str_radix(text.trim_start_matches("0x"), 16);
    let address = address.map_err(|error| wrong!("the module's text at {text:?}: {error}"))?;
    let found = guest.client.locate(VM, address).await?;
    check_eq!(found.module, "tun", "module at {text}");
    Ok(())
}

/// Checks what is reported of the module's types.
async fn types(guest: &Guest) -> Result<(), Failure> {
    let declared = guest
        .client
        .describe_type(VM, "tun:struct tun_file")
        .await?;
    check!(
        declared.contains("struct socket socket;"),
        "struct tun_file is {declared}"
    );
    let listed = guest.client.list_types(VM, "tun:struct tun_*").await?;
    check!(
        listed.iter().any(|name| name == "struct tun_struct"),
        "listed: {listed:?}"
    );
    let unknown = guest.client.describe_type(VM, "no_such:file").await;
    let error = unknown.unwrap_or_else(|error| error.to_string());
    check!(error.contains("no types of a module"), "{error}");
    Ok(())
}

/// Checks the list of the module's functions: where each is and what rules out a probe on it.
async fn listed(cx: &Context, guest: &Guest) -> Result<(), Failure> {
    let (all, more) = guest.client.lookup_symbols(VM, "tun:*", 0).await?;
    check!(!more && all.len() > 50, "{} functions of tun", all.len());
    for function in &all {
        let found = guest.client.locate(VM, function.address).await?;
        check_eq!(
            (found.module.as_str(), found.offset),
            ("tun", 0),
            "place of {function:?}"
        );
    }
    let ruled_out = blacklist(guest, "tun:").await?;
    let kinds: BTreeSet<_> = ruled_out.iter().map(BlacklistEntry::kind).collect();
    check!(
        kinds.contains(&BlacklistKind::Ftrace),
        "kinds of entries: {kinds:?}"
    );
    let one = blacklist(guest, "tun:tun_chr_open").await?;
    let of_open = ruled_out.iter().filter(|it| it.symbol == "tun_chr_open");
    check!(one.iter().eq(of_open), "entries of tun_chr_open: {one:?}");
    let shown = vmprobe(cx, guest, &["list", "tun:tun_chr_*"])?;
    check!(
        shown.iter().any(|line| line == "tun:tun_chr_open"),
        "`vmprobe list` shows {shown:?}"
    );
    for pattern in ["no_such:*", "tun:no_such_*"] {
        let error = blacklist(guest, pattern).await;
        let error = error
            .err()
            .map_or_else(String::new, |error| error.to_string());
        check!(error.contains("module"), "{pattern}: {error}");
    }
    Ok(())
}

/// Registers a probe on each function of the module that matches.
async fn pattern(guest: &mut Guest) -> Result<(), Failure> {
    let probes = guest.probes(&["p:all tun:tun_chr_*"]).await?;
    let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
    for name in ["all.tun_chr_open", "all.tun_chr_poll", "all.tun_chr_close"] {
        check!(names.contains(&name), "no {name} in {names:?}");
    }
    guest
        .work(&format!("threads syscall=tun count={CALLS}"))
        .await?;
    for probe in guest.remove(&names).await? {
        let expected = match probe.name.as_str() {
            "all.tun_chr_open" | "all.tun_chr_close" => CALLS as u64,
            _ => 0,
        };
        check_eq!(probe.hits, expected, "hits of {}", probe.name);
    }
    Ok(())
}

/// Has our probes see the calls and, if the kernel's own events take names, the guest's events see the same ones.
async fn compare(guest: &mut Guest, jump: bool, has_names: bool) -> Result<(), Failure> {
    guest.client.set_optimization(VM, jump).await?;
    let kind = if jump { "jump" } else { "break" };
    let definitions = PROBES.map(|text| {
        let mut definition = Definition::new(&text.replace('#', kind));
        // With the module's name in front, 6.12 finds no types: it looks for a function of that whole name.
        definition.theirs = definition.theirs.replace(" tun:", " ");
        definition
    });
    let mut stream = guest.client.events(VM, Vec::new()).await?;
    let texts: Vec<&str> = definitions.iter().map(|it| it.ours.as_str()).collect();
    let probes = guest.probes(&texts).await?;
    let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
    if jump {
        for name in &names {
            jumps::jump(guest, name).await?;
        }
    }
    if has_names {
        define(guest, &definitions).await?;
    }
    let calls = format!("threads syscall=tun count={CALLS}");
    guest.work(&calls).await?;
    let theirs = match has_names {
        true => guest.work("trace").await?,
        false => serde_json::Value::Null,
    };
    let removed = guest.remove(&names).await?;
    let hits = removed.iter().map(|probe| probe.hits).sum();
    let (all, lost) = events::next(&mut stream, hits).await?;
    check_eq!(lost, 0, "lost events");
    let ours = by_event(text(&removed, &all)?.lines());
    if has_names {
        let lines = theirs["lines"].as_array();
        let lines = lines.ok_or_else(|| wrong!("no lines in {theirs}"))?;
        let theirs = by_event(lines.iter().filter_map(|line| line.as_str()));
        for definition in &definitions {
            let name = definition.name();
            check_eq!(ours.get(name), theirs.get(name), "values of {name}");
        }
    }
    facts(&ours, kind)
}

/// Checks that `__tun_detach` finds what `tun_chr_open` in `drivers/net/tun.c` sets.
fn facts(ours: &BTreeMap<String, Vec<String>>, kind: &str) -> Result<(), Failure> {
    let of = |name: &str| -> Result<&[String], Failure> {
        let name = format!("{name}{kind}");
        let found = ours.get(&name).map(Vec::as_slice).unwrap_or_default();
        check_eq!(found.len(), CALLS, "hits of {name}");
        Ok(found)
    };
    let (open, opened, detach) = (of("open")?, of("opened")?, of("detach")?);
    for ((open, opened), detach) in open.iter().zip(opened).zip(detach) {
        let file = value(open, "file");
        check!(file.starts_with("0xffff"), "{open}");
        check_eq!(file, value(detach, "file"), "the file in `{detach}`");
        check_eq!(value(opened, "result"), "0", "`{opened}`");
        let most = i32::MAX.to_string();
        check_eq!(value(detach, "buffer"), most, "`{detach}`");
        check_eq!(value(detach, "queue"), "0", "`{detach}`");
        // Major 10, minor 200 (Documentation/networking/tuntap.rst), as `MKDEV` puts them together.
        let device = ((10 << 20) | 200).to_string();
        check_eq!(value(open, "inode"), device, "`{open}`");
    }
    Ok(())
}

/// The value of that name in a line.
pub fn value<'a>(line: &'a str, name: &str) -> &'a str {
    let values = line.split(' ');
    let mut found = values.filter_map(|value| value.strip_prefix(name)?.strip_prefix('='));
    found.next().unwrap_or_default()
}
