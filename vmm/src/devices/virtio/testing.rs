//! What holds of every device, whatever its driver does.

use std::{fs, os::unix::net::UnixDatagram, sync::Arc};

use super::{
    block::{Block, Disk},
    console::{ConsoleDevice, VirtioConsole},
    device::VirtioDevice,
    driver::{Buffer, Driver},
    entropy::Entropy,
    fs::{FileSystemDevice, Share, ShareMode},
    net::testing::on_wire,
    rate::RateLimit,
    vsock::{Vsock, VsockDevice},
};
use crate::{
    devices::{console::Console, guest_end::GuestEnd, pci::PciFunction},
    ending::EndSignal,
};

/// The device's status when it serves, and when it needs a reset as well.
const SERVES: u8 = 0x0f;
const NEEDS_RESET: u8 = 0x40;
/// Where requests and answers are in the guest's memory.
const REQUEST_AT: u64 = 0x10_0000;
const ANSWER_AT: u64 = 0x11_0000;

/// The kinds of devices.
const KINDS: u8 = 6;

/// Makes a hostile driver do what `bytes` say to a device of the kind `kind`, of which there are six (others stand
/// for these too): it writes descriptors, rings, memory and registers. Afterwards a reset brings back a device that
/// serves, and a file beside the one that it has been given is as before.
///
/// # Panics
/// When that doesn't hold.
pub fn hostile_driver(kind: u8, bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    fs::create_dir(path.join("shared")).expect("a folder");
    fs::write(path.join("shared/file"), "inside").expect("a file");
    fs::write(path.join("beside"), "outside").expect("a file");
    fs::write(path.join("disk"), [7; 64 << 10]).expect("a disk");
    let (wire, theirs) = UnixDatagram::pair().expect("a pair of sockets");
    wire.set_nonblocking(true)
        .expect("a socket that doesn't block");
    let console = Arc::new(Console::default());
    let device: Box<dyn VirtioDevice> = match kind % KINDS {
        0 => Box::new(Entropy),
        1 => Box::new(
            Block::open(&Disk {
                path: path.join("disk").into(),
                format: None,
                read_only: false,
                limit: RateLimit::default(),
            })
            .expect("a disk"),
        ),
        2 => Box::new(
            FileSystemDevice::open(&Share {
                tag: "t".to_owned(),
                path: path.join("shared").into(),
                mode: ShareMode::ReadWrite,
            })
            .expect("a share"),
        ),
        3 => Box::new(
            VsockDevice::open(&Vsock {
                path: path.join("socket").into(),
                cid: 3,
            })
            .expect("sockets"),
        ),
        4 => Box::new(on_wire(theirs)),
        _ => {
            let end = GuestEnd::new(Arc::clone(&console), Arc::new(EndSignal::default()));
            let device = ConsoleDevice::new(VirtioConsole::default(), &console, &end);
            Box::new(device.expect("a console"))
        }
    };
    let mut driver = Driver::started(device);
    let mut bytes = bytes.iter().copied();
    while let Some(action) = bytes.next() {
        act(&mut driver, action, &mut bytes);
        // The network has something for the guest too, and so has the console.
        console.send(&[action; 70]);
        let _the_device_may_read_none = wire.send(&[action; 700]);
    }
    driver.use_queue(0);
    driver.reset();
    while wire.recv(&mut [0; 1]).is_ok() {}
    driver.start();
    assert_eq!(driver.status() & !NEEDS_RESET, SERVES);
    serves(&mut driver, kind % KINDS, &wire, &console);
    drop(driver);
    let beside = fs::read(path.join("beside")).expect("the file beside");
    assert_eq!(beside, b"outside");
}

/// One thing that a driver does.
fn act(driver: &mut Driver, action: u8, bytes: &mut impl Iterator<Item = u8>) {
    let mut byte = || bytes.next().unwrap_or_default();
    match action % 6 {
        // A descriptor, mostly of memory that is there.
        0 => {
            let (index, flags, next) = (byte() % 20, byte() % 8, byte() % 20);
            let (page, len, far) = (byte(), u16::from_le_bytes([byte(), byte()]), byte());
            let at = if far == 0xff {
                u64::MAX - u64::from(page)
            } else {
                REQUEST_AT + (u64::from(page) << 8)
            };
            driver.describe(index.into(), at, len.into(), u16::from(flags), next.into());
        }
        // Memory that a descriptor may name.
        1 => {
            let (page, len) = (byte(), byte() % 65);
            let data: Vec<u8> = (0..len).map(|_| byte()).collect();
            driver.set_bytes(REQUEST_AT + (u64::from(page) << 8), &data);
        }
        2 => driver.offer_head((byte() % 20).into()),
        3 => driver.use_queue((byte() % driver.queue_count()).into()),
        // A register, but for the one that starts and resets.
        4 => {
            let (at, value) = (u64::from(byte()) << 6 | u64::from(byte()), byte());
            if at != 0x14 {
                driver.put(at % 0x8000, &[value; 4][..1 << (value % 3)]);
            }
        }
        _ => {
            let (at, value) = (usize::from(byte()), byte());
            driver
                .device
                .write_config(at, &[value; 4][..1 << (value % 3)]);
            let mut read = [0; 4];
            driver.device.read_config(at, &mut read);
        }
    }
}

/// Makes a request that every such device answers.
fn serves(driver: &mut Driver, kind: u8, wire: &UnixDatagram, console: &Console) {
    let part = |at, len, writable| Buffer { at, len, writable };
    match kind {
        0 => {
            driver.offer(&[part(ANSWER_AT, 8, true)]);
            assert_eq!(driver.finished(), 8);
        }
        1 => {
            // A flush.
            driver.set_bytes(
                REQUEST_AT,
                &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            );
            driver.offer(&[part(REQUEST_AT, 16, false), part(ANSWER_AT, 1, true)]);
            assert_eq!(
                (driver.finished(), driver.bytes(ANSWER_AT, 1)),
                (1, vec![0])
            );
        }
        2 => {
            driver.use_queue(1);
            // FUSE_INIT of version 7.38.
            let mut request = vec![0; 40 + 64];
            request[0] = 104;
            request[4] = 26;
            request[40] = 7;
            request[44] = 38;
            driver.set_bytes(REQUEST_AT, &request);
            driver.offer(&[part(REQUEST_AT, 104, false), part(ANSWER_AT, 256, true)]);
            assert!(driver.finished() > 16);
        }
        4 => {
            let packet = [0x5a; 100];
            driver.set_bytes(REQUEST_AT, &packet);
            driver.use_queue(1);
            driver.offer(&[part(REQUEST_AT, 100, false)]);
            driver.finished();
            let mut sent = [0; 200];
            let len = wire.recv(&mut sent).expect("the packet");
            assert_eq!(&sent[..len], packet);
        }
        5 => {
            let before = console.read(0).next;
            driver.set_bytes(REQUEST_AT, b"shown");
            driver.use_queue(1);
            driver.offer(&[part(REQUEST_AT, 5, false)]);
            driver.finished();
            assert_eq!(console.read(before).bytes, b"shown");
        }
        _ => {}
    }
}
