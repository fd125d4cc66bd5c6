//! Hosts whose `/dev/kvm` is missing or closed, made in a mount namespace of the server's own.

use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::ptr;

use vmprobe_client::v1::CreateVmRequest;

use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Outcome, Test, TestResult, check, pass, wrong};

pub const MISSING: Test = Test {
    name: "a_host_without_kvm_is_told_what_to_do",
    ids: &["VM07"],
    needs: Needs::None,
    run: missing,
};

pub const CLOSED: Test = Test {
    name: "a_user_who_may_not_open_kvm_is_told_what_to_do",
    ids: &["VM07"],
    needs: Needs::None,
    run: closed,
};

const DEVICE: &str = "/dev/kvm";
/// `CAP_DAC_OVERRIDE` and `CAP_DAC_READ_SEARCH` of include/uapi/linux/capability.h: what lets root
/// open any file.
const OPEN_ANY_FILE: [libc::c_ulong; 2] = [1, 2];

/// What covers the device's folder or the device.
enum Cover {
    /// An empty folder over `/dev`.
    Folder,
    /// This file, closed to all, over the device.
    File(CString),
}

fn missing(cx: &Context) -> TestResult {
    refused(cx, Cover::Folder, "there is no /dev/kvm")
}

fn closed(cx: &Context) -> TestResult {
    if !Path::new(DEVICE).exists() {
        return Ok(Outcome::Skip(format!("there is no {DEVICE} here to close")));
    }
    let path = std::env::temp_dir().join("closed");
    fs::write(&path, [])
        .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o000)))
        .map_err(Failure::io("make a closed file"))?;
    let path = CString::new(path.to_string_lossy().into_owned())
        .map_err(|_| wrong!("a folder's name has a NUL"))?;
    refused(cx, Cover::File(path), "/dev/kvm may not be opened")
}

/// Asks a server on such a host for a VM.
fn refused(cx: &Context, cover: Cover, message: &str) -> TestResult {
    // SAFETY: geteuid has no conditions.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(Outcome::Skip("only root can cover a device".to_owned()));
    }
    let kernel = std::env::temp_dir().join("tiny");
    fs::write(&kernel, crate::tiny::power_off_image()?)
        .map_err(Failure::io("write a test file"))?;
    cx.block_on(async {
        let server = Server::start_with(cx, |command| {
            // SAFETY: `cover` only makes system calls, which are safe between fork and exec, and
            // allocates nothing.
            unsafe { command.pre_exec(move || self::cover(&cover)) };
        })?;
        let client = server.client().await?;
        let request = CreateVmRequest {
            kernel: kernel.to_string_lossy().into_owned(),
            ..Default::default()
        };
        let error = match client.create_vm(request).await {
            Ok(_) => return Err(wrong!("a VM was made without KVM")),
            Err(error) => error,
        };
        check!(
            format!("{error:?}").starts_with("FailedPrecondition"),
            "{error:?}"
        );
        check!(error.to_string().contains(message), "{error}");
        check!(client.list_vms().await?.is_empty(), "a VM was left behind");
        pass()
    })
}

/// Covers the device for this process and gives up the rights that root has on any file.
fn cover(cover: &Cover) -> io::Result<()> {
    let done = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: it changes this process alone.
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
    match cover {
        Cover::Folder => mount(c"none", c"/dev", c"tmpfs", 0)?,
        Cover::File(file) => mount(file, c"/dev/kvm", c"", libc::MS_BIND)?,
    }
    for capability in OPEN_ANY_FILE {
        // SAFETY: it takes numbers only and changes this process alone.
        done(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })?;
    }
    Ok(())
}

fn mount(from: &CStr, to: &CStr, kind: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: all pointers are to strings that end in a NUL, or null for no data.
    let result = unsafe {
        libc::mount(
            from.as_ptr(),
            to.as_ptr(),
            kind.as_ptr(),
            flags,
            ptr::null(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
