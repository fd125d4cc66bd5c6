//! What flows over connections, and how it is held up.

use super::*;

/// How much a guest has sent over a connection, as its driver counts.
struct Sender {
    port: u32,
    sent: u32,
    fwd_cnt: u32,
}

impl Sender {
    fn new(port: u32) -> Self {
        Self {
            port,
            sent: 0,
            fwd_cnt: 0,
        }
    }

    fn room(&self) -> usize {
        BUFFER - self.sent.wrapping_sub(self.fwd_cnt) as usize
    }

    /// Sends pieces of what comes next of `bytes` until neither the process nor the device takes more.
    /// Returns how much that was.
    fn fill(&mut self, guest: &mut Guest, bytes: &[u8]) -> usize {
        loop {
            while self.room() > 0 {
                let at = self.sent as usize;
                let piece = &bytes[at..at + self.room().min(16 << 10)];
                guest.send(&data(self.port, SERVICE, piece.len()), piece);
                self.sent += piece.len() as u32;
            }
            guest.send(&header(Op::CreditRequest, self.port, SERVICE), &[]);
            for update in guest.receive_all() {
                assert_eq!(update.op, Op::CreditUpdate as u16);
                self.fwd_cnt = update.fwd_cnt;
            }
            if self.room() == 0 {
                return self.sent as usize;
            }
        }
    }
}

/// More than a process's socket and the device take together.
const PLENTY: usize = 8 << 20;

#[test]
fn a_process_that_reads_nothing_stops_its_own_connection_only_and_loses_nothing() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let mut idle = guest.connect(PORT, &listener);
    let mut busy = guest.connect(PORT + 1, &listener);
    let bytes = pattern(PLENTY);
    let sent = Sender::new(PORT).fill(&mut guest, &bytes);
    assert!(sent > BUFFER, "{sent}");

    guest.send(&data(PORT + 1, SERVICE, 5), b"hello");
    assert_eq!(read(&mut busy, 5), b"hello");
    busy.write_all(b"world").unwrap();
    assert_eq!(guest.expect_data(5), b"world");

    assert_eq!(read(&mut idle, sent), bytes[..sent]);
    // The guest is told without asking that there is room again.
    let mut fwd_cnt = 0;
    while fwd_cnt as usize <= sent - BUFFER / 2 {
        fwd_cnt = guest.expect(Op::CreditUpdate).fwd_cnt;
    }
    guest.send(&data(PORT, SERVICE, 4), b"more");
    assert_eq!(read(&mut idle, 4), b"more");
}

#[test]
fn a_guest_that_sends_more_than_there_is_room_for_is_reset() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let mut stream = guest.connect(PORT, &listener);
    let bytes = pattern(PLENTY);
    let sent = Sender::new(PORT).fill(&mut guest, &bytes);
    guest.send(&data(PORT, SERVICE, 1), b"x");
    guest.expect(Op::Reset);
    // The end of what it sent before may be lost, but the rest is unchanged.
    let mut read = Vec::new();
    stream.read_to_end(&mut read).unwrap();
    assert_eq!(read, bytes[..read.len()]);
    assert!(read.len() <= sent, "{}", read.len());
}

#[test]
fn a_process_gets_rid_of_no_more_than_the_guest_has_room_for() {
    const ROOM: u32 = 10_000;
    let with_room = |op, fwd_cnt| Header {
        buf_alloc: ROOM,
        fwd_cnt,
        ..header(op, PORT, SERVICE)
    };
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    guest.send(&with_room(Op::Request, 0), &[]);
    let (mut stream, _) = listener.accept().unwrap();
    guest.expect(Op::Response);
    let bytes = pattern(25_000);
    stream.write_all(&bytes).unwrap();
    let mut received = guest.expect_data(10_000);
    guest.expect(Op::CreditRequest);
    // The guest says that it has no room, and isn't asked again: what comes next is the answer to
    // something else.
    guest.send(&with_room(Op::CreditUpdate, 0), &[]);
    guest.send(&data(PORT + 1, SERVICE, 0), &[]);
    let reset = guest.expect(Op::Reset);
    assert_eq!(reset.dst_port, PORT + 1);
    // The guest has given on more than it got: that counts as no room.
    guest.send(&with_room(Op::CreditUpdate, 10_001), &[]);
    guest.send(&data(PORT + 1, SERVICE, 0), &[]);
    guest.expect(Op::Reset);

    guest.send(&with_room(Op::CreditUpdate, 4_000), &[]);
    received.extend(guest.expect_data(4_000));
    guest.expect(Op::CreditRequest);
    guest.send(&with_room(Op::CreditUpdate, 14_000), &[]);
    received.extend(guest.expect_data(10_000));
    guest.expect(Op::CreditRequest);
    guest.send(&with_room(Op::CreditUpdate, 24_000), &[]);
    received.extend(guest.expect_data(1_000));
    assert_eq!(received, bytes);
}

#[test]
fn a_long_transfer_comes_as_it_was_sent() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let mut stream = guest.connect(PORT, &listener);
    let bytes = pattern(16 << 20);
    let writer = std::thread::spawn({
        let (mut stream, bytes) = (stream.try_clone().unwrap(), bytes.clone());
        move || stream.write_all(&bytes)
    });
    let mut received = Vec::new();
    while received.len() < bytes.len() {
        let (packet, data) = guest.receive();
        received.extend(data);
        if packet.op == Op::CreditRequest as u16 {
            let update = Header {
                fwd_cnt: received.len() as u32,
                ..header(Op::CreditUpdate, PORT, SERVICE)
            };
            guest.send(&update, &[]);
        }
    }
    writer.join().unwrap().unwrap();
    assert!(received == bytes);
    guest.send(&data(PORT, SERVICE, 3), b"end");
    assert_eq!(read(&mut stream, 3), b"end");
}

#[test]
fn a_packet_may_be_in_as_many_buffers_as_the_guest_likes() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let mut stream = guest.connect(PORT, &listener);
    let bytes = pattern(500);
    let packet = [&data(PORT, SERVICE, 500).to_bytes()[..], &bytes].concat();
    guest.driver.set_bytes(TX_AT, &packet);
    let mut at = TX_AT;
    // A header in two pieces, and data that begins in the second one.
    let buffers = [20, 30, 1, 93, 200, 200].map(|len| {
        let buffer = Buffer {
            at,
            len,
            writable: false,
        };
        at += u64::from(len);
        buffer
    });
    assert_eq!(at - TX_AT, packet.len() as u64);
    guest.driver.offer_from(TX, 0, &buffers);
    guest.driver.finished_in(TX);
    assert_eq!(read(&mut stream, 500), bytes);
}
