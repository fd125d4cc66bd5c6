//! Connections of TCP between the guest and the host over a network interface.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::streams::{self, Ends, PIECE, Place, Stream};
use super::{step, threads};
use crate::plan::Plan;

/// Sets up interfaces; `at` has `NAME=ADDRESS`, separated by commas. The report has what the kernel says of each.
pub fn set_up(plan: &Plan) -> io::Result<Value> {
    let mut told = serde_json::Map::new();
    for part in plan.at.split(',') {
        let wrong = || io::Error::other(format!("{part} isn't NAME=ADDRESS"));
        let (name, address) = part.split_once('=').ok_or_else(wrong)?;
        let address: Ipv4Addr = address.parse().map_err(io::Error::other)?;
        interfaces::set_up(name, address)?;
        // The driver checks the device's link later, in a work item (`virtnet_open`).
        wait_for_carrier(name, "1")?;
        let about = json!({
            "mac": about(name, "address")?,
            "mtu": about(name, "mtu")?,
            "carrier": about(name, "carrier")?,
        });
        told.insert(name.to_owned(), about);
    }
    Ok(Value::Object(told))
}

/// From each CPU, makes `count` connections to the address `at` of the host, each of which must echo what was sent. The
/// host makes as many connections to the guest's next port, which echo what they are sent.
///
/// Step: `listening`, when the host can connect.
pub fn connections(plan: &Plan) -> io::Result<Value> {
    let host = address(plan)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, host.port() + 1))?;
    let cpus = threads::online_cpus()?.len();
    step(plan, "listening", json!({ "cpus": cpus }))?;
    let place = Tcp { host, listener };
    Ok(streams::both_ways(plan, &place)?.report())
}

/// From each CPU, makes `count` connections to the address `at` of the host, each of which must echo what was sent.
/// Neither side ends its direction before that: passt of 2023 doesn't pass on the second end of a connection.
pub fn calls(plan: &Plan) -> io::Result<Value> {
    let host = address(plan)?;
    // It is never connected to.
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let place = Tcp { host, listener };
    Ok(streams::to_host(plan, &place, Ends::AtOnce)?.report())
}

/// Sends `count` bytes to the address `at` of the host, and waits until it has read them all.
pub fn upload(plan: &Plan) -> io::Result<Value> {
    let stream = TcpStream::connect(address(plan)?)?;
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
            // It fails when the stream is shut down.
            while let Ok(count) = stream.write(&[0x5a; PIECE]) {
                sent.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        let waited = wait_for_carrier(name, "0");
        let shut = stream.shutdown(Shutdown::Both);
        waited.and(shut)
    })?;
    Ok(json!({ "sent": sent.into_inner(), "carrier": about(name, "carrier")? }))
}

/// Waits until the kernel reports this of an interface's link.
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

/// The guest's end of TCP.
struct Tcp {
    host: SocketAddrV4,
    listener: TcpListener,
}

impl Place for Tcp {
    type Stream = TcpStream;
    const LONG_ONE_IN: u64 = 8;

    fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect(self.host)
    }

    fn accept(&self) -> io::Result<TcpStream> {
        Ok(self.listener.accept()?.0)
    }
}

impl Stream for TcpStream {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, bytes)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, bytes)
    }

    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}
