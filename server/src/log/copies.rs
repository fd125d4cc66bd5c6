//! Copies of log records that leave the process.
//!
//! The server keeps its own records in a queue ([`Records`]) until they are sent. The process of a VM can't send
//! anything. Its standard output is one of the server's sockets, which takes each record as a datagram of JSON.

use std::cell::Cell;
use std::io;
use std::os::unix::net::UnixDatagram as StdUnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::RecvFlags;
use serde::{Deserialize, Serialize};
use tokio::net::UnixDatagram;

use super::record::Record;
use super::records::Records;

/// Bytes of a record on its way from the process of a VM.
const DATAGRAM: usize = 32 << 10;

thread_local! {
    static IS_SENDER: Cell<bool> = const { Cell::new(false) };
}

/// Makes no copies of what this thread logs. The thread sends them, so records about sending would have to be sent as
/// well.
pub fn exempt_this_thread() {
    IS_SENDER.set(true);
}

/// Where copies of log records go.
#[derive(Debug)]
pub enum Copies {
    /// Into the queue of this process, which is the server's.
    Kept(Records),
    /// To the server.
    ToServer(ToServer),
}

impl Copies {
    pub(super) fn add(&self, record: impl FnOnce() -> Record) {
        if IS_SENDER.get() {
            return;
        }
        match self {
            Self::Kept(records) => records.add(record()),
            Self::ToServer(server) => server.send(&record()),
        }
    }
}

/// The connection from the process of a VM to the server.
#[derive(Debug, Default)]
pub struct ToServer {
    /// The number of records that weren't sent, and that the server hasn't been told of.
    missed: AtomicU64,
}

/// A message to the server.
#[derive(Debug, Serialize, Deserialize)]
struct Datagram<R> {
    /// How many records before this one weren't sent.
    #[serde(default, skip_serializing_if = "is_zero")]
    missed: u64,
    record: R,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ToServer {
    fn send(&self, record: &Record) {
        let missed = self.missed.swap(0, Ordering::Relaxed);
        let datagram = serde_json::to_vec(&Datagram { missed, record });
        // The socket doesn't block, so no vCPU waits for the server.
        let sent = datagram.ok().filter(|it| it.len() <= DATAGRAM);
        let sent = sent.is_some_and(|it| rustix::io::write(rustix::stdio::stdout(), &it).is_ok());
        if !sent {
            self.missed.fetch_add(missed + 1, Ordering::Relaxed);
        }
    }
}

/// Makes the two ends of the connection: the server's, and the one that becomes the process's standard output.
///
/// # Errors
/// The system's error.
pub fn from_vm() -> io::Result<(FromVm, StdUnixDatagram)> {
    let (ours, theirs) = StdUnixDatagram::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    Ok((FromVm(UnixDatagram::from_std(ours)?), theirs))
}

/// The server's end of the connection from the process of a VM.
#[derive(Debug)]
pub struct FromVm(UnixDatagram);

impl FromVm {
    /// Puts the records of the VM of this name into a queue, until the process ends. The process isn't trusted: it may
    /// send anything.
    pub async fn keep(self, vm: &str, records: &Records, ended: impl Future<Output = ()>) {
        let mut buffer = vec![0; DATAGRAM];
        tokio::pin!(ended);
        let mut is_over = false;
        loop {
            let received = match is_over {
                true => received(&self.0, &mut buffer),
                false => tokio::select! {
                    received = self.0.recv(&mut buffer) => received,
                    () = &mut ended => {
                        is_over = true;
                        continue;
                    }
                },
            };
            let Ok(length) = received else {
                return;
            };
            match serde_json::from_slice::<Datagram<Record>>(&buffer[..length]) {
                Ok(Datagram { missed, mut record }) => {
                    records.count_dropped(missed);
                    record.vm = Some(vm.to_owned());
                    records.add(record);
                }
                Err(_) => records.count_dropped(1),
            }
        }
    }
}

/// Returns a datagram that has arrived, even if the runtime hasn't noticed it.
fn received(socket: &UnixDatagram, buffer: &mut [u8]) -> io::Result<usize> {
    let (length, _) = rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT)?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const GOOD: &str = r#"{"time":"2026-11-27T10:15:30.123456Z","level":"WARN","target":"t","vm":"other","message":"m","fields":{"lost":7}}"#;

    #[tokio::test]
    async fn what_comes_from_the_process_of_a_vm_is_of_that_vm_and_bad_records_are_counted() {
        let (ours, theirs) = from_vm().unwrap();
        let records = Records::default();
        for text in [
            format!("{{\"missed\":3,\"record\":{GOOD}}}"),
            "{".to_owned(),
            format!("{{\"record\":{GOOD}}}"),
        ] {
            theirs.send(text.as_bytes()).unwrap();
        }
        ours.keep("a", &records, ready(())).await;
        assert_eq!((records.waiting(), records.dropped()), (2, 4));
        for record in records.take(2, usize::MAX) {
            assert_eq!(record.vm.as_deref(), Some("a"));
            assert_eq!(record.fields["lost"], 7);
        }
    }

    #[tokio::test]
    async fn a_process_that_sends_faster_than_it_is_read_finds_the_socket_full_and_does_not_wait() {
        let (ours, theirs) = from_vm().unwrap();
        let full = (0..1 << 16).find(|_| theirs.send(&[b' '; DATAGRAM]).is_err());
        let full = full.expect("a socket takes an end of bytes only");
        let records = Records::default();
        let keeping = ours.keep("a", &records, pending());
        tokio::select! {
            () = keeping => unreachable!("the process is there"),
            () = async {
                while records.dropped() < full as u64 {
                    tokio::task::yield_now().await;
                }
                theirs.send(b" ").unwrap();
            } => {}
        }
    }

    #[test]
    fn what_a_sender_of_records_logs_is_not_copied() {
        let records = Records::default();
        let copies = Copies::Kept(records.clone());
        let record = || serde_json::from_str(GOOD).unwrap();
        std::thread::spawn({
            let copies = Copies::Kept(records.clone());
            move || {
                exempt_this_thread();
                copies.add(record);
            }
        })
        .join()
        .unwrap();
        assert_eq!(records.waiting(), 0);
        copies.add(record);
        assert_eq!(records.waiting(), 1);
    }
}
