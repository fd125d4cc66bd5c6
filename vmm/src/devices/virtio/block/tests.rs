use std::{
    fs,
    io::Write as _,
    num::NonZeroU64,
    process::Command,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::{
    device::Block,
    image::{Disk, DiskFormat},
    request::{DISCARD, FLUSH, GET_ID, IN, MAX_RANGES, OUT, Status, WRITE_ZEROES},
};
use crate::devices::virtio::{
    driver::{Buffer, CONFIG_INTERRUPT, Driver},
    rate::RateLimit,
};

/// Where a request's parts are in the guest's memory.
const HEADER_AT: u64 = 0x10_0000;
const STATUS_AT: u64 = 0x10_1000;
const DATA_AT: u64 = 0x11_0000;
const SECTORS: u64 = 1024;

struct Rig {
    driver: Driver,
    file: NamedTempFile,
}

/// How transfers are done: by `io_uring` where this host has it, and one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ring,
    Calls,
}

/// A disk whose every sector is full of the low byte of its number, for each way.
fn rigs(read_only: bool) -> [Rig; 2] {
    [Way::Ring, Way::Calls].map(|way| rig(read_only, way))
}

fn rig(read_only: bool, way: Way) -> Rig {
    let mut file = NamedTempFile::new().unwrap();
    for sector in 0..SECTORS {
        file.write_all(&[sector as u8; 512]).unwrap();
    }
    rig_of(file, None, read_only, RateLimit::default(), way)
}

/// A disk in this file.
fn rig_of(
    file: NamedTempFile,
    format: Option<DiskFormat>,
    read_only: bool,
    limit: RateLimit,
    way: Way,
) -> Rig {
    let disk = Disk {
        path: file.path().into(),
        format,
        read_only,
        limit,
    };
    let mut block = Block::open(&disk).unwrap();
    if way == Way::Calls {
        block = block.without_ring();
    }
    let driver = Driver::started(Box::new(block));
    Rig { driver, file }
}

impl Rig {
    /// Makes a request with `data`, the pieces of it after the header. Returns its status, and how many bytes
    /// were filled, the status included.
    fn request(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> (u8, u32) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.driver.set_bytes(HEADER_AT, &header);
        self.driver.set_bytes(STATUS_AT, &[0xee]);
        let part = |at, len, writable| Buffer { at, len, writable };
        let header = part(HEADER_AT, header.len() as u32, false);
        let status = part(STATUS_AT, 1, true);
        self.driver.offer(&[&[header], data, &[status]].concat());
        let filled = self.driver.finished();
        (self.driver.bytes(STATUS_AT, 1)[0], filled)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.file.path()).unwrap()
    }
}

fn to_fill(len: u32) -> Buffer {
    Buffer {
        at: DATA_AT,
        len,
        writable: true,
    }
}

fn to_read(len: u32) -> Buffer {
    Buffer {
        writable: false,
        ..to_fill(len)
    }
}

const DONE: u8 = Status::Done as u8;
const FAILED: u8 = Status::Failed as u8;
const UNSUPPORTED: u8 = Status::Unsupported as u8;

#[test]
fn sectors_are_read_into_several_pieces() {
    for mut rig in rigs(false) {
        let pieces = [
            Buffer {
                at: DATA_AT + 0x1000,
                ..to_fill(100)
            },
            to_fill(1024 - 100),
        ];
        assert_eq!(rig.request(IN, 7, &pieces), (DONE, 1025));
        assert_eq!(rig.driver.bytes(DATA_AT + 0x1000, 100), [7; 100]);
        let rest = rig.driver.bytes(DATA_AT, 924);
        assert_eq!(rest, [[7; 412].as_slice(), &[8; 512]].concat());
    }
}

#[test]
fn a_request_longer_than_what_is_copied_at_a_time_is_done_whole() {
    for mut rig in rigs(false) {
        let all = (SECTORS * 512) as u32;
        assert_eq!(rig.request(IN, 0, &[to_fill(all)]), (DONE, all + 1));
        assert_eq!(rig.driver.bytes(DATA_AT, all as usize), rig.bytes());
        rig.driver.set_bytes(DATA_AT, &vec![0x5a; all as usize]);
        assert_eq!(rig.request(OUT, 0, &[to_read(all)]), (DONE, 1));
        assert_eq!(rig.request(FLUSH, 0, &[]), (DONE, 1));
        assert_eq!(rig.bytes(), vec![0x5a; all as usize]);
    }
}

#[test]
fn ranges_become_zeros_or_are_given_up() {
    for mut rig in rigs(false) {
        let range = |sector: u64, sectors: u32, flags: u32| {
            [
                &sector.to_le_bytes()[..],
                &sectors.to_le_bytes(),
                &flags.to_le_bytes(),
            ]
            .concat()
        };
        rig.driver
            .set_bytes(DATA_AT, &[range(1, 2, 0), range(16, 8, 1)].concat());
        assert_eq!(rig.request(WRITE_ZEROES, 0, &[to_read(32)]), (DONE, 1));
        rig.driver.set_bytes(DATA_AT, &range(32, 8, 0));
        assert_eq!(rig.request(DISCARD, 0, &[to_read(16)]), (DONE, 1));
        let bytes = rig.bytes();
        for sector in (0..32).chain(40..SECTORS) {
            let is_zero = (1..3).contains(&sector) || (16..24).contains(&sector);
            let expected = if is_zero { 0 } else { sector as u8 };
            let at = sector as usize * 512;
            assert_eq!(bytes[at..at + 512], [expected; 512], "sector {sector}");
        }
        // A flag that means something else, and more ranges than the device takes.
        rig.driver.set_bytes(DATA_AT, &range(0, 1, 1));
        assert_eq!(rig.request(DISCARD, 0, &[to_read(16)]), (UNSUPPORTED, 1));
        let many = range(0, 1, 0).repeat(MAX_RANGES + 1);
        rig.driver.set_bytes(DATA_AT, &many);
        let many = [to_read(many.len() as u32)];
        assert_eq!(rig.request(WRITE_ZEROES, 0, &many), (FAILED, 1));
        assert_eq!(rig.bytes(), bytes);
    }
}

#[test]
fn a_request_beyond_the_end_or_of_half_a_sector_fails_and_changes_nothing() {
    for mut rig in rigs(false) {
        let before = rig.bytes();
        for (sector, len) in [
            (SECTORS, 512),
            (SECTORS - 1, 1024),
            (u64::MAX, 512),
            (u64::MAX / 512, 512),
            (0, 511),
            (0, 513),
        ] {
            for (kind, data) in [(IN, to_fill(len)), (OUT, to_read(len))] {
                assert_eq!(
                    rig.request(kind, sector, &[data]).0,
                    FAILED,
                    "{sector} {len}"
                );
            }
        }
        assert_eq!(rig.request(99, 0, &[]), (UNSUPPORTED, 1));
        assert_eq!(rig.bytes(), before);
    }
}

/// Runs QEMU's own program for images, which must find nothing wrong.
fn qemu_img(arguments: &[&str]) {
    let run = Command::new("qemu-img").args(arguments).output();
    let output = run.expect("qemu-img, of Debian's qemu-utils, which deploy/setup.sh installs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {arguments:?}: {said}");
}

#[test]
fn qemu_reads_what_is_written_to_a_qcow2_image_that_it_has_made() {
    let file = NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    qemu_img(&["create", "-q", "-f", "qcow2", &path, "1M"]);
    let mut rig = rig_of(
        file,
        Some(DiskFormat::Qcow2),
        false,
        RateLimit::default(),
        Way::Ring,
    );
    let all = 1u32 << 20;
    let data: Vec<u8> = (0..all).map(|at| (at / 512 + at) as u8).collect();
    let len = all / 2 + 512;
    rig.driver.set_bytes(DATA_AT, &data);
    assert_eq!(rig.request(OUT, 0, &[to_read(len)]), (DONE, 1));
    assert_eq!(rig.request(OUT, 2047, &[to_read(512)]), (DONE, 1));
    let range = [&1u64.to_le_bytes()[..], &2u32.to_le_bytes(), &[0; 4]].concat();
    rig.driver.set_bytes(DATA_AT, &range);
    assert_eq!(rig.request(WRITE_ZEROES, 0, &[to_read(16)]), (DONE, 1));
    assert_eq!(rig.request(FLUSH, 0, &[]), (DONE, 1));
    // Its lock is gone with it.
    drop(rig.driver);
    qemu_img(&["check", "-q", &path]);
    let plain = NamedTempFile::new().unwrap();
    let to = plain.path().to_str().unwrap();
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw", &path, to]);
    let mut expected = vec![0; all as usize];
    expected[..len as usize].copy_from_slice(&data[..len as usize]);
    expected[2047 * 512..].copy_from_slice(&data[..512]);
    expected[512..3 * 512].fill(0);
    assert!(fs::read(plain.path()).unwrap() == expected);
}

#[test]
fn a_read_only_disk_refuses_what_would_change_it() {
    for mut rig in rigs(true) {
        let before = rig.bytes();
        for kind in [OUT, DISCARD, WRITE_ZEROES] {
            assert_eq!(rig.request(kind, 0, &[to_read(512)]).0, FAILED, "{kind}");
        }
        assert_eq!(rig.request(IN, 3, &[to_fill(512)]), (DONE, 513));
        assert_eq!(rig.bytes(), before);
    }
}

#[test]
fn the_driver_is_told_the_disk_s_size_and_name() {
    let mut rig = rig(false, Way::Ring);
    assert_eq!(u64::from_le_bytes(rig.driver.get(0x2000)), SECTORS);
    assert_eq!(rig.request(GET_ID, 0, &[to_fill(20)]), (DONE, 21));
    let name = rig.file.path().file_name().unwrap().as_encoded_bytes();
    let told = rig.driver.bytes(DATA_AT, 20);
    assert!(told.starts_with(&name[name.len().saturating_sub(20)..]));
}

#[test]
fn a_request_without_room_for_its_status_ends_the_device_until_it_is_reset() {
    for mut rig in rigs(false) {
        rig.driver.offer(&[to_read(16)]);
        rig.driver.events.wait_for(CONFIG_INTERRUPT);
        rig.driver.reset();
        rig.driver.start();
        assert_eq!(rig.request(IN, 0, &[to_fill(512)]), (DONE, 513));
    }
}

#[test]
fn requests_beyond_the_limit_wait_and_are_answered() {
    let disk = || {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        file
    };
    for way in [Way::Ring, Way::Calls] {
        // Forty in a second, of which four at once: the others wait 25 ms each.
        let limit = RateLimit {
            bytes: None,
            operations: NonZeroU64::new(40),
        };
        let start = Instant::now();
        let mut rig = rig_of(disk(), None, false, limit, way);
        for _ in 0..10 {
            assert_eq!(rig.request(IN, 0, &[to_fill(512)]), (DONE, 513));
        }
        let least = Duration::from_millis(6 * 25);
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
        // A million bytes in a second, in both directions: the third request waits until the second one is paid for.
        let limit = RateLimit {
            bytes: NonZeroU64::new(1_000_000),
            operations: None,
        };
        let start = Instant::now();
        let mut rig = rig_of(disk(), None, false, limit, way);
        assert_eq!(rig.request(IN, 0, &[to_fill(102_400)]), (DONE, 102_401));
        assert_eq!(rig.request(OUT, 0, &[to_read(102_400)]), (DONE, 1));
        // A reset takes nothing back.
        rig.driver.reset();
        rig.driver.start();
        assert_eq!(rig.request(IN, 0, &[to_fill(512)]), (DONE, 513));
        let least = Duration::from_millis(104);
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
    }
}

/// Offers a read of each of these sectors, three descriptors each, without waiting.
fn offer_reads(rig: &mut Rig, sectors: &[u64]) {
    for (place, sector) in (0..).zip(sectors) {
        let header_at = HEADER_AT + u64::from(place) * 16;
        let header = [&IN.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        rig.driver.set_bytes(header_at, &header);
        let part = |at, len, writable| Buffer { at, len, writable };
        let request = [
            part(header_at, 16, false),
            part(DATA_AT + u64::from(place) * 512, 512, true),
            part(STATUS_AT + u64::from(place), 1, true),
        ];
        rig.driver.offer_from(0, place * 3, &request);
    }
}

#[test]
fn requests_that_are_offered_together_each_have_their_own_answer() {
    let sectors = [1000, 3, SECTORS, 77, 500];
    for mut rig in rigs(false) {
        rig.driver.set_bytes(STATUS_AT, &[0xee; 5]);
        offer_reads(&mut rig, &sectors);
        let mut answered = Vec::new();
        for _ in sectors {
            answered.push(rig.driver.finished_in(0));
        }
        // In any order.
        answered.sort_unstable();
        let expected = [(0, 513), (3, 513), (6, 1), (9, 513), (12, 513)];
        assert_eq!(answered, expected);
        let statuses = rig.driver.bytes(STATUS_AT, 5);
        assert_eq!(statuses, [DONE, DONE, FAILED, DONE, DONE]);
        for (place, sector) in [(0, 1000_u64), (1, 3), (3, 77), (4, 500)] {
            let bytes = rig.driver.bytes(DATA_AT + place * 512, 512);
            assert_eq!(bytes, [sector as u8; 512], "sector {sector}");
        }
    }
}

#[test]
fn a_reset_in_the_middle_of_requests_waits_for_them() {
    for mut rig in rigs(false) {
        for _ in 0..50 {
            offer_reads(&mut rig, &[1, 2, 3, 4, 5]);
            rig.driver.reset();
            // What the guest does with the memory now is its own.
            rig.driver.set_bytes(DATA_AT, &[0x11; 5 * 512]);
            rig.driver.start();
            assert_eq!(rig.driver.bytes(DATA_AT, 5 * 512), [0x11; 5 * 512]);
        }
        assert_eq!(rig.request(IN, 9, &[to_fill(512)]), (DONE, 513));
        assert_eq!(rig.driver.bytes(DATA_AT, 512), [9; 512]);
    }
}

#[test]
fn a_disk_is_free_again_as_soon_as_its_device_is_gone() {
    let mut file = rig(false, Way::Ring).file;
    for way in [Way::Ring, Way::Calls].repeat(10) {
        let mut rig = rig_of(file, None, false, RateLimit::default(), way);
        assert_eq!(rig.request(IN, 3, &[to_fill(512)]), (DONE, 513));
        file = rig.file;
    }
}

#[test]
fn a_read_where_the_file_has_become_shorter_fails_or_is_of_zeros() {
    for (mut rig, way) in rigs(false).into_iter().zip([Way::Ring, Way::Calls]) {
        rig.file.as_file().set_len(SECTORS / 2 * 512 + 100).unwrap();
        let (status, _) = rig.request(IN, SECTORS / 2 - 1, &[to_fill(1024)]);
        match status {
            FAILED => {}
            DONE => assert_eq!(rig.driver.bytes(DATA_AT + 612, 412), [0; 412], "{way:?}"),
            other => panic!("{way:?}: status {other}"),
        }
        assert_eq!(rig.request(IN, 9, &[to_fill(512)]), (DONE, 513));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a chain is, the device answers it or asks for a reset; afterwards it serves.
    #[test]
    fn hostile_chains_are_answered_or_end_the_device(
        header in prop::collection::vec(any::<u8>(), 0..40),
        parts in prop::collection::vec((0u64..8 << 20, 0u32..1 << 20, any::<bool>(), 0u16..18), 1..12),
        head in 0u16..18,
        by_ring in any::<bool>(),
    ) {
        let mut rig = rig(false, if by_ring { Way::Ring } else { Way::Calls });
        rig.driver.set_bytes(HEADER_AT, &header);
        for (index, (at, len, writable, next)) in parts.iter().enumerate() {
            let at = if index == 0 { HEADER_AT } else { *at };
            let flags = u16::from(*next < 16) | if *writable { 2 } else { 0 };
            rig.driver.describe(index as u16, at, *len, flags, *next);
        }
        rig.driver.offer_head(head);
        rig.driver.events.wait_for_any();
        rig.driver.reset();
        rig.driver.start();
        prop_assert_eq!(rig.request(FLUSH, 0, &[]), (DONE, 1));
    }
}
