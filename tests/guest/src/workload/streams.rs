//! Connections of TCP or of virtio sockets that echo what is sent over them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::{numbers, threads};
use crate::plan::Plan;

/// The most bytes that a connection carries each way; some carry all of them, the others few.
const MOST: usize = 600_000;
const FEW: usize = 3000;
/// Bytes of one call of `write` or `read`.
pub const PIECE: usize = 64 << 10;

/// A connection, in calls of the kernel.
pub trait Stream: Sync {
    /// Called before it carries the most bytes.
    fn expect_most(&mut self) {}

    /// Returns true if the kernel is to send pages without a copy.
    fn is_uncopied(&self) -> bool {
        false
    }

    /// One call of `read`.
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// One call of `write`, or of the call that sends without a copy.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends this direction.
    fn end_writing(&self) -> io::Result<()>;
}

/// A guest's place in a network: it connects to the host, and accepts the host's connections.
pub trait Place: Sync {
    /// Its connections.
    type Stream: Stream;
    /// One of this many connections carries the most bytes.
    const LONG_ONE_IN: u64;

    /// A new connection to the host.
    fn connect(&self) -> io::Result<Self::Stream>;

    /// The host's next connection.
    fn accept(&self) -> io::Result<Self::Stream>;
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The guest ends its direction when it has sent everything, and the host then ends the other one.
    OneByOne,
    /// Both directions end when everything has come back.
    AtOnce,
}

/// Counts of calls of the kernel.
#[derive(Default)]
pub struct Counts {
    connects: AtomicU64,
    accepts: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    /// Those of `writes` in which the kernel was to send pages without a copy.
    uncopied: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// The counts of a `done` report.
    pub fn report(self) -> Value {
        json!({
            "connects": self.connects.into_inner(),
            "accepts": self.accepts.into_inner(),
            "writes": self.writes.into_inner(),
            "reads": self.reads.into_inner(),
            "bytes": self.bytes.into_inner(),
            "uncopied": self.uncopied.into_inner(),
        })
    }

    fn read(&self, stream: &impl Stream, bytes: &mut [u8]) -> io::Result<usize> {
        Self::add(&self.reads, 1);
        stream.read(bytes)
    }

    fn write_all(&self, stream: &impl Stream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            Self::add(&self.writes, 1);
            Self::add(&self.uncopied, u64::from(stream.is_uncopied()));
            let written = stream.write(bytes)?;
            bytes = &bytes[written..];
        }
        Ok(())
    }
}

/// From each CPU, makes `count` connections to the host, each of which must echo what was sent, and accepts as many of
/// the host's, which echo what they are sent.
pub fn both_ways(plan: &Plan, place: &impl Place) -> io::Result<Counts> {
    let counts = Counts::default();
    threads::on_each_cpu(|cpu| {
        thread::scope(|scope| {
            // The thread is bound to the same CPU.
            let served = scope.spawn(|| (0..plan.count).try_for_each(|_| serve(place, &counts)));
            let mut random = numbers::from(plan.seed + cpu as u64);
            let sent =
                (0..plan.count).try_for_each(|_| send(place, random(), Ends::OneByOne, &counts));
            sent.and(served.join().unwrap_or_else(|_| Err(panicked())))
        })
    })?;
    Ok(counts)
}

/// From each CPU, makes `count` connections to the host, each of which must echo what was sent.
pub fn to_host(plan: &Plan, place: &impl Place, ends: Ends) -> io::Result<Counts> {
    let counts = Counts::default();
    threads::on_each_cpu(|cpu| {
        let mut random = numbers::from(plan.seed + cpu as u64);
        (0..plan.count).try_for_each(|_| send(place, random(), ends, &counts))
    })?;
    Ok(counts)
}

/// Sends bytes drawn from `random` to the host, and compares what comes back.
fn send<P: Place>(place: &P, random: u64, ends: Ends, counts: &Counts) -> io::Result<()> {
    let is_long = random.is_multiple_of(P::LONG_ONE_IN);
    let len = match is_long {
        true => MOST,
        false => (random >> 32) as usize % FEW,
    };
    let mut next = numbers::from(random);
    let bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| next().to_le_bytes())
        .take(len)
        .collect();
    Counts::add(&counts.connects, 1);
    let mut stream = place.connect()?;
    if is_long {
        stream.expect_most();
    }
    let mut back = Vec::new();
    thread::scope(|scope| {
        // The echo can come before everything is sent.
        let written = scope.spawn(|| {
            counts.write_all(&stream, &bytes)?;
            match ends {
                Ends::OneByOne => stream.end_writing(),
                Ends::AtOnce => Ok(()),
            }
        });
        let mut piece = vec![0; PIECE];
        let read = loop {
            if ends == Ends::AtOnce && back.len() >= len {
                break Ok(());
            }
            match counts.read(&stream, &mut piece) {
                Ok(0) => break Ok(()),
                Ok(count) => back.extend_from_slice(&piece[..count]),
                Err(error) => break Err(error),
            }
        };
        read.and(written.join().unwrap_or_else(|_| Err(panicked())))
    })?;
    if back != bytes {
        return Err(io::Error::other("other bytes came back"));
    }
    Counts::add(&counts.bytes, len as u64);
    Ok(())
}

/// Accepts a connection, and echoes what comes until its end.
fn serve(place: &impl Place, counts: &Counts) -> io::Result<()> {
    let stream = place.accept()?;
    Counts::add(&counts.accepts, 1);
    let mut bytes = vec![0; PIECE];
    loop {
        let count = counts.read(&stream, &mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        counts.write_all(&stream, &bytes[..count])?;
        Counts::add(&counts.bytes, count as u64);
    }
}

fn panicked() -> io::Error {
    io::Error::other("a thread panicked")
}
