//! Connections of TCP between the guest and the host over a network interface.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{numbers, step, threads};
use crate::plan::Plan;

/// Most bytes that a connection carries each way; one in so many carries all of them, the others few.
const MOST: usize = 600_000;
const FEW: usize = 3000;
const ONE_IN: u64 = 8;
/// Bytes of one call of `write` or `read`.
const PIECE: usize = 64 << 10;

/// What was done, in calls of the kernel.
#[derive(Default)]
struct Counts {
    connects: AtomicU64,
    accepts: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Sets up interfaces; `at` has `NAME=ADDRESS`, separated by commas. The report has what the kernel says of each.
pub fn set_up(plan: &Plan) -> io::Result<Value> {
    let mut told = serde_json::Map::new();
    for part in plan.at.split(',') {
        let wrong = || io::Error::other(format!("{part} isn't NAME=ADDRESS"));
        let (name, address) = part.split_once('=').ok_or_else(wrong)?;
        let address: Ipv4Addr = address.parse().map_err(io::Error::other)?;
        interfaces::set_up(name, address)?;
        let about = json!({
            "mac": about(name, "address")?,
            "mtu": about(name, "mtu")?,
            "carrier": about(name, "carrier")?,
        });
        told.insert(name.to_owned(), about);
    }
    Ok(Value::Object(told))
}

/// From each CPU, `count` connections to the address `at` of the host, each of which has to bring back what was sent;
/// and from there as many connections to the guest's next port, which bring back what they are sent.
///
/// Step: `listening`, when the host can connect.
pub fn connections(plan: &Plan) -> io::Result<Value> {
    let host = address(plan)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, host.port() + 1))?;
    let cpus = threads::online_cpus()?.len();
    step(plan, "listening", json!({ "cpus": cpus }))?;
    let counts = Counts::default();
    threads::on_each_cpu(|cpu| {
        thread::scope(|scope| {
            // It is bound to the same CPU.
            let served =
                scope.spawn(|| (0..plan.count).try_for_each(|_| serve(&listener, &counts)));
            let mut random = numbers::from(plan.seed + cpu as u64);
            let sent =
                (0..plan.count).try_for_each(|_| send(host, random(), Ends::OneByOne, &counts));
            let served = served.join();
            sent.and(served.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
        })
    })?;
    Ok(json!({
        "connects": counts.connects.into_inner(),
        "accepts": counts.accepts.into_inner(),
        "writes": counts.writes.into_inner(),
        "reads": counts.reads.into_inner(),
        "bytes": counts.bytes.into_inner(),
    }))
}

/// From each CPU, `count` connections to the address `at` of the host, each of which has to bring back what was sent.
/// Neither side ends one before that: passt of 2023 keeps the second end of a connection to itself.
pub fn calls(plan: &Plan) -> io::Result<Value> {
    let host = address(plan)?;
    let counts = Counts::default();
    threads::on_each_cpu(|cpu| {
        let mut random = numbers::from(plan.seed + cpu as u64);
        (0..plan.count).try_for_each(|_| send(host, random(), Ends::AtOnce, &counts))
    })?;
    Ok(json!({ "bytes": counts.bytes.into_inner() }))
}

/// Sends `count` bytes to the address `at` of the host, and waits until it has read them all.
pub fn upload(plan: &Plan) -> io::Result<Value> {
    let mut stream = TcpStream::connect(address(plan)?)?;
    let piece = [0x5a; PIECE];
    let mut rest = plan.count as usize;
    while rest > 0 {
        rest -= stream.write(&piece[..rest.min(PIECE)])?;
    }
    stream.shutdown(Shutdown::Write)?;
    match stream.read(&mut [0])? {
        0 => Ok(json!({ "bytes": plan.count })),
        _ => Err(io::Error::other("the host has sent something")),
    }
}

/// Sends bytes to the address behind `NAME=` in `at` until the link of the interface NAME is down.
pub fn flood(plan: &Plan) -> io::Result<Value> {
    let (name, to) = plan
        .at
        .split_once('=')
        .ok_or_else(|| io::Error::other("there is no NAME=ADDRESS"))?;
    let to: SocketAddrV4 = to.parse().map_err(io::Error::other)?;
    let stream = TcpStream::connect(to)?;
    let sent = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            // It fails when the stream is shut.
            while let Ok(count) = (&stream).write(&[0x5a; PIECE]) {
                Counts::add(&sent, count as u64);
            }
        });
        let waited = wait_for_carrier(name, "0");
        let shut = stream.shutdown(Shutdown::Both);
        waited.and(shut)
    })?;
    Ok(json!({ "sent": sent.into_inner(), "carrier": about(name, "carrier")? }))
}

/// Waits until the kernel says this of an interface's link.
fn wait_for_carrier(name: &str, wanted: &str) -> io::Result<()> {
    while about(name, "carrier")? != wanted {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn about(name: &str, file: &str) -> io::Result<String> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/{file}"))?;
    Ok(text.trim().to_owned())
}

fn address(plan: &Plan) -> io::Result<SocketAddrV4> {
    plan.at.parse().map_err(io::Error::other)
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The guest ends its direction when it has sent all, and the host the other one afterwards.
    OneByOne,
    /// Both directions when all has come back.
    AtOnce,
}

/// Sends bytes drawn from `random` to the host, and compares what comes back.
fn send(host: SocketAddrV4, random: u64, ends: Ends, counts: &Counts) -> io::Result<()> {
    let len = match random % ONE_IN {
        0 => MOST,
        _ => (random >> 32) as usize % FEW,
    };
    let mut next = numbers::from(random);
    let bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| next().to_le_bytes())
        .take(len)
        .collect();
    Counts::add(&counts.connects, 1);
    let stream = TcpStream::connect(host)?;
    let mut back = Vec::new();
    thread::scope(|scope| {
        // What comes back need not wait until all is sent.
        let written = scope.spawn(|| {
            write_all(&stream, &bytes, counts)?;
            match ends {
                Ends::OneByOne => stream.shutdown(Shutdown::Write),
                Ends::AtOnce => Ok(()),
            }
        });
        let mut piece = vec![0; PIECE];
        let read = loop {
            if ends == Ends::AtOnce && back.len() >= len {
                break Ok(());
            }
            match read(&stream, &mut piece, counts) {
                Ok(0) => break Ok(()),
                Ok(count) => back.extend_from_slice(&piece[..count]),
                Err(error) => break Err(error),
            }
        };
        let written = written.join();
        read.and(written.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
    })?;
    if back != bytes {
        return Err(io::Error::other("other bytes came back"));
    }
    Counts::add(&counts.bytes, len as u64);
    Ok(())
}

/// Accepts a connection, and sends back what comes until its end.
fn serve(listener: &TcpListener, counts: &Counts) -> io::Result<()> {
    let (stream, _) = listener.accept()?;
    Counts::add(&counts.accepts, 1);
    let mut bytes = vec![0; PIECE];
    loop {
        let count = read(&stream, &mut bytes, counts)?;
        if count == 0 {
            return Ok(());
        }
        write_all(&stream, &bytes[..count], counts)?;
        Counts::add(&counts.bytes, count as u64);
    }
}

fn read(mut stream: &TcpStream, bytes: &mut [u8], counts: &Counts) -> io::Result<usize> {
    Counts::add(&counts.reads, 1);
    stream.read(bytes)
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], counts: &Counts) -> io::Result<()> {
    while !bytes.is_empty() {
        Counts::add(&counts.writes, 1);
        let written = stream.write(bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
}
