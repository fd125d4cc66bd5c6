//! Networks by Debian's passt, which needs no privilege.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use interfaces::Tap;
use tempfile::TempDir;
use vmprobe_client::v1::network::Backend;
use vmprobe_client::v1::{self, Devices, Network};

use super::guest::{Config, Guest, VM, files};
use super::net::{BEFORE_LOSS, CPUS, listen, tap};
use super::streams::{joined, serve};
use crate::context::{Context, Place};
use crate::server::Server;
use crate::test::{Failure, Needs, Outcome, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "connections_of_6_12_by_passt_carry_bytes_until_it_dies_and_it_ends_with_the_guest",
        ids: &["VM05"],
        needs: Needs::Linux,
        run: |cx| with_passt(cx, |cx| connections(cx, files::BZIMAGE_6_12)),
    },
    Test {
        name: "a_server_without_passt_says_which_package_it_is",
        ids: &["VM05", "VM09"],
        needs: Needs::None,
        run: missing,
    },
];

/// Addresses of this machine, one for each of the guest's networks. The guest connects to them, and has the next
/// address itself. Passt makes the connections on this machine, so they lead here.
const HOSTS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(10, 119, 3, 1),
    Ipv4Addr::new(10, 119, 4, 1),
    Ipv4Addr::new(10, 119, 5, 1),
];
/// Connections of each CPU of the guest's over each network.
const EACH: u32 = 12;
/// A second mount of the lab machine's root.
const NEW_ROOT: &CStr = c"/tmp/root";

fn passt(socket: &str) -> Network {
    let socket = socket.to_owned();
    Network {
        backend: Some(Backend::Passt(v1::Passt { socket })),
        ..Network::default()
    }
}

fn missing(cx: &Context) -> TestResult {
    let kernel = tempfile::NamedTempFile::new().map_err(Failure::io("make a kernel"))?;
    fs::write(kernel.path(), crate::tiny::power_off_image()?)
        .map_err(Failure::io("write a kernel"))?;
    cx.block_on(async {
        let server = Server::start_with(cx, |command| {
            command.env("PATH", "/nowhere");
        })?;
        let client = server.client().await?;
        let request = v1::CreateVmRequest {
            kernel: kernel.path().to_string_lossy().into_owned(),
            devices: Some(Devices {
                networks: vec![passt("")],
                ..Devices::default()
            }),
            ..v1::CreateVmRequest::default()
        };
        let Err(error) = client.create_vm(request).await else {
            return Err(wrong!("a VM was made without passt"));
        };
        check!(
            format!("{error:?}").starts_with("FailedPrecondition"),
            "{error:?}"
        );
        check!(
            error.to_string().contains("Debian package `passt`"),
            "{error}"
        );
        pass_with(String::new())
    })
}

/// Runs a test if passt can run: it needs a route out, and a root that isn't the kernel's first one.
pub(super) fn with_passt(cx: &Context, test: fn(&Context) -> TestResult) -> TestResult {
    if !cx.program("passt").exists() {
        return Ok(Outcome::Skip("passt isn't here".to_owned()));
    }
    if cx.place == Place::Host {
        return test(cx);
    }
    // The lab machine has no network but the one made here.
    let outside = match tap("out", Ipv4Addr::new(10, 119, 9, 1))? {
        Ok(tap) => tap,
        Err(skipped) => return Ok(skipped),
    };
    interfaces::set_gateway(outside.name(), Ipv4Addr::new(10, 119, 9, 254))
        .map_err(Failure::io("make a route"))?;
    let made = fs::create_dir_all(Path::new("/etc"))
        .and_then(|()| fs::write("/etc/passwd", "nobody:x:65534:65534::/:/bin/false\n"))
        .and_then(|()| fs::create_dir_all("/tmp/root"));
    made.map_err(Failure::io("make passt's user"))?;
    test(cx)
}

/// Sets a command up to find the tests' passt, and gives it a root that passt can leave.
pub(super) fn prepare(cx: &Context, command: &mut Command) {
    if let Some(folder) = cx.program("passt").parent() {
        command.env("PATH", folder);
    }
    if cx.place != Place::Host {
        // SAFETY: `move_root` only makes system calls, which are safe between fork and exec, and allocates nothing.
        unsafe { command.pre_exec(move_root) };
    }
}

/// Gives this process a root that is a mount of its own, as `switch_root` does: a kernel's first root can't be left
/// (`pivot_root(2)`).
fn move_root() -> io::Result<()> {
    // SAFETY: it changes this process alone.
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"/", NEW_ROOT, libc::MS_BIND | libc::MS_REC)?;
    // SAFETY: the path ends in NUL.
    done(unsafe { libc::chdir(NEW_ROOT.as_ptr()) })?;
    mount(c".", c"/", libc::MS_MOVE)?;
    // SAFETY: the path ends in NUL.
    done(unsafe { libc::chroot(c".".as_ptr()) })
}

fn mount(from: &CStr, to: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the strings end in NUL and outlive the call; there are no data.
    done(unsafe {
        libc::mount(
            from.as_ptr(),
            to.as_ptr(),
            std::ptr::null(),
            flags,
            std::ptr::null(),
        )
    })
}

fn done(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A passt of the test's own. It is ended when this is dropped.
struct OwnPasst(Child);

impl OwnPasst {
    /// Starts one that listens on the socket.
    fn start(cx: &Context, socket: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(cx.program("passt"));
        command.args(["--foreground", "--quiet", "--one-off", "--socket"]);
        command.arg(socket).stdin(Stdio::null());
        prepare(cx, &mut command);
        let mut own = Self(command.spawn().map_err(Failure::io("start passt"))?);
        while !socket.exists() {
            let ended = own.0.try_wait().map_err(Failure::io("wait for passt"))?;
            check!(ended.is_none(), "passt has ended: {ended:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(own)
    }
}

impl Drop for OwnPasst {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _it_has_ended = self.0.wait();
    }
}

fn connections(cx: &Context, kernel: &'static str) -> TestResult {
    let mut taps: Vec<Tap> = Vec::new();
    for (name, address) in ["va", "vb", "vc"].into_iter().zip(HOSTS) {
        match tap(name, address)? {
            Ok(tap) => taps.push(tap),
            Err(skipped) => return Ok(skipped),
        }
    }
    let folder = TempDir::new().map_err(Failure::io("make a folder for a socket"))?;
    let socket = folder.path().join("passt");
    // Passt becomes another user before it makes the socket.
    let opened = fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    );
    opened.map_err(Failure::io("open a folder to passt"))?;
    let own = OwnPasst::start(cx, &socket)?;
    let config = Config {
        kernel,
        vcpus: CPUS,
        devices: Some(Devices {
            networks: vec![passt(""), passt(""), passt(&socket.to_string_lossy())],
            ..Devices::default()
        }),
        ..Config::new("workload=echo")
    };
    cx.block_on(async {
        let mut guest = Guest::hold_on(cx, &config, |command| prepare(cx, command)).await?;
        let processes = guest.process()?.started()?;
        check_eq!(processes.len(), 2, "processes that were started");
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        guest.work("drivers").await?;
        let interfaces: Vec<String> = (0..HOSTS.len())
            .map(|index| {
                let [a, b, c, d] = HOSTS[index].octets();
                format!("eth{index}={a}.{b}.{c}.{}", d + 1)
            })
            .collect();
        let ask = format!("network at={}", interfaces.join(","));
        let told = guest.work(&ask).await?;
        let mut bytes = 0;
        for (index, host) in HOSTS.into_iter().enumerate() {
            check_eq!(told[format!("eth{index}")]["carrier"], "1", "a link");
            let (listener, address) = listen(host)?;
            let server = thread::spawn(move || serve(&listener, EACH * CPUS));
            let ask = format!("calls at={address} count={EACH} seed={}", index + 1);
            let done = guest.work(&ask).await?;
            let served = joined(server, "the host's server")?;
            check_eq!(done["bytes"], served, "bytes that both sides have counted");
            bytes += served;
        }
        lose(&mut guest, "eth1", HOSTS[1], || kill(processes[1].0)).await?;
        lose(&mut guest, "eth2", HOSTS[2], || kill(own.0.id())).await?;
        // The first one goes on.
        let (listener, address) = listen(HOSTS[0])?;
        let server = thread::spawn(move || serve(&listener, CPUS));
        let done = guest.work(&format!("calls at={address} count=1")).await?;
        check_eq!(done["bytes"], joined(server, "the host")?, "bytes");
        guest.end().await?;
        let left = Path::new("/proc").join(processes[0].0.to_string());
        check!(!left.exists(), "passt has outlived its guest");
        pass_with(format!("{bytes} bytes"))
    })
}

/// Ends a network's passt while the guest sends over it: its link is down, and the guest goes on.
async fn lose(
    guest: &mut Guest,
    name: &str,
    host: Ipv4Addr,
    end: impl FnOnce() -> io::Result<()>,
) -> Result<(), Failure> {
    let (listener, address): (_, SocketAddrV4) = listen(host)?;
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        io::copy(
            &mut io::Read::take(&mut stream, BEFORE_LOSS),
            &mut io::sink(),
        )?;
        Ok(stream)
    });
    guest
        .say(&format!("workload=flood at={name}={address}"))
        .await?;
    let _stream = joined(reader, "the host")?;
    end().map_err(Failure::io("end passt"))?;
    let done = guest.console.report("done").await?;
    check_eq!(done["carrier"], "0", "the link of {name}");
    let sent = done["sent"].as_u64().unwrap_or_default();
    check!(sent >= BEFORE_LOSS, "{sent} bytes were sent");
    Ok(())
}

fn kill(process: u32) -> io::Result<()> {
    // SAFETY: it involves no memory.
    done(unsafe { libc::kill(process as libc::pid_t, libc::SIGKILL) })
}
