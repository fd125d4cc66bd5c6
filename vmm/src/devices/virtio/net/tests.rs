//! The device, by a guest's driver on one side and sockets on the other.

use std::{
    io::{Read, Write},
    num::NonZeroU64,
    os::unix::net::{UnixDatagram, UnixStream},
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::{
    HEADER_LEN, MAX_FRAME, MIN_FRAME, NetDevice, feature,
    stream::FrameStream,
    testing::{MAC, MTU, on_limited_wire, on_wire, wanted},
};
use crate::devices::virtio::{
    driver::{Buffer, CONFIG_INTERRUPT, Driver, QUEUE_SIZE},
    rate::RateLimit,
};

const RX: u16 = 0;
const TX: u16 = 1;
/// Where the guest builds packets, and where its buffers are, one of this length after the other.
const TX_AT: u64 = 0x10_0000;
const RX_AT: u64 = 0x20_0000;
const RX_LEN: u64 = 0x1_8000;
const NEEDS_RESET: u8 = 0x40;
/// Where the device's configuration has its link's status, and the registers its generation.
const LINK_AT: u64 = 0x2006;
const GENERATION_AT: u64 = 0x15;

/// A guest whose tap interface is a socket.
struct Rig {
    driver: Driver,
    wire: UnixDatagram,
}

fn rig() -> Rig {
    rig_that_refuses(0)
}

/// A rig whose driver doesn't accept these features.
fn rig_that_refuses(features: u64) -> Rig {
    let (wire, theirs) = UnixDatagram::pair().unwrap();
    let mut driver = Driver::new(Box::new(on_wire(theirs)));
    driver.refused = features;
    driver.start();
    Rig { driver, wire }
}

impl Rig {
    /// Makes the guest send what it has built, cut into pieces of these lengths, and waits until it is taken.
    fn send(&mut self, packet: &[u8], pieces: &[usize]) {
        send(&mut self.driver, packet, pieces);
    }

    /// The next packet that has come from the guest.
    fn receive(&self) -> Vec<u8> {
        let mut packet = vec![0; 1 << 17];
        let len = self.wire.recv(&mut packet).unwrap();
        packet.truncate(len);
        packet
    }

    /// Waits until the device has done all that it can do now: it takes a packet first in a turn, so it has ended the
    /// turn of one when it takes the next one.
    fn settle(&mut self) {
        for mark in [0xf0, 0xf1] {
            let packet = [&[0; HEADER_LEN][..], &[mark; MIN_FRAME]].concat();
            self.send(&packet, &[packet.len()]);
            assert_eq!(self.receive(), packet);
        }
    }
}

fn send(driver: &mut Driver, packet: &[u8], pieces: &[usize]) {
    driver.set_bytes(TX_AT, packet);
    let mut at = TX_AT;
    let mut buffers = Vec::new();
    for len in pieces {
        buffers.push(Buffer {
            at,
            len: *len as u32,
            writable: false,
        });
        at += *len as u64;
    }
    driver.offer_from(TX, 0, &buffers);
    assert_eq!(driver.finished_in(TX), (0, 0));
}

/// Gives the device a buffer for packets.
fn give(driver: &mut Driver, head: u16, len: u32) {
    let buffer = Buffer {
        at: RX_AT + u64::from(head) * RX_LEN,
        len,
        writable: true,
    };
    driver.offer_from(RX, head, &[buffer]);
}

/// The next buffer that the device has filled: which one it is, and the bytes in it.
fn filled(driver: &mut Driver) -> (u16, Vec<u8>) {
    let (head, len) = driver.finished_in(RX);
    let at = RX_AT + u64::from(head) * RX_LEN;
    (head, driver.bytes(at, len as usize))
}

/// A packet that leaves no work to its receiver, in one buffer.
fn packet(frame: &[u8]) -> Vec<u8> {
    [&header(0, 0, 0, 1), frame].concat()
}

/// Some of a packet's header: the flags, the kind of the segment, its length, and the number of buffers (5.1.6).
fn header(flags: u8, kind: u8, segment: u16, buffers: u16) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = flags;
    header[1] = kind;
    header[4..6].copy_from_slice(&segment.to_le_bytes());
    header[10..].copy_from_slice(&buffers.to_le_bytes());
    header
}

/// Bytes that are different everywhere.
fn frame(len: usize) -> Vec<u8> {
    let words = 0..len.div_ceil(4) as u32;
    let bytes = words.flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes());
    bytes.take(len).collect()
}

#[test]
fn the_driver_is_told_the_address_the_link_and_the_mtu() {
    let rig = rig();
    assert_eq!(rig.driver.get::<6>(0x2000), MAC.0);
    assert_eq!(rig.driver.get::<2>(LINK_AT), [1, 0]);
    assert_eq!(rig.driver.get::<2>(0x200a), MTU.to_le_bytes());
}

#[test]
fn a_packet_of_the_guest_s_reaches_the_network_however_it_is_cut() {
    let mut rig = rig();
    let frame = frame(MAX_FRAME);
    let packet = [&header(1, 1, 1448, 0)[..], &frame].concat();
    for pieces in [
        &[packet.len()][..],
        &[HEADER_LEN, frame.len()],
        &[1, 5, 20, 4000, packet.len() - 4026],
    ] {
        rig.send(&packet, pieces);
        assert!(rig.receive() == packet, "{pieces:?}");
    }
}

#[test]
fn a_driver_that_finishes_its_checksums_leaves_no_work_whatever_its_headers_say() {
    let mut rig = rig_that_refuses(feature::CSUM);
    let frame = frame(60);
    let sent = [&header(1, 1, 1448, 9)[..], &frame].concat();
    rig.send(&sent, &[sent.len()]);
    assert_eq!(rig.receive(), [&[0; HEADER_LEN][..], &frame].concat());
}

#[test]
fn frames_of_a_length_that_no_network_has_are_dropped() {
    let mut rig = rig();
    for len in [0, MIN_FRAME - 1, MAX_FRAME + 1, 200_000] {
        let packet = packet(&frame(len));
        rig.send(&packet, &[packet.len()]);
    }
    rig.settle();
}

#[test]
fn a_packet_for_the_guest_is_put_into_its_buffer_with_a_header_that_leaves_no_work() {
    let mut rig = rig();
    give(&mut rig.driver, 3, 2000);
    let frame = frame(1514);
    let sent = [&header(1, 1, 1448, 77)[..], &frame].concat();
    rig.wire.send(&sent).unwrap();
    assert_eq!(filled(&mut rig.driver), (3, packet(&frame)));
}

#[test]
fn a_long_packet_is_given_in_several_buffers_when_there_are_enough() {
    let mut rig = rig();
    let frame = frame(3000);
    rig.wire.send(&packet(&frame)).unwrap();
    for head in [5, 1, 2] {
        give(&mut rig.driver, head, 1000);
    }
    rig.settle();
    assert_eq!(rig.driver.used_count(RX), 0);
    give(&mut rig.driver, 0, 50_000);
    let expected = [&header(0, 0, 0, 4)[..], &frame].concat();
    for (head, part) in [5, 1, 2, 0].into_iter().zip(expected.chunks(1000)) {
        assert_eq!(filled(&mut rig.driver), (head, part.to_vec()));
    }
}

#[test]
fn a_packet_that_fits_into_no_buffers_is_dropped_and_the_buffers_get_the_next_ones() {
    // All that a driver can offer, and a driver that knows no packets in several buffers.
    let heads: Vec<u16> = (0..QUEUE_SIZE).collect();
    let small = packet(&frame(MIN_FRAME));
    for (refused, heads, len) in [
        (0, &heads[..], small.len() as u32),
        (feature::MRG_RXBUF, &heads[..2], 1526),
    ] {
        let mut rig = rig_that_refuses(refused);
        for head in heads {
            give(&mut rig.driver, *head, len);
        }
        rig.wire.send(&packet(&frame(9000))).unwrap();
        for head in heads {
            rig.wire.send(&small).unwrap();
            assert_eq!(filled(&mut rig.driver), (*head, small.clone()));
        }
    }
}

#[test]
fn a_chain_without_room_for_a_header_ends_the_device_until_it_is_reset() {
    let mut rig = rig();
    let readable = |len| Buffer {
        at: TX_AT,
        len,
        writable: false,
    };
    let writable = |len| Buffer {
        at: RX_AT,
        len,
        writable: true,
    };
    for (queue, buffer) in [
        (TX, readable(HEADER_LEN as u32 - 1)),
        (TX, writable(100)),
        (RX, writable(HEADER_LEN as u32 - 1)),
        (RX, readable(100)),
    ] {
        if queue == RX {
            rig.wire.send(&packet(&frame(60))).unwrap();
        }
        rig.driver.offer_from(queue, 0, &[buffer]);
        rig.driver.events.wait_for(CONFIG_INTERRUPT);
        assert_eq!(rig.driver.status() & NEEDS_RESET, NEEDS_RESET);
        rig.driver.reset();
        rig.driver.start();
        rig.settle();
    }
}

#[test]
fn a_reset_forgets_a_packet_that_waits_and_the_buffers_that_it_has() {
    let mut rig = rig();
    rig.wire.send(&packet(&frame(3000))).unwrap();
    give(&mut rig.driver, 0, 1000);
    give(&mut rig.driver, 1, 1000);
    rig.settle();
    rig.driver.reset();
    rig.driver.start();
    let next = packet(&frame(60));
    rig.wire.send(&next).unwrap();
    give(&mut rig.driver, 7, 1000);
    assert_eq!(filled(&mut rig.driver), (7, next));
}

/// A guest that is connected by a stream, and the other end.
fn on_stream() -> (Driver, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let backend = Box::new(FrameStream::new(ours));
    let device = NetDevice::new(backend, &wanted(RateLimit::default())).unwrap();
    (Driver::started(Box::new(device)), theirs)
}

#[test]
fn a_stream_takes_no_work_over_and_tells_no_mtu() {
    let (driver, _theirs) = on_stream();
    driver.put(0, &0u32.to_le_bytes());
    let offered = u64::from(u32::from_le_bytes(driver.get(4)));
    let device = feature::MAC | feature::MRG_RXBUF | feature::STATUS;
    // The bits behind are the transport's.
    assert_eq!(offered & 0xff_ffff, device);
}

#[test]
fn while_a_stream_takes_nothing_the_guest_waits_and_still_receives() {
    let (mut driver, mut theirs) = on_stream();
    let frame = frame(60_000);
    let packet = packet(&frame);
    driver.set_bytes(TX_AT, &packet);
    for head in 0..QUEUE_SIZE {
        let buffer = Buffer {
            at: TX_AT,
            len: packet.len() as u32,
            writable: false,
        };
        driver.offer_from(TX, head, &[buffer]);
    }
    let framed = |frame: &[u8]| [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
    for head in [0, 1] {
        give(&mut driver, head, 1000);
        theirs.write_all(&framed(&[head as u8; 60])).unwrap();
        let (_, received) = filled(&mut driver);
        assert_eq!(received[HEADER_LEN..], [head as u8; 60]);
    }
    let taken = driver.used_count(TX);
    assert!(taken < QUEUE_SIZE, "a socket has taken a megabyte");
    for _ in 0..QUEUE_SIZE {
        let mut read = framed(&vec![0; frame.len()]);
        theirs.read_exact(&mut read).unwrap();
        assert!(read == framed(&frame));
    }
    for head in 0..QUEUE_SIZE {
        assert_eq!(driver.finished_in(TX), (head, 0));
    }
}

#[test]
fn when_the_back_end_is_gone_the_link_is_down_and_the_guest_goes_on() {
    // The other end has gone, or has sent what makes no sense.
    for nonsense in [&[][..], &[0xff; 4]] {
        let (mut driver, mut theirs) = on_stream();
        let sent = packet(&frame(60));
        send(&mut driver, &sent, &[sent.len()]);
        let generation = driver.get::<1>(GENERATION_AT);
        theirs.write_all(nonsense).unwrap();
        drop(theirs);
        driver.events.wait_for(CONFIG_INTERRUPT);
        assert_eq!(driver.get::<2>(LINK_AT), [0, 0]);
        assert_ne!(driver.get::<1>(GENERATION_AT), generation);
        assert_eq!(driver.status() & NEEDS_RESET, 0);
        for _ in 0..2 {
            for _ in 0..QUEUE_SIZE {
                send(&mut driver, &sent, &[sent.len()]);
            }
            driver.reset();
            driver.start();
            assert_eq!(driver.get::<2>(LINK_AT), [0, 0]);
        }
    }
}

#[test]
fn a_write_finds_out_that_the_back_end_is_gone() {
    let (mut driver, theirs) = on_stream();
    driver.reset();
    drop(theirs);
    driver.start();
    let sent = packet(&frame(60));
    send(&mut driver, &sent, &[sent.len()]);
    driver.events.wait_for(CONFIG_INTERRUPT);
    assert_eq!(driver.get::<2>(LINK_AT), [0, 0]);
}

#[test]
fn packets_beyond_the_limit_wait_in_each_direction() {
    const EACH: u64 = 8;
    // Four packets go at once, then one in 25 ms.
    let limit = RateLimit {
        bytes: None,
        operations: NonZeroU64::new(40),
    };
    let least = Duration::from_millis((EACH - 4) * 25);
    let (wire, theirs) = UnixDatagram::pair().unwrap();
    let device = on_limited_wire(theirs, limit);
    let start = Instant::now();
    let driver = Driver::started(Box::new(device));
    let mut rig = Rig { driver, wire };
    let packet = packet(&frame(60));
    for _ in 0..EACH {
        rig.send(&packet, &[packet.len()]);
        assert_eq!(rig.receive(), packet);
    }
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
    for head in 0..EACH as u16 {
        give(&mut rig.driver, head, 2000);
    }
    let start = Instant::now();
    for head in 0..EACH as u16 {
        rig.wire.send(&packet).unwrap();
        assert_eq!(filled(&mut rig.driver), (head, packet.clone()));
    }
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}

#[test]
fn bytes_are_limited_as_packets_are() {
    // A hundred thousand in a second: a tenth of them at once.
    let limit = RateLimit {
        bytes: NonZeroU64::new(100_000),
        operations: None,
    };
    let (wire, theirs) = UnixDatagram::pair().unwrap();
    let device = on_limited_wire(theirs, limit);
    let start = Instant::now();
    let driver = Driver::started(Box::new(device));
    let mut rig = Rig { driver, wire };
    let packet = packet(&frame(10_000));
    for _ in 0..3 {
        rig.send(&packet, &[packet.len()]);
        assert_eq!(rig.receive(), packet);
    }
    // The second one waits for a token, the third one until the second one is paid for.
    let least = Duration::from_millis(100);
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a chain is, in either queue, the device asks for a reset or goes on; afterwards it serves.
    #[test]
    fn hostile_chains_end_the_device_at_most(
        data in prop::collection::vec(any::<u8>(), 0..40),
        parts in prop::collection::vec((0u64..8 << 20, 0u32..1 << 20, any::<bool>(), 0u16..18), 1..12),
        heads in prop::collection::vec((0u16..18, any::<bool>()), 1..6),
        lens in prop::collection::vec(1usize..70_000, 0..4),
        refused in prop::sample::select(vec![0, feature::MRG_RXBUF, feature::CSUM]),
    ) {
        let mut rig = rig_that_refuses(refused);
        rig.driver.set_bytes(TX_AT, &data);
        for queue in [RX, TX] {
            rig.driver.use_queue(queue);
            for (index, (at, len, writable, next)) in parts.iter().enumerate() {
                let flags = u16::from(*next < 16) | if *writable { 2 } else { 0 };
                rig.driver.describe(index as u16, *at, *len, flags, *next);
            }
        }
        for len in lens {
            rig.wire.send(&vec![0x77; len]).unwrap();
        }
        for (head, is_sent) in heads {
            rig.driver.use_queue(if is_sent { TX } else { RX });
            rig.driver.offer_head(head);
        }
        rig.driver.reset();
        rig.wire.set_nonblocking(true).unwrap();
        while rig.wire.recv(&mut [0]).is_ok() {}
        rig.wire.set_nonblocking(false).unwrap();
        rig.driver.start();
        rig.settle();
    }
}
