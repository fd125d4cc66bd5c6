//! A kernel module that comes and goes.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;

use serde_json::{Value, json};

use super::{listing, step};
use crate::plan::Plan;

/// Opened `count` times; the module `tun` makes it, and counts each in `tun_chr_open`.
pub const DEVICE: &str = "/dev/net/tun";

/// Loads the module, opens its device, unloads it. With places `at` the kernel has a kprobe at each
/// meanwhile, which stays disabled; the reports say how it lists them.
///
/// Steps, each round: `loaded`, `used`, `unloaded`.
pub fn run(plan: &Plan) -> io::Result<Value> {
    let path = file(&plan.module)?;
    for round in 0..plan.rounds {
        load(&path)?;
        let address = fs::read_to_string(format!("/sys/module/{}/sections/.text", plan.module))?;
        let list = listing::disabled(&plan.at)?;
        let text = json!({ "round": round, "text": address.trim(), "list": list });
        step(plan, "loaded", text)?;
        for _ in 0..plan.count {
            File::open(DEVICE)
                .map_err(|error| io::Error::other(format!("can't open {DEVICE}: {error}")))?;
        }
        step(plan, "used", json!({ "round": round, "opens": plan.count }))?;
        unload(&plan.module)?;
        let list = listing::lines()?;
        step(plan, "unloaded", json!({ "round": round, "list": list }))?;
        listing::forget(&plan.at)?;
    }
    Ok(json!({ "rounds": plan.rounds, "opens": plan.count * plan.rounds }))
}

/// Where the running kernel's module of this name is.
pub fn file(name: &str) -> io::Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!("/lib/modules/{}/{name}.ko", release.trim()))
}

/// Loads a module from a file.
pub fn load(path: &str) -> io::Result<()> {
    File::open(path)
        .and_then(|file| load_opened(&file, 0))
        .map_err(|error| io::Error::other(format!("can't load {path}: {error}")))
}

/// Loads a module; flags as `finit_module(2)` has them.
pub fn load_opened(file: &File, flags: libc::c_int) -> io::Result<()> {
    let no_parameters = c"";
    // SAFETY: the descriptor is open and the parameters end in NUL.
    let result = unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            no_parameters.as_ptr(),
            flags,
        )
    };
    done(result)
}

/// Unloads a module that nobody uses.
pub fn unload(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name ends in NUL; no flags, so a module in use stays.
    done(unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), 0) })
        .map_err(|error| io::Error::other(format!("can't unload {name:?}: {error}")))
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
