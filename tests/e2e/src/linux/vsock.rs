//! Connections between the guest and the host by a virtio socket device, with the kernel's own driver, while probes are
//! at work.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use seeded_random::Random;
use tempfile::TempDir;
use vmprobe_client::v1::{Devices, Probe, Vsock};

use super::guest::{Config, Guest, VM, files};
use super::jumps;
use super::streams::{joined, send, serve};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "vsock_connections_of_6_12_carry_bytes_both_ways_while_probes_are_jumps",
        ids: &["VM05", "JP01", "SV11"],
        needs: Needs::Linux,
        run: |cx| connections(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "vsock_connections_of_6_1_carry_bytes_both_ways_while_probes_are_jumps",
        ids: &["VM05", "JP01"],
        needs: Needs::Linux,
        run: |cx| connections(cx, files::BZIMAGE_6_1),
    },
];

const CID: u32 = 77;
const CPUS: u32 = 2;
/// The host's port that the guest connects to. The guest's own port is the next one.
const PORT: u32 = 5000;
/// Connections in each direction.
const CONNECTIONS: u32 = 1200;
/// Processes of the host that connect to the guest at a time, as threads.
const CALLERS: u32 = 3;
/// One of this many connections from the host carries the most bytes.
const LONG_ONE_IN: u64 = 50;

/// Functions that each connection, or each call on one, passes once; and two that packets pass. They are in three
/// modules.
const PROBES: [&str; 7] = [
    "connect=vsock:vsock_connect",
    "accept=vsock:vsock_accept",
    "send=vsock:vsock_connectible_sendmsg",
    "receive=vsock:vsock_connectible_recvmsg",
    "r:connected vsock:vsock_connect",
    "packet_out=vmw_vsock_virtio_transport:virtio_transport_send_pkt",
    "packet_in=vmw_vsock_virtio_transport_common:virtio_transport_recv_pkt",
];

/// Connects to a port of the guest's, as a user of the socket does. Also returns the line of the answer.
fn call(path: &Path, port: u32) -> io::Result<(UnixStream, String)> {
    let mut stream = UnixStream::connect(path)?;
    writeln!(stream, "CONNECT {port}")?;
    let mut line = String::new();
    // Bytes behind the line stay in the stream.
    BufReader::with_capacity(1, &stream).read_line(&mut line)?;
    if !line.starts_with("OK ") {
        return Err(io::Error::other(format!("the answer is {line:?}")));
    }
    Ok((stream, line))
}

/// Makes the connection that `docs/guests.md` shows, with the first process that connects. Returns how many bytes come
/// back.
fn documented(path: &Path) -> io::Result<(String, u64)> {
    let (mut stream, mut lines) = call(path, PORT + 1)?;
    stream.write_all(b"hello\n")?;
    stream.shutdown(Shutdown::Write)?;
    let len = stream.read_to_string(&mut lines)?;
    Ok((lines, len as u64))
}

fn connections(cx: &Context, kernel: &'static str) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder for sockets"))?;
    let path: PathBuf = folder.path().join("vsock");
    let service = folder.path().join(format!("vsock_{PORT}"));
    let listener = UnixListener::bind(&service).map_err(Failure::io("listen for the guest"))?;
    let config = Config {
        kernel,
        vcpus: CPUS,
        devices: Some(Devices {
            vsock: Some(Vsock {
                path: path.to_string_lossy().into_owned(),
                cid: CID,
            }),
            ..Devices::default()
        }),
        ..Config::new("workload=echo")
    };
    cx.block_on(async {
        let mut guest = Guest::hold_on(cx, &config, |command| {
            // If the owner of the server names folders, the socket is found in another way.
            if kernel == files::BZIMAGE_6_12 {
                command.args(["--files", "/", "--writable-files"]);
                command.arg(folder.path());
            }
        })
        .await?;
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        guest.work("drivers").await?;
        let probes = guest.probes(&PROBES).await?;
        let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        jumps::settle(&guest, &names).await?;
        for name in &names {
            jumps::jump(&guest, name).await?;
        }

        let each = CONNECTIONS / CPUS;
        let server = thread::spawn(move || serve(&listener, CONNECTIONS));
        let ask = format!("workload=sockets at={PORT} count={each} seed=7");
        guest.say(&ask).await?;
        let ready = guest.console.report("listening").await?;
        check_eq!(ready["cid"], CID, "the guest's CID");
        let (lines, mut bytes) = documented(&path).map_err(Failure::io("talk to the guest"))?;
        check_eq!(lines, "OK 1073741824\nhello\n", "the answers to a process");
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let path = path.clone();
                let random = Random::new(u64::from(caller));
                let count = CONNECTIONS / CALLERS - u32::from(caller == 0);
                thread::spawn(move || {
                    let connect = || Ok(call(&path, PORT + 1)?.0);
                    send(connect, count, LONG_ONE_IN, random)
                })
            })
            .collect();
        let done = guest.console.report("done").await?;
        bytes += joined(server, "the host's server")?;
        for caller in callers {
            bytes += joined(caller, "a caller")?;
        }

        check_eq!(done["bytes"], bytes, "bytes that both sides have counted");
        check_eq!(done["connects"], CONNECTIONS, "connections of the guest's");
        check_eq!(done["accepts"], CONNECTIONS, "connections of the host's");
        if kernel == files::BZIMAGE_6_12 {
            let uncopied = done["uncopied"].as_u64().unwrap_or_default();
            check!(uncopied > 0, "no packet was in several buffers");
        }
        let listed = async |name: &str| guest.listed(name).await;
        check_eq!(listed("connect").await?.hits, done["connects"], "calls");
        check_eq!(listed("accept").await?.hits, done["accepts"], "calls");
        check_eq!(listed("send").await?.hits, done["writes"], "calls");
        check_eq!(listed("receive").await?.hits, done["reads"], "calls");
        let followed = |probe: &Probe| probe.hits + probe.missed;
        let connected = listed("connected").await?;
        check_eq!(followed(&connected), done["connects"], "returns");
        let packets = listed("packet_out").await?.hits + listed("packet_in").await?.hits;
        let least = u64::from(CONNECTIONS) * 2 * 4;
        check!(packets > least, "only {packets} packets");
        guest.remove(&names).await?;
        guest.end().await?;
        check!(!path.exists(), "the socket has outlived its VM");
        pass_with(format!(
            "{} connections, {bytes} bytes, {packets} packets",
            2 * CONNECTIONS
        ))
    })
}
