//! What a network is to a guest, and why it can't have one.

use std::{
    fmt::{self, Display, Formatter},
    io,
    path::PathBuf,
    str::FromStr,
};

use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

use crate::{devices::virtio::rate::RateLimit, host_path::HostPath};

/// A network device for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// What it is connected to.
    pub backend: NetBackend,
    /// The guest's address. None: one that is drawn.
    pub mac: Option<Mac>,
    /// Most that goes through it in a second, in each direction.
    pub limit: RateLimit,
}

/// What a guest's network device is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetBackend {
    /// A tap interface of the host's with this name, which is there already.
    Tap(String),
    /// Passt, which lets the guest use the host's network as a process of the host does: the one that listens on this
    /// Unix socket, or one that is started for the guest and ends with it.
    Passt(Option<HostPath>),
}

/// The address of a network device (IEEE 802, 8): it is written as `02:00:00:12:34:56`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

/// The bit in the first byte of addresses of several devices, and of those that no manufacturer has given.
const GROUP: u8 = 1 << 0;
const LOCAL: u8 = 1 << 1;

impl Mac {
    /// An address that is drawn.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn draw() -> io::Result<Self> {
        let mut bytes = [0; 6];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        bytes[0] = bytes[0] & !GROUP | LOCAL;
        Ok(Self(bytes))
    }
}

/// A text is no address that a device can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no address of a network device: write six bytes as 02:00:00:12:34:56, the first one even, and not all zero"
)]
pub struct NoMac(String);

impl FromStr for Mac {
    type Err = NoMac;

    fn from_str(text: &str) -> Result<Self, NoMac> {
        let wrong = || NoMac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(wrong)?;
            let is_hex = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let value = u8::from_str_radix(part, 16).ok().filter(|_| is_hex);
            *byte = value.ok_or_else(wrong)?;
        }
        if parts.next().is_some() || bytes[0] & GROUP != 0 || bytes == [0; 6] {
            return Err(wrong());
        }
        Ok(Self(bytes))
    }
}

impl Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Why a guest can't have a network.
#[derive(Debug, Error)]
pub enum NetError {
    /// A text that is no interface's name.
    #[error(
        "{name:?} is no name of a tap interface: one has 1 to 15 bytes, without `/` and spaces"
    )]
    TapName {
        /// The text.
        name: String,
    },
    /// No interface has the name.
    #[error(
        "there is no tap interface {name}: root makes it with `ip tuntap add dev {name} mode tap user USER`, where USER \
         runs this server, and `ip link set {name} up`"
    )]
    NoTap {
        /// The name.
        name: String,
    },
    /// The interface is another kind.
    #[error(
        "the interface {name} is no tap interface with one queue: name another one, or make one with `ip tuntap add`"
    )]
    OtherInterface {
        /// The name.
        name: String,
    },
    /// Another process or another guest has it.
    #[error("the tap interface {name} is in use: give each guest its own, or end who has it")]
    TapBusy {
        /// The name.
        name: String,
    },
    /// It was made for another user.
    #[error(
        "the tap interface {name} is another user's: root makes it anew with `ip tuntap del dev {name} mode tap` and \
         `ip tuntap add dev {name} mode tap user USER`, where USER runs this server"
    )]
    TapForbidden {
        /// The name.
        name: String,
    },
    /// The host has no tap interfaces.
    #[error(
        "/dev/net/tun can't be opened: {cause}: load the kernel's module `tun`, and let this user read and write the file"
    )]
    NoTun {
        /// What the system said.
        cause: io::Error,
    },
    /// The system refused what the monitor needs of it.
    #[error("the tap interface {name} can't be used: {what}: {cause}")]
    Tap {
        /// The name.
        name: String,
        /// What it refused.
        what: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// The program isn't there.
    #[error(
        "passt isn't there: install the Debian package `passt`, so that it is in the PATH of this server"
    )]
    NoPasst,
    /// It can't be started.
    #[error("passt can't be started: {cause}")]
    StartPasst {
        /// What the system said.
        cause: io::Error,
    },
    /// No process listens on the socket.
    #[error(
        "passt can't be reached by the socket {path}: {cause}: start it with `passt --socket {path}`"
    )]
    ConnectPasst {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The host lacks something that a device of any kind needs.
    #[error("the host has nothing more for a network device: {cause}")]
    Host {
        /// What the system said.
        cause: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_six_bytes_of_one_device() {
        let text = "02:00:5e:Ab:00:ff";
        let mac: Mac = text.parse().unwrap();
        assert_eq!(mac, Mac([2, 0, 0x5e, 0xab, 0, 0xff]));
        assert_eq!(mac.to_string(), text.to_lowercase());
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "02:00:00:00:00:+1",
            "02:00:00:00:00:0g",
            "02-00-00-00-00-01",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "01:00:00:00:00:01",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(NoMac(text.to_owned())));
        }
    }

    #[test]
    fn drawn_addresses_differ_and_are_a_device_s() {
        let [one, other] = [(); 2].map(|()| Mac::draw().unwrap());
        assert_ne!(one, other);
        for mac in [one, other] {
            assert_eq!(mac.to_string().parse(), Ok(mac));
            assert_eq!(mac.0[0] & LOCAL, LOCAL);
        }
    }
}
