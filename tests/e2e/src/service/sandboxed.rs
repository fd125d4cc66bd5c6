//! A server in a sandbox of the service manager's or a container engine's. systemd's `RestrictNamespaces=`, and those
//! of container engines, let no process call `clone3`, whose arguments a filter of system calls doesn't see. Threads
//! are then started by `clone`.

use std::io;
use std::os::unix::process::CommandExt;
use std::ptr;

use vmprobe_client::v1::EndingKind;

use super::processes::request;
use crate::context::Context;
use crate::server::Server;
use crate::test::{Needs, Test, TestResult, check_eq, pass};
use crate::tiny::power_off_image;

pub const WITHOUT_CLONE3: Test = Test {
    name: "a_guest_runs_where_a_sandbox_has_no_clone3",
    ids: &["VM08", "SV09"],
    needs: Needs::Tiny,
    run: without_clone3,
};

fn without_clone3(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = Server::start_with(cx, |command| {
            // SAFETY: it makes two system calls, and touches no memory but its own stack.
            unsafe { command.pre_exec(|| forbid(libc::SYS_clone3)) };
        })?;
        let client = server.client().await?;
        client.create_vm(request("a", &power_off_image()?)?).await?;
        let ending = client.wait_vm("a").await?;
        check_eq!(ending.kind(), EndingKind::PowerOff, "{}", ending.detail);
        check_eq!(server.stop()?, Some(0), "exit code of the server");
        pass()
    })
}

/// Makes a system call fail with `ENOSYS` in this process and all that it starts.
fn forbid(call: libc::c_long) -> io::Result<()> {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // struct seccomp_data (include/uapi/linux/seccomp.h) begins with the call's number.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            call as u32,
            0,
            1,
        ),
        statement(
            libc::BPF_RET,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
            0,
            0,
        ),
        statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: it has no pointers.
    let no_privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if no_privileges != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the program and its filter live until the kernel has copied both.
    let filtered = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            ptr::from_ref(&program),
            0,
            0,
        )
    };
    match filtered {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
