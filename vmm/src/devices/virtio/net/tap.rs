//! A tap interface: a network interface of the host's whose other end is a file (`Documentation/networking/tuntap.rst`
//! of the kernel's).
//!
//! A read of the file is a packet that the host sends over the interface, a write is one that comes in by it. Each has
//! the header of a virtio network device (`IFF_VNET_HDR`), so the host can leave checksums and the cutting of segments
//! to the guest, as far as `TUNSETOFFLOAD` allows it, and the guest to the host.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd, RawFd},
        unix::fs::OpenOptionsExt,
    },
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, netdevice},
};
use vmm_sys_util::{
    epoll::EventSet,
    ioctl::{ioctl_with_mut_ref, ioctl_with_ref, ioctl_with_val},
};

use super::{
    HEADER_LEN, MIN_FRAME,
    backend::{Backend, Lost},
    feature,
    wanted::NetError,
};

const TUN: &str = "/dev/net/tun";
/// Bytes of an interface's name, the zero behind it included (`IFNAMSIZ`).
const NAME_LEN: usize = libc::IFNAMSIZ;
/// The file has no interface any more (`tun_get` in `drivers/net/tun.c`).
const REMOVED: Errno = Errno::BADFD;
/// MTUs that a device may tell its driver (5.1.4.1).
const MTUS: std::ops::RangeInclusive<u16> = 68..=65_535;

/// What the guest may leave to the host: a tap interface takes all of it from its file.
const TO_HOST: u64 = feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6 | feature::HOST_ECN;
/// What the host may leave to the guest, and how the file is told (`TUN_F_*`). Each but the first needs the first.
const TO_GUEST: [(u64, libc::c_uint); 4] = [
    (feature::GUEST_CSUM, libc::TUN_F_CSUM),
    (feature::GUEST_TSO4, libc::TUN_F_TSO4),
    (feature::GUEST_TSO6, libc::TUN_F_TSO6),
    (feature::GUEST_ECN, libc::TUN_F_TSO_ECN),
];

/// `struct ifreq` with a number at the start of what follows the name (`include/uapi/linux/if.h`).
#[repr(C)]
struct Request {
    name: [u8; NAME_LEN],
    value: i32,
    rest: [u8; 20],
}

// What the kernel reads and writes must be there.
const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

impl Request {
    /// Returns None where a name isn't an interface's (`dev_valid_name` in `net/core/dev.c`). A `%` would ask for a new
    /// interface with a number.
    fn new(name: &str) -> Option<Self> {
        let is_name = (1..NAME_LEN).contains(&name.len())
            && name != "."
            && name != ".."
            && !name
                .bytes()
                .any(|byte| byte <= b' ' || [b'/', b':', b'%', 0x7f].contains(&byte));
        let mut request = Self {
            name: [0; NAME_LEN],
            value: 0,
            rest: [0; 20],
        };
        request
            .name
            .get_mut(..name.len())
            .filter(|_| is_name)?
            .copy_from_slice(name.as_bytes());
        Some(request)
    }
}

/// The file of a tap interface.
pub(super) struct Tap {
    file: File,
    mtu: Option<u16>,
    offloads: u64,
    /// A packet that the interface has not taken yet.
    unsent: Vec<u8>,
}

impl Tap {
    /// Opens the interface, which must be there: else a server that is root would make one, without an address.
    ///
    /// # Errors
    /// See [`NetError`].
    pub(super) fn open(name: &str) -> Result<Self, NetError> {
        let owned = || name.to_owned();
        let refused = |what| {
            move |cause| NetError::Tap {
                name: name.to_owned(),
                what,
                cause,
            }
        };
        let request = Request::new(name).ok_or_else(|| NetError::TapName { name: owned() })?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.map_err(|cause| NetError::Host {
            cause: cause.into(),
        })?;
        match netdevice::name_to_index(&socket, name) {
            Err(Errno::NODEV) => return Err(NetError::NoTap { name: owned() }),
            found => found.map_err(|cause| refused("its number")(cause.into()))?,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(TUN)
            .map_err(|cause| NetError::NoTun { cause })?;
        attach(&file, request).map_err(|cause| match Errno::from_io_error(&cause) {
            Some(Errno::BUSY) => NetError::TapBusy { name: owned() },
            Some(Errno::INVAL) => NetError::OtherInterface { name: owned() },
            Some(Errno::PERM) => NetError::TapForbidden { name: owned() },
            _ => refused("its file")(cause),
        })?;
        set_header_len(&file).map_err(refused("its header"))?;
        Ok(Self::of(file, mtu(&socket, name)))
    }

    /// The interface behind a file that gives and takes packets.
    pub(super) fn of(file: File, mtu: Option<u16>) -> Self {
        let mut tap = Self {
            file,
            mtu,
            offloads: TO_HOST,
            unsent: Vec::new(),
        };
        let to_guest = TO_GUEST.iter().fold(0, |all, (feature, _)| all | feature);
        if tap.set_offloads(to_guest).is_ok() {
            tap.offloads |= to_guest;
        }
        tap
    }

    /// Allows the host to leave to the guest what `features` stand for.
    fn set_offloads(&self, features: u64) -> io::Result<()> {
        let mut flags = 0;
        if features & feature::GUEST_CSUM != 0 {
            let accepted = TO_GUEST
                .iter()
                .filter(|(feature, _)| features & feature != 0);
            flags = accepted.fold(0, |all, (_, flag)| all | flag);
        }
        let flags = libc::c_ulong::from(flags);
        // SAFETY: the argument is a number, and no memory of this process is involved.
        done(unsafe { ioctl_with_val(&self.file, libc::TUNSETOFFLOAD, flags) })
    }
}

impl Backend for Tap {
    fn file(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn offloads(&self) -> u64 {
        self.offloads
    }

    fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    fn start(&mut self, features: u64) {
        if let Err(error) = self.set_offloads(features & self.offloads) {
            tracing::debug!("a tap interface keeps its offloads: {error}");
        }
    }

    fn reset(&mut self) {
        self.unsent.clear();
    }

    fn check(&mut self, events: EventSet) -> Result<(), Lost> {
        // `tun_chr_poll` in `drivers/net/tun.c`: the interface is being removed or is gone.
        if events.contains(EventSet::ERROR) {
            return Err(removed());
        }
        Ok(())
    }

    fn receive(&mut self, packet: &mut [u8]) -> Result<Option<usize>, Lost> {
        loop {
            match rustix::io::read(&self.file, &mut *packet) {
                Ok(len) if len >= HEADER_LEN + MIN_FRAME => return Ok(Some(len)),
                Ok(0) | Err(REMOVED) => return Err(removed()),
                Ok(len) => tracing::trace!("a tap interface has a packet of {len} bytes"),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(Lost(format!("the tap interface can't be read: {error}")));
                }
            }
        }
    }

    fn can_send(&mut self) -> Result<bool, Lost> {
        if self.unsent.is_empty() {
            return Ok(true);
        }
        let packet = std::mem::take(&mut self.unsent);
        self.send(&packet)?;
        Ok(self.unsent.is_empty())
    }

    fn send(&mut self, packet: &[u8]) -> Result<(), Lost> {
        loop {
            match rustix::io::write(&self.file, packet) {
                // The interface takes a packet whole.
                Ok(_) => return Ok(()),
                Err(REMOVED) => return Err(removed()),
                Err(Errno::AGAIN) => {
                    self.unsent.extend_from_slice(packet);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                // The interface is down, or the guest's header makes no sense.
                Err(error) => {
                    tracing::trace!("a tap interface drops a packet: {error}");
                    return Ok(());
                }
            }
        }
    }
}

fn removed() -> Lost {
    Lost("the tap interface has been removed".to_owned())
}

/// Connects the file with the interface that `request` names.
fn attach(file: &File, mut request: Request) -> io::Result<()> {
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    // The flags are a short, the low half of the number: this is x86.
    request.value = flags;
    // SAFETY: the kernel reads and writes a `struct ifreq`, whose size and layout the request has; it lives for the
    // call, and any bytes are a request.
    done(unsafe { ioctl_with_mut_ref(file, libc::TUNSETIFF, &mut request) })
}

/// Sets the header's length to that of a device of version 1.
fn set_header_len(file: &File) -> io::Result<()> {
    let len = HEADER_LEN as libc::c_int;
    // SAFETY: the kernel reads an int, which lives for the call.
    done(unsafe { ioctl_with_ref(file, libc::TUNSETVNETHDRSZ, &len) })
}

/// The interface's MTU, if the system tells it and a driver may be told.
fn mtu(socket: impl AsFd, name: &str) -> Option<u16> {
    let mut request = Request::new(name)?;
    let socket = socket.as_fd();
    // SAFETY: as in `attach`.
    let read = unsafe { ioctl_with_mut_ref(&socket, libc::SIOCGIFMTU, &mut request) };
    done(read).ok()?;
    let mtu = u16::try_from(request.value).ok()?;
    MTUS.contains(&mtu).then_some(mtu)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_no_interface_can_have_as_its_name_is_refused_before_anything_is_opened() {
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "tap%d",
            "a:1",
            "a\0",
            "sixteen-bytes-xx",
        ] {
            let refused = Tap::open(name).err();
            assert!(
                matches!(&refused, Some(NetError::TapName { name: told }) if told == name),
                "{name:?}: {refused:?}"
            );
        }
        assert!(Request::new("fifteen-bytes-x").is_some());
    }
}
