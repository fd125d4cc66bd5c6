//! The kernel's optimizer of its own kprobes: Documentation/trace/kprobes.rst, "How Does Jump
//! Optimization Work?".

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::workload::{debugfs, tracefs};

const SWITCH: &str = "/proc/sys/debug/kprobes-optimization";
/// A kprobe that can always be optimized: at a function that begins by pushing and moving registers, since the kernel
/// copies no calls, and 6.1 no shifts either (`copy_optimized_instructions` in `arch/x86/kernel/kprobes/opt.c`,
/// `can_boost` in `core.c`). The function ends with a jump to another one, as 6.1 takes the jump to a return thunk for
/// an indirect one, which may lead anywhere (`can_optimize`).
const CONTROL: (&str, &str) = ("mine/control", "__bpf_prog_free");
/// How long optimizing may take; the kernel waits until each task has slept or run in user mode.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);
/// The mark of a jump in the kernel's list.
const OPTIMIZED: &str = "[OPTIMIZED]";

/// Lets kprobes be jumps, or turns all into breakpoints.
pub fn allow(may: bool) -> io::Result<()> {
    fs::write(SWITCH, if may { "1\n" } else { "0\n" })
}

/// Waits until the kernel has optimized all that it can. It takes kprobes in the order in which they were switched on,
/// so a last one shows that the others have been processed.
pub fn settle() -> io::Result<()> {
    let (event, function) = CONTROL;
    let place = format!("{function}+{:#x}", inside(function)?);
    tracefs::append("kprobe_events", &format!("p:{event} {place}"))?;
    let optimized =
        tracefs::write(&format!("events/{event}/enable"), "1").and_then(|()| wait(&place));
    tracefs::write(&format!("events/{event}/enable"), "0")?;
    tracefs::append("dynamic_events", &format!("-:{event}"))?;
    optimized
}

/// Waits until the kernel has made the kprobe at a place a jump.
fn wait(place: &str) -> io::Result<()> {
    let start = Instant::now();
    while !listed(place)?.contains(OPTIMIZED) {
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("{place} is never optimized")));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Returns the marks of the kprobe at a place in the kernel's list: `[DISABLED]`, `[OPTIMIZED]`, `[FTRACE]`.
pub fn listed(place: &str) -> io::Result<String> {
    let (function, offset) = place.split_once('+').unwrap_or((place, "0x0"));
    let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16);
    let offset = offset.map_err(|error| io::Error::other(format!("{place:?}: {error}")))?;
    let list = debugfs::read(debugfs::KPROBES)?;
    Ok(flags(&list, symbol(function)? + offset).unwrap_or_default())
}

/// Returns the flags in the line of the kprobe at this address. The line may name the place by another name of the same
/// function.
fn flags(list: &str, at: u64) -> Option<String> {
    list.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        (address == at).then(|| words.skip(2).collect::<Vec<_>>().join(" "))
    })
}

/// Returns the offset of the code behind a function's ftrace site: 5 bytes for the site, and 4 for an `endbr64`, if
/// there is one.
fn inside(function: &str) -> io::Result<u64> {
    let filters = tracefs::read("available_filter_functions_addrs");
    let start = symbol(function)?;
    match filters {
        // 6.6 and later list the addresses of sites; before that, no function has an `endbr64`. The listed name may be
        // another one of the same function.
        Ok(text) => {
            let at_start = start..start + 5;
            let site = text.lines().find_map(|line| {
                let (address, _) = line.split_once(' ')?;
                let address = u64::from_str_radix(address, 16).ok()?;
                at_start.contains(&address).then_some(address)
            });
            let site = site.ok_or_else(|| io::Error::other(format!("no site of {function}")))?;
            Ok(site - start + 5)
        }
        Err(_) => Ok(5),
    }
}

/// The address of a function.
fn symbol(name: &str) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/kallsyms")?;
    let found = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        (words.nth(1)? == name).then_some(address)
    });
    found.ok_or_else(|| io::Error::other(format!("no symbol {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_those_of_the_address() {
        let list = "ffffffff81000009  k  x+0x9    [DISABLED][OPTIMIZED]\n\
                    ffffffff81000090  k  x+0x90   [OPTIMIZED]\n\
                    ffffffff81000100  r  y+0x0\n";
        let at = |offset| flags(list, 0xffff_ffff_8100_0000_u64 + offset);
        assert_eq!(at(0x90).as_deref(), Some("[OPTIMIZED]"));
        assert_eq!(at(0x100).as_deref(), Some(""));
        assert_eq!(at(0), None);
    }
}
