//! A kernel module that comes and goes.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{listing, step, threads};
use crate::plan::Plan;

/// The device that is opened `count` times. The module `tun` makes it, and each opening calls `tun_chr_open`.
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

/// Loads and unloads the module while threads use it. The report has how often they could open its device.
pub fn churn(plan: &Plan) -> io::Result<Value> {
    let path = file(&plan.module)?;
    let (stop, opens) = (AtomicBool::new(false), AtomicU64::new(0));
    let cpus = threads::online_cpus()?;
    thread::scope(|scope| {
        for cpu in &cpus {
            let (stop, opens) = (&stop, &opens);
            scope.spawn(move || {
                // A thread that couldn't be bound opens it all the same.
                let _bound = threads::pin_to(&[*cpu]);
                while !stop.load(Ordering::Relaxed) {
                    match File::open(DEVICE) {
                        Ok(_) => drop(opens.fetch_add(1, Ordering::Relaxed)),
                        Err(_) => thread::yield_now(),
                    }
                }
            });
        }
        let done = rounds(plan, &path);
        stop.store(true, Ordering::Relaxed);
        done
    })?;
    Ok(json!({ "rounds": plan.rounds, "opens": opens.into_inner() }))
}

fn rounds(plan: &Plan, path: &str) -> io::Result<()> {
    for _ in 0..plan.rounds {
        load(path)?;
        thread::sleep(Duration::from_millis(plan.sleep_ms));
        // A thread may have the device open at the moment.
        while let Err(error) = unload_now(&plan.module) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Returns the path of the running kernel's module of this name.
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

/// Where a loaded module's text begins, as the kernel writes it.
pub fn text(name: &str) -> io::Result<String> {
    let path = format!("/sys/module/{name}/sections/.text");
    let text = fs::read_to_string(&path);
    let text = text.map_err(|error| io::Error::other(format!("can't read {path}: {error}")))?;
    Ok(text.trim().to_owned())
}

/// Loads a module, with flags of `finit_module(2)`.
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

/// Unloads a module that isn't in use.
pub fn unload(name: &str) -> io::Result<()> {
    unload_now(name).map_err(|error| io::Error::other(format!("can't unload {name:?}: {error}")))
}

fn unload_now(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name ends in NUL. A module in use stays.
    done(unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) })
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
