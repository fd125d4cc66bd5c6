//! The list of probes in the kernel's own form, compared with the list that the guest's kernel has of its own kprobes
//! at the same places.

use std::time::Instant;

use serde_json::Value;

use super::vmprobe;
use crate::context::Context;
use crate::linux::draw::draw;
use crate::linux::guest::{Guest, VM, files, specs};
use crate::linux::judge::{Function, Standing};
use crate::linux::jumps::{SETTLE, settle};
use crate::linux::offer::offer;
use crate::linux::own_list::OwnList;
use crate::note;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "the_list_of_probes_is_what_6_1_lists_of_kprobes_at_the_same_places",
        ids: &["KP09"],
        needs: Needs::Linux,
        run: |cx| same_list(cx, files::BZIMAGE_6_1, WITHOUT_RETURN.len()),
    },
    Test {
        name: "the_list_of_probes_is_what_6_12_lists_of_kprobes_at_the_same_places",
        ids: &["KP09"],
        needs: Needs::Linux,
        run: |cx| same_list(cx, files::BZIMAGE_6_12, JUMPS),
    },
];

/// Functions that are drawn, of which some can't be probed.
const DRAWN: usize = 100;
/// Places of each list.
const PLACES: usize = 32;
/// Functions that end with a jump to another one. Where mitigations have made returns jumps, 6.1 makes jumps of kprobes
/// only in such functions (`can_optimize` in `arch/x86/kernel/kprobes/opt.c`).
const WITHOUT_RETURN: [&str; 3] = ["__d_free_external", "__dev_remove_pack", "__do_SAK"];
/// The least places that are jumps in both lists of 6.12.
const JUMPS: usize = 10;
/// Length of an ftrace site.
const SITE: u64 = 5;
/// Functions of the module that the guest loads.
const IN_MODULE: [&str; 3] = ["tun:tun_chr_open", "tun:tun_chr_close", "tun:tun_chr_ioctl"];

/// `least`: the least places that are jumps in both lists.
fn same_list(cx: &Context, kernel: &'static str, least: usize) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, kernel, 1).await?;
        let own = OwnList::of(&mut guest).await?;
        let drawn = draw(&guest, &own, &mut cx.random(), DRAWN).await?;
        let names = probeable(&mut guest, &drawn).await?;
        let places = behind_sites(&guest, &names).await?;
        note(&format!("places: {places:?}"));

        let lines = breakpoints(cx, &mut guest, &places).await?;
        let without_return = behind_sites(&guest, &WITHOUT_RETURN).await?;
        let places = [places, without_return].concat();
        let (jumps, others) = jumps(cx, &mut guest, &places).await?;
        check!(jumps >= least, "only {jumps} places are jumps in both lists");
        let in_module = module(cx, &mut guest).await?;
        guest.finish().await?;
        pass_with(format!(
            "seed {}: {lines} breakpoints, {jumps} jumps, {in_module} in a module are listed alike; \
             {others} are a jump of only one of both",
            cx.seed
        ))
    })
}

/// Returns functions with unique names that take a probe behind their ftrace sites, and that an idle guest doesn't
/// call: with kprobes on functions that its ticks call all the time it makes no headway in the lab.
async fn probeable(guest: &mut Guest, drawn: &[Function]) -> Result<Vec<String>, Failure> {
    let alone = drawn.iter().filter(|function| {
        function.is_alone && function.standing == Standing::Open && !function.name.contains('.')
    });
    let names: Vec<String> = alone.map(|function| function.name.clone()).collect();
    let ids = offer(guest, &names).await?.ids();
    guest.work("log").await?;
    let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    let idle = removed.into_iter().filter(|probe| probe.hits == 0);
    let mut names: Vec<String> = idle.map(|probe| probe.symbol).collect();
    check!(
        names.len() >= PLACES,
        "only {} of {DRAWN} functions can be probed",
        names.len()
    );
    names.truncate(PLACES);
    Ok(names)
}

/// Returns functions and their first instructions that can be probed, by offset.
async fn behind_sites(
    guest: &Guest,
    names: &[impl AsRef<str>],
) -> Result<Vec<(String, String)>, Failure> {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let probes = guest.probes(&names).await?;
    let both = names.iter().zip(&probes);
    let places = both.map(|(name, probe)| {
        let place = format!("{name}+{:#x}", probe.offset);
        ((*name).to_owned(), place)
    });
    let places = places.collect();
    remove_all(guest).await?;
    Ok(places)
}

/// Kinds of probes in turn: what the guest is asked for, and what vmprobe is asked for.
fn kinds(index: usize, name: &str, place: &str) -> (String, String) {
    match index % 4 {
        0 => (place.to_owned(), place.to_owned()),
        1 => (format!("!{place}"), format!("{place} disabled")),
        2 => (format!("{name}%return"), format!("{name}%return")),
        _ => (name.to_owned(), name.to_owned()),
    }
}

/// Compares breakpoints, disabled ones, return probes, and probes by a function's name. Returns how many.
async fn breakpoints(
    cx: &Context,
    guest: &mut Guest,
    places: &[(String, String)],
) -> Result<usize, Failure> {
    let both = places.iter().enumerate();
    let (theirs, ours): (Vec<_>, Vec<_>) = both
        .map(|(index, (name, place))| kinds(index, name, place))
        .unzip();
    let done = guest
        .work(&format!("listing at={}", theirs.join(",")))
        .await?;
    let theirs = sorted(
        lines(&done)?
            .iter()
            .map(|line| behind_site(line))
            .collect::<Result<_, _>>()?,
    );
    register(guest, &ours).await?;
    let ours = sorted(vmprobe(cx, guest, &["probe", "list", "--kernel"])?);
    check_eq!(ours, theirs, "our list and the guest's own");
    remove_all(guest).await?;
    Ok(ours.len())
}

/// Compares jumps where both can make them. Returns how many are jumps in both lists, and how many in only one.
async fn jumps(
    cx: &Context,
    guest: &mut Guest,
    places: &[(String, String)],
) -> Result<(usize, usize), Failure> {
    const MARK: &str = "[OPTIMIZED]";
    let places: Vec<String> = places.iter().map(|(_, place)| place.clone()).collect();
    let done = guest
        .work(&format!("listing-jumps at={}", places.join(",")))
        .await?;
    let theirs = sorted(lines(&done)?);
    guest.client.set_optimization(VM, true).await?;
    register(guest, &places).await?;
    settle(guest, &[]).await?;
    let ours = sorted(vmprobe(cx, guest, &["probe", "list", "--kernel"])?);
    remove_all(guest).await?;
    guest.client.set_optimization(VM, false).await?;

    check_eq!(ours.len(), theirs.len(), "lines of {ours:#?}");
    let (mut both, mut one) = (0, 0);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let marks = (ours.ends_with(MARK), theirs.ends_with(MARK));
        if marks.0 == marks.1 {
            check_eq!(ours, theirs, "our line and the guest's own");
            both += usize::from(marks.0);
        } else {
            // The two may decide differently about what can be a jump.
            let bare = |line: &str| line.trim_end_matches(MARK).to_owned();
            check_eq!(bare(ours), bare(theirs), "our line and the guest's own");
            one += 1;
        }
    }
    Ok((both, one))
}

/// Compares probes in a module before and after it is unloaded. Both are disabled so that they can be at one place.
async fn module(cx: &Context, guest: &mut Guest) -> Result<usize, Failure> {
    // The module is loaded once first, to find its instructions.
    guest.say("workload=module count=0 hold=yes").await?;
    guest.console.report("loaded").await?;
    let places = behind_sites(guest, &IN_MODULE).await?;
    let places: Vec<String> = places.into_iter().map(|(_, place)| place).collect();
    for event in ["used", "unloaded", "done"] {
        guest.say("").await?;
        guest.console.report(event).await?;
    }

    let ours = places.iter().map(|place| format!("{place} disabled"));
    register(guest, &ours.collect::<Vec<_>>()).await?;
    let at = places.join(",");
    guest
        .say(&format!("workload=module count=1 hold=yes at={at}"))
        .await?;
    for event in ["loaded", "used", "unloaded"] {
        let report = guest.console.report(event).await?;
        if event != "used" {
            let theirs = sorted(lines(&report)?);
            let ours = sorted(vmprobe(cx, guest, &["probe", "list", "--kernel"])?);
            check_eq!(ours, theirs, "our list and the guest's own, {event}");
            check_eq!(ours.len(), places.len(), "lines of {ours:#?}, {event}");
        }
        guest.say("").await?;
    }
    guest.console.report("done").await?;
    remove_all(guest).await?;
    Ok(places.len())
}

/// The guest's list, from its report.
fn lines(report: &Value) -> Result<Vec<String>, Failure> {
    let list = report["list"].as_array();
    let lines = list.map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned));
    lines
        .map(Iterator::collect)
        .ok_or_else(|| wrong!("no list in {report}"))
}

/// The kernel's lists are ordered by a hash of the address.
fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_unstable();
    lines
}

/// Returns a line of the guest's as it would be for the instruction behind the ftrace site. The kernel has its kprobe
/// on the site itself, where our probes never are.
fn behind_site(line: &str) -> Result<String, Failure> {
    let Some(line) = line.strip_suffix("[FTRACE]") else {
        return Ok(line.to_owned());
    };
    let moved = || {
        let (address, rest) = line.split_once("  ")?;
        let (before, rest) = rest.split_once("+0x")?;
        let (offset, rest) = rest.split_once(' ')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (address, offset) = (number(address)? + SITE, number(offset)? + SITE);
        Some(format!("{address:016x}  {before}+{offset:#x} {rest}"))
    };
    moved().ok_or_else(|| wrong!("an odd line of the guest's list: {line:?}"))
}

/// Registers probes as soon as the guest's worker has removed its kprobes there from the kernel's table.
async fn register(guest: &Guest, texts: &[String]) -> Result<(), Failure> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let begun = Instant::now();
    loop {
        match guest.client.register_probes(VM, specs(&texts)?).await {
            Ok(_) => return Ok(()),
            Err(error)
                if error.to_string().contains("kprobe of its own") && begun.elapsed() < SETTLE => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn remove_all(guest: &Guest) -> Result<(), Failure> {
    let probes = guest.client.list_probes(VM).await?;
    let ids = probes.iter().map(|probe| probe.id).collect();
    guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kprobe_on_the_ftrace_site_is_compared_with_a_probe_behind_it() {
        for (line, expected) in [
            (
                "ffffffff812f0c10  k  vfs_read+0x0    [FTRACE]",
                "ffffffff812f0c15  k  vfs_read+0x5    ",
            ),
            (
                "ffffffff812f0c14  r  vfs_read+0x4  ext4 [DISABLED][FTRACE]",
                "ffffffff812f0c19  r  vfs_read+0x9  ext4 [DISABLED]",
            ),
            (
                "ffffffff812f0c15  k  vfs_read+0x5    [OPTIMIZED]",
                "ffffffff812f0c15  k  vfs_read+0x5    [OPTIMIZED]",
            ),
        ] {
            assert_eq!(behind_site(line).unwrap(), expected);
        }
        assert!(behind_site("odd [FTRACE]").is_err());
    }
}
