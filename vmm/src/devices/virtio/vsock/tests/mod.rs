//! The device, by a guest's driver on one side and real Unix sockets on the other.

mod data;
mod endings;
mod limits;
mod malformed;
mod opening;

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
};

use tempfile::TempDir;

use super::{
    BUFFER, HOST_CID, MAX_CONNECTIONS, Vsock, VsockDevice,
    packet::{HEADER_LEN, Header, NO_MORE_RECEIVED, NO_MORE_SENT, Op, STREAM},
};
use crate::devices::virtio::driver::{Buffer, Driver};

const RX: u16 = 0;
const TX: u16 = 1;
const GUEST_CID: u64 = 7;
/// A guest's port, and the host's that it connects to.
const PORT: u32 = 1000;
const SERVICE: u32 = 52;
/// Where packets are built, and where received ones are put. The latter have as much room as Linux gives.
const TX_AT: u64 = 0x10_0000;
const RX_AT: u64 = 0x20_0000;
const RX_LEN: u32 = 4096;
const RX_BUFFERS: u16 = 8;
/// Room that the guest says it has, if a test says nothing else.
const GUEST_ROOM: u32 = 256 << 10;

/// A guest with the device.
struct Guest {
    driver: Driver,
    folder: TempDir,
}

impl Guest {
    /// A guest whose driver has started the device, and given it buffers to fill.
    fn new() -> Self {
        Self::with_limit(MAX_CONNECTIONS)
    }

    fn with_limit(limit: usize) -> Self {
        let mut guest = Self::idle(limit);
        guest.start();
        guest
    }

    /// A guest whose driver does nothing yet.
    fn idle(limit: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let wanted = Vsock {
            path: folder.path().join("vsock").into(),
            cid: GUEST_CID as u32,
        };
        let device = VsockDevice::with_limit(&wanted, limit).unwrap();
        let driver = Driver::new(Box::new(device));
        Self { driver, folder }
    }

    fn start(&mut self) {
        self.driver.start();
        self.give_buffers();
    }

    fn give_buffers(&mut self) {
        for head in 0..RX_BUFFERS {
            self.give_buffer(head);
        }
    }

    fn give_buffer(&mut self, head: u16) {
        let at = RX_AT + u64::from(head) * u64::from(RX_LEN);
        let buffer = Buffer {
            at,
            len: RX_LEN,
            writable: true,
        };
        self.driver.offer_from(RX, head, &[buffer]);
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("vsock")
    }

    /// A process that listens for the guest at `port`.
    fn listen(&self, port: u32) -> UnixListener {
        UnixListener::bind(self.folder.path().join(format!("vsock_{port}"))).unwrap()
    }

    /// A process that asks for a port of the guest's.
    fn call(&self, port: u32) -> UnixStream {
        let mut stream = UnixStream::connect(self.path()).unwrap();
        writeln!(stream, "CONNECT {port}").unwrap();
        stream
    }

    /// Sends a packet, without waiting for the device.
    fn put(&mut self, header: &Header, data: &[u8]) {
        self.driver.set_bytes(TX_AT, &header.to_bytes());
        self.driver.set_bytes(TX_AT + HEADER_LEN as u64, data);
        let buffer = Buffer {
            at: TX_AT,
            len: (HEADER_LEN + data.len()) as u32,
            writable: false,
        };
        self.driver.offer_from(TX, 0, &[buffer]);
    }

    /// Sends a packet, and waits until the device has taken it.
    fn send(&mut self, header: &Header, data: &[u8]) {
        self.put(header, data);
        self.driver.finished_in(TX);
    }

    /// The next packet that the device sends.
    fn receive(&mut self) -> (Header, Vec<u8>) {
        let (head, len) = self.driver.finished_in(RX);
        let at = RX_AT + u64::from(head) * u64::from(RX_LEN);
        let bytes = self.driver.bytes(at, len as usize);
        let (header, data) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
        let packet = (Header::from_bytes(header), data.to_vec());
        self.give_buffer(head);
        packet
    }

    /// The next packet, which has to be this one, without data.
    #[track_caller]
    fn expect(&mut self, op: Op) -> Header {
        let (header, data) = self.receive();
        assert_eq!((header.op, data.len()), (op as u16, 0), "{header:?}");
        assert_eq!((header.src_cid, header.dst_cid), (HOST_CID, GUEST_CID));
        header
    }

    /// Receives data until there are `len` bytes.
    #[track_caller]
    fn expect_data(&mut self, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < len {
            let (header, data) = self.receive();
            assert_eq!(header.op, Op::Data as u16, "{header:?}");
            all.extend(data);
        }
        assert_eq!(all.len(), len);
        all
    }

    /// Receives all that the device has to send now. In one turn it takes packets and then sends what is due,
    /// resets first: so what was due before the second of two packets was sent before that one's reset.
    fn receive_all(&mut self) -> Vec<Header> {
        let mut all = Vec::new();
        for _ in 0..2 {
            self.send(&header(Op::Data, u32::MAX, u32::MAX), &[]);
            loop {
                let (header, _) = self.receive();
                if header.op == Op::Reset as u16 && header.dst_port == u32::MAX {
                    break;
                }
                all.push(header);
            }
        }
        all
    }

    /// Connects to `SERVICE`, where `listener` listens.
    fn connect(&mut self, port: u32, listener: &UnixListener) -> UnixStream {
        self.send(&header(Op::Request, port, SERVICE), &[]);
        let (stream, _) = listener.accept().unwrap();
        let response = self.expect(Op::Response);
        assert_eq!((response.src_port, response.dst_port), (SERVICE, port));
        stream
    }

    /// A process's connection to `PORT`, accepted, and the port that it has.
    fn answer(&mut self) -> (UnixStream, u32) {
        let stream = self.call(PORT);
        let request = self.expect(Op::Request);
        assert_eq!(request.dst_port, PORT);
        let host = request.src_port;
        self.send(&header(Op::Response, PORT, host), &[]);
        assert_eq!(line(&stream), format!("OK {host}"));
        (stream, host)
    }
}

/// A packet of the guest's.
fn header(op: Op, guest: u32, host: u32) -> Header {
    Header {
        src_cid: GUEST_CID,
        dst_cid: HOST_CID,
        src_port: guest,
        dst_port: host,
        kind: STREAM,
        op: op as u16,
        buf_alloc: GUEST_ROOM,
        ..Header::default()
    }
}

fn data(guest: u32, host: u32, len: usize) -> Header {
    Header {
        len: len as u32,
        ..header(Op::Data, guest, host)
    }
}

fn shutdown(guest: u32, host: u32, flags: u32) -> Header {
    Header {
        flags,
        ..header(Op::Shutdown, guest, host)
    }
}

/// A line, and nothing behind it.
fn line(stream: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::with_capacity(1, stream)
        .read_line(&mut line)
        .unwrap();
    line.trim_end().to_owned()
}

fn read(stream: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Bytes that are different everywhere.
fn pattern(len: usize) -> Vec<u8> {
    let words = 0..len.div_ceil(4) as u32;
    let mut bytes: Vec<u8> = words
        .flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes())
        .collect();
    bytes.truncate(len);
    bytes
}
