//! Networks by virtio devices, with the kernel's own driver, while probes are at work.

use std::fs;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use interfaces::Tap;
use seeded_random::Random;
use tempfile::NamedTempFile;
use vmprobe_client::v1::network::Backend;
use vmprobe_client::v1::{self, Devices, Disk, Network, Probe, RateLimit};

use super::guest::{Config, Guest, files};
use super::jumps;
use super::streams::{joined, send, serve};
use crate::context::Context;
use crate::test::{Failure, Needs, Outcome, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "connections_of_6_12_through_a_tap_carry_bytes_both_ways_while_probes_are_jumps",
        ids: &["VM05", "JP01"],
        needs: Needs::Linux,
        run: |cx| taps(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "connections_of_6_1_through_a_tap_carry_bytes_both_ways_while_probes_are_jumps",
        ids: &["VM05", "JP01"],
        needs: Needs::Linux,
        run: |cx| taps(cx, files::BZIMAGE_6_1),
    },
];

pub(super) const CPUS: u32 = 2;
/// The networks: the host's address and the guest's of each.
const NETWORK: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 119, 1, 1), Ipv4Addr::new(10, 119, 1, 2)];
const LIMITED: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 119, 2, 1), Ipv4Addr::new(10, 119, 2, 2)];
const MAC: &str = "02:00:00:77:00:01";
/// Connections in each direction.
const CONNECTIONS: u32 = 60;
/// One of this many connections from the host carries the most bytes.
const LONG_ONE_IN: u64 = 8;
/// Bytes a second of the limited network and of the limited disk; and the bytes that go through each.
const RATE: u64 = 1 << 20;
const UPLOAD: u64 = 3 << 19;
const DISK_LEN: u64 = 3 << 19;
/// What a bucket holds, a tenth of a second's bytes, and the longest packet or request, by which more than its content
/// may be taken.
const BURST: u64 = RATE / 10 + (2 << 16);
/// Bytes that the host reads before the network is gone.
pub(super) const BEFORE_LOSS: u64 = 1 << 20;

/// Functions that each connection, or each call on one, passes once; and some that packets pass. They are in the kernel
/// and in the driver's module.
const PROBES: [&str; 9] = [
    "connect=tcp_v4_connect",
    "accept=inet_accept",
    "send=tcp_sendmsg",
    "receive=tcp_recvmsg",
    "r:connected tcp_v4_connect",
    "segment=tcp_v4_rcv",
    "packet=ip_local_deliver",
    "packet_out=virtio_net:start_xmit",
    "r:polled virtio_net:virtnet_poll",
];

/// Listens at this address of the host's, at a free port.
pub(super) fn listen(address: Ipv4Addr) -> Result<(TcpListener, SocketAddrV4), Failure> {
    let bound = TcpListener::bind((address, 0)).and_then(|listener| {
        let port = listener.local_addr()?.port();
        Ok((listener, SocketAddrV4::new(address, port)))
    });
    bound.map_err(Failure::io("listen for the guest"))
}

/// Reads a connection to its end. Returns the number of bytes, and the time from the first one.
fn read_all(listener: &TcpListener) -> io::Result<(u64, Duration)> {
    let (mut stream, _) = listener.accept()?;
    let mut first = [0];
    stream.read_exact(&mut first)?;
    let start = Instant::now();
    let rest = io::copy(&mut stream, &mut io::sink())?;
    Ok((rest + 1, start.elapsed()))
}

/// Makes a tap interface of this process's own, or returns why it can't.
pub(super) fn tap(name: &str, address: Ipv4Addr) -> Result<Result<Tap, Outcome>, Failure> {
    match Tap::new(&format!("{name}{}", std::process::id() % 100_000), address) {
        Ok(tap) => Ok(Ok(tap)),
        Err(error) if cannot(&error) => {
            let why = format!("this machine has no tap interface for it: {error}");
            Ok(Err(Outcome::Skip(why)))
        }
        Err(error) => Err(Failure::io("make a tap interface")(error)),
    }
}

fn cannot(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
    kinds.contains(&error.kind())
}

fn on_tap(tap: &Tap, mac: &str, limit: Option<RateLimit>) -> Network {
    let name = tap.name().to_owned();
    Network {
        backend: Some(Backend::Tap(v1::Tap { name })),
        mac: mac.to_owned(),
        limit,
    }
}

/// Reads one of the kernel's counters of a host's interface.
fn counted(tap: &Tap, what: &str) -> Result<u64, Failure> {
    let path = format!("/sys/class/net/{}/statistics/{what}", tap.name());
    let text = fs::read_to_string(&path).map_err(Failure::io(format!("read {path}")))?;
    text.trim()
        .parse()
        .map_err(|_| wrong!("{path} has {text:?}"))
}

fn taps(cx: &Context, kernel: &'static str) -> TestResult {
    let (free, limited) = match (tap("vm", NETWORK[0])?, tap("vml", LIMITED[0])?) {
        (Ok(free), Ok(limited)) => (free, limited),
        (Err(skipped), _) | (_, Err(skipped)) => return Ok(skipped),
    };
    let limit = Some(RateLimit {
        bytes_per_second: RATE,
        operations_per_second: 0,
    });
    let disk = NamedTempFile::new().map_err(Failure::io("make a disk"))?;
    let sized = disk.as_file().set_len(DISK_LEN);
    sized.map_err(Failure::io("make a disk"))?;
    let config = Config {
        kernel,
        vcpus: CPUS,
        devices: Some(Devices {
            networks: vec![on_tap(&free, MAC, None), on_tap(&limited, "", limit)],
            disks: vec![Disk {
                path: disk.path().to_string_lossy().into_owned(),
                limit,
                ..Disk::default()
            }],
            ..Devices::default()
        }),
        ..Config::new("workload=echo")
    };
    cx.block_on(async {
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        guest.work("drivers").await?;
        let at = format!("network at=eth0={},eth1={}", NETWORK[1], LIMITED[1]);
        let told = guest.work(&at).await?;
        check_eq!(told["eth0"]["mac"], MAC, "the guest's address");
        for name in ["eth0", "eth1"] {
            check_eq!(told[name]["carrier"], "1", "the link of {name}");
            check_eq!(told[name]["mtu"], "1500", "the MTU of {name}");
        }
        let remark = connections(&mut guest, &free).await?;
        let limits = limits(&mut guest).await?;
        lost(&mut guest, limited).await?;
        // The other network goes on.
        let (listener, address) = listen(NETWORK[0])?;
        let reader = thread::spawn(move || read_all(&listener));
        guest
            .work(&format!("upload at={address} count=1000"))
            .await?;
        check_eq!(joined(reader, "the host")?.0, 1000, "bytes");
        guest.end().await?;
        pass_with(format!("{remark}, {limits}"))
    })
}

/// Connections both ways at once, each checked byte by byte, while probes are jumps.
async fn connections(guest: &mut Guest, tap: &Tap) -> Result<String, Failure> {
    let probes = guest.probes(&PROBES).await?;
    let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
    jumps::settle(guest, &names).await?;
    for name in &names {
        jumps::jump(guest, name).await?;
    }
    let (listener, address) = listen(NETWORK[0])?;
    let server = thread::spawn(move || serve(&listener, CONNECTIONS));
    let each = CONNECTIONS / CPUS;
    let ask = format!("workload=connections at={address} count={each} seed=7");
    guest.say(&ask).await?;
    guest.console.report("listening").await?;
    let to = SocketAddrV4::new(NETWORK[1], address.port() + 1);
    let caller = thread::spawn(move || {
        let connect = || TcpStream::connect(to);
        send(connect, CONNECTIONS, LONG_ONE_IN, Random::new(3))
    });
    let done = guest.console.report("done").await?;
    let bytes = joined(server, "the host's server")? + joined(caller, "the host's caller")?;

    check_eq!(done["bytes"], bytes, "bytes that both sides have counted");
    check_eq!(done["connects"], CONNECTIONS, "connections of the guest's");
    check_eq!(done["accepts"], CONNECTIONS, "connections of the host's");
    let listed = async |name: &str| guest.listed(name).await;
    for (probe, calls) in [
        ("connect", "connects"),
        ("accept", "accepts"),
        ("send", "writes"),
        ("receive", "reads"),
    ] {
        check_eq!(listed(probe).await?.hits, done[calls], "hits of {probe}");
    }
    let followed = |probe: &Probe| probe.hits + probe.missed;
    let connected = listed("connected").await?;
    check_eq!(followed(&connected), done["connects"], "returns");
    let (segments, packets) = (listed("segment").await?.hits, listed("packet").await?.hits);
    check!(
        packets >= segments && segments > 0,
        "{segments} of {packets}"
    );
    check!(listed("packet_out").await?.hits > 0, "no packet went out");
    check!(
        followed(&listed("polled").await?) > 0,
        "no packet was fetched"
    );
    guest.remove(&names).await?;
    // Long segments pass whole in both directions: the kernels leave segmentation to the network card, and there is no
    // real one.
    let mut means = [0; 2];
    for (mean, direction) in means.iter_mut().zip(["rx", "tx"]) {
        let packets = counted(tap, &format!("{direction}_packets"))?;
        *mean = counted(tap, &format!("{direction}_bytes"))? / packets.max(1);
        check!(*mean > 1514, "{packets} packets of {mean} bytes");
    }
    Ok(format!(
        "{bytes} bytes in packets of {} and {}",
        means[0], means[1]
    ))
}

/// Checks that traffic through a limited network and a limited disk takes as long as the limit implies.
async fn limits(guest: &mut Guest) -> Result<String, Failure> {
    let least = |bytes: u64| Duration::from_secs_f64((bytes - BURST) as f64 / RATE as f64);
    let (listener, address) = listen(LIMITED[0])?;
    let reader = thread::spawn(move || read_all(&listener));
    let ask = format!("upload at={address} count={UPLOAD}");
    guest.work(&ask).await?;
    let (bytes, network) = joined(reader, "the host")?;
    check_eq!(bytes, UPLOAD, "bytes that the host has read");
    check!(network >= least(UPLOAD), "{bytes} bytes in {network:?}");
    let start = Instant::now();
    let read = guest.work("disk-look at=vda").await?;
    let disk = start.elapsed();
    check_eq!(read["sectors"], DISK_LEN / 512, "sectors");
    check!(disk >= least(DISK_LEN), "the disk was read in {disk:?}");
    Ok(format!("{UPLOAD} bytes in {network:?} and in {disk:?}"))
}

/// A network that goes away while the guest sends: its link is down, and the guest goes on.
async fn lost(guest: &mut Guest, tap: Tap) -> Result<(), Failure> {
    let (listener, address) = listen(LIMITED[0])?;
    let reader = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        io::copy(&mut (&mut stream).take(BEFORE_LOSS), &mut io::sink())?;
        tap.remove()?;
        Ok(stream)
    });
    let done = guest.work(&format!("flood at=eth1={address}")).await?;
    let _stream = joined(reader, "the host")?;
    check_eq!(done["carrier"], "0", "the link");
    let sent = done["sent"].as_u64().unwrap_or_default();
    check!(sent >= BEFORE_LOSS, "{sent} bytes were sent");
    Ok(())
}
