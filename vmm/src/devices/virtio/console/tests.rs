//! The device, by a guest's driver on one side and the VM's console on the other.

use std::sync::Arc;

use proptest::prelude::*;

use super::{
    ConsoleDevice, ConsoleSize, VirtioConsole,
    device::{F_SIZE, MAX_OUTPUT},
    input::LIMIT,
};
use crate::{
    devices::{
        console::Console,
        guest_end::GuestEnd,
        virtio::driver::{Buffer, CONFIG_INTERRUPT, Driver, QUEUE_SIZE},
    },
    ending::{EndSignal, Ending},
};

const RX: u16 = super::device::RX as u16;
const TX: u16 = super::device::TX as u16;
/// Where the guest builds output, and where its buffers for input are, one of this length after the other.
const TX_AT: u64 = 0x10_0000;
const RX_AT: u64 = 0x20_0000;
const RX_LEN: u64 = 0x1000;
const NEEDS_RESET: u8 = 0x40;
/// Where the function's memory has the device's configuration, and the device's features of the half that is selected.
const CONFIG_AT: u64 = 0x2000;
const FEATURES_AT: u64 = 4;

/// A guest with the device.
struct Rig {
    driver: Driver,
    console: Arc<Console>,
    end: Arc<EndSignal>,
    /// Bytes of output that have been read.
    read: u64,
}

impl Rig {
    fn with(wanted: VirtioConsole) -> Self {
        let (console, end) = (Arc::new(Console::default()), Arc::new(EndSignal::default()));
        let guest_end = GuestEnd::new(Arc::clone(&console), Arc::clone(&end));
        let device = ConsoleDevice::new(wanted, &console, &guest_end).unwrap();
        Self {
            driver: Driver::new(Box::new(device)),
            console,
            end,
            read: 0,
        }
    }

    /// A rig whose driver has started the device.
    fn new() -> Self {
        let mut rig = Self::with(VirtioConsole::default());
        rig.driver.start();
        rig
    }

    /// Makes the guest write bytes, cut into buffers of these lengths.
    fn put(&mut self, bytes: &[u8], pieces: &[usize]) {
        self.driver.set_bytes(TX_AT, bytes);
        let mut at = TX_AT;
        let mut buffers = Vec::new();
        for len in pieces {
            let len = *len as u32;
            buffers.push(Buffer {
                at,
                len,
                writable: false,
            });
            at += u64::from(len);
        }
        self.driver.offer_from(TX, 0, &buffers);
    }

    /// As [`put`](Self::put), and waits until the device has taken them.
    fn write(&mut self, bytes: &[u8], pieces: &[usize]) {
        self.put(bytes, pieces);
        assert_eq!(self.driver.finished_in(TX), (0, 0));
    }

    /// What the console has got since the last time.
    fn shown(&mut self) -> Vec<u8> {
        let chunk = self.console.read(self.read);
        self.read = chunk.next;
        chunk.bytes
    }

    /// Gives the device a buffer for input.
    fn give(&mut self, head: u16, len: u32) {
        let at = RX_AT + u64::from(head) * RX_LEN;
        let buffer = Buffer {
            at,
            len,
            writable: true,
        };
        self.driver.offer_from(RX, head, &[buffer]);
    }

    /// The next buffer that the device has filled: which one it is, and the bytes in it.
    fn typed(&mut self) -> (u16, Vec<u8>) {
        let (head, len) = self.driver.finished_in(RX);
        let at = RX_AT + u64::from(head) * RX_LEN;
        (head, self.driver.bytes(at, len as usize))
    }

    /// Shows that the device serves in both directions.
    fn serves(&mut self) {
        self.shown();
        self.write(b"out", &[3]);
        assert_eq!(self.shown(), b"out");
        self.console.send(b"in");
        self.give(0, 64);
        assert_eq!(self.typed(), (0, b"in".to_vec()));
    }
}

#[test]
fn output_reaches_the_console_however_it_is_cut() {
    let mut rig = Rig::new();
    let bytes: Vec<u8> = (0..20_000u32).map(|n| (n ^ n >> 8) as u8).collect();
    for pieces in [
        &[20_000][..],
        &[1, 19_999],
        &[4096, 4096, 11_808],
        &[0, 20_000, 0],
    ] {
        rig.write(&bytes, pieces);
        assert!(rig.shown() == bytes, "{pieces:?}");
    }
    rig.write(&[], &[0]);
    assert_eq!(rig.shown(), b"");
}

#[test]
fn input_waits_for_buffers_and_buffers_for_input() {
    let mut rig = Rig::new();
    assert_eq!(rig.console.send(b"typed before"), 12);
    rig.give(0, 5);
    assert_eq!(rig.typed(), (0, b"typed".to_vec()));
    rig.give(1, 100);
    assert_eq!(rig.typed(), (1, b" before".to_vec()));
    rig.give(2, 100);
    rig.give(3, 100);
    rig.console.send(b"a");
    assert_eq!(rig.typed(), (2, b"a".to_vec()));
    rig.console.send(b"b");
    assert_eq!(rig.typed(), (3, b"b".to_vec()));
}

#[test]
fn input_that_is_typed_before_the_driver_starts_is_the_guest_s_and_beyond_a_mib_is_refused() {
    let mut rig = Rig::with(VirtioConsole::default());
    let bytes: Vec<u8> = (0..LIMIT as u32 + 10).map(|n| (n ^ n >> 8) as u8).collect();
    assert_eq!(rig.console.send(&bytes), LIMIT);
    assert_eq!(rig.console.send(b"more"), 0);
    rig.driver.start();
    let mut typed = Vec::new();
    while typed.len() < LIMIT {
        rig.give(0, RX_LEN as u32);
        typed.extend(rig.typed().1);
    }
    assert!(typed == bytes[..LIMIT]);
    assert_eq!(rig.console.send(b"more"), 4);
}

#[test]
fn the_size_of_the_terminal_is_read_at_each_width() {
    let (columns, rows) = (0x1234, 0x5678);
    let size = Some(ConsoleSize { columns, rows });
    let rig = Rig::with(VirtioConsole { size });
    let offered = u32::from_le_bytes(rig.driver.get(FEATURES_AT));
    assert_eq!(u64::from(offered) & F_SIZE, F_SIZE);
    assert_eq!(rig.driver.get(CONFIG_AT), 0x5678_1234_u32.to_le_bytes());
    assert_eq!(rig.driver.get(CONFIG_AT), columns.to_le_bytes());
    assert_eq!(rig.driver.get(CONFIG_AT + 2), rows.to_le_bytes());
    for (at, byte) in (CONFIG_AT..).zip([0x34, 0x12, 0x78, 0x56, 0]) {
        assert_eq!(rig.driver.get(at), [byte]);
    }
    assert_eq!(rig.driver.get(CONFIG_AT), 0x5678_1234_u64.to_le_bytes());
    // No driver can change it.
    rig.driver.put(CONFIG_AT, &[0xff; 4]);
    assert_eq!(rig.driver.get(CONFIG_AT + 2), rows.to_le_bytes());

    let unknown = Rig::with(VirtioConsole::default());
    let offered = u32::from_le_bytes(unknown.driver.get(FEATURES_AT));
    assert_eq!(u64::from(offered) & F_SIZE, 0);
    assert_eq!(unknown.driver.get(CONFIG_AT), [0; 4]);
}

#[test]
fn a_panic_that_is_reported_here_ends_the_guest() {
    let mut rig = Rig::new();
    let report =
        b"Kernel panic - not syncing: why\n---[ end Kernel panic - not syncing: why ]---\n";
    rig.write(report, &[report.len()]);
    let reason = "why".to_owned();
    assert_eq!(rig.end.get(), Some(Ending::Panic { reason }));
}

#[test]
fn chains_that_are_none_need_a_reset_of_the_device_which_then_serves_again() {
    let part = |at, len, writable| Buffer { at, len, writable };
    let long = part(TX_AT, MAX_OUTPUT as u32, false);
    let breaks: [&dyn Fn(&mut Driver); 9] = [
        // Memory that isn't there, in each queue.
        &|driver| driver.offer_from(TX, 0, &[part(1 << 40, 8, false)]),
        &|driver| driver.offer_from(RX, 0, &[part(1 << 40, 8, true)]),
        // Memory that goes on behind the end of all memory.
        &|driver| driver.offer_from(TX, 0, &[part(u64::MAX - 3, 8, false)]),
        // No room for input: a buffer to read, and one without bytes.
        &|driver| driver.offer_from(RX, 0, &[part(RX_AT, 8, false)]),
        &|driver| driver.offer_from(RX, 0, &[part(RX_AT, 0, true)]),
        // Longer than any output.
        &|driver| driver.offer_from(TX, 0, &[long, part(TX_AT, 1, false)]),
        // A head that is no descriptor, and more chains than the ring has room for.
        &|driver| {
            driver.use_queue(TX);
            driver.offer_head(QUEUE_SIZE);
        },
        &|driver| {
            driver.use_queue(RX);
            driver.offer_head(QUEUE_SIZE);
        },
        &|driver| {
            driver.use_queue(TX);
            driver.set_available(QUEUE_SIZE + 1);
            driver.put(0x3004, &1u16.to_le_bytes());
        },
    ];
    let mut rig = Rig::with(VirtioConsole::default());
    for break_it in breaks {
        rig.driver.start();
        // There is something to give.
        rig.console.send(b"x");
        break_it(&mut rig.driver);
        rig.driver.events.wait_for(CONFIG_INTERRUPT);
        assert_eq!(rig.driver.status() & NEEDS_RESET, NEEDS_RESET);
        rig.driver.reset();
        rig.driver.start();
        let mut waiting = Vec::new();
        while waiting.last() != Some(&b'.') {
            rig.console.send(b".");
            rig.give(0, 100);
            waiting.extend(rig.typed().1);
        }
        rig.serves();
        rig.driver.reset();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a chain is, in either queue, the device asks for a reset or goes on; afterwards it serves.
    #[test]
    fn hostile_chains_end_the_device_at_most(
        data in prop::collection::vec(any::<u8>(), 0..40),
        parts in prop::collection::vec((0u64..8 << 20, 0u32..1 << 20, any::<bool>(), 0u16..18), 1..12),
        heads in prop::collection::vec((0u16..18, any::<bool>()), 1..6),
        typed in prop::collection::vec(any::<u8>(), 0..10_000),
    ) {
        let mut rig = Rig::new();
        rig.driver.set_bytes(TX_AT, &data);
        for queue in [RX, TX] {
            rig.driver.use_queue(queue);
            for (index, (at, len, writable, next)) in parts.iter().enumerate() {
                let flags = u16::from(*next < 16) | if *writable { 2 } else { 0 };
                rig.driver.describe(index as u16, *at, *len, flags, *next);
            }
        }
        rig.console.send(&typed);
        for (head, is_output) in heads {
            rig.driver.use_queue(if is_output { TX } else { RX });
            rig.driver.offer_head(head);
        }
        rig.driver.reset();
        rig.driver.start();
        rig.console.send(b"end");
        let mut waiting = Vec::new();
        while !waiting.ends_with(b"end") {
            rig.give(0, RX_LEN as u32);
            waiting.extend(rig.typed().1);
        }
        rig.serves();
    }
}
