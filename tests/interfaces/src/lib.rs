//! Sets up network interfaces, for tests inside guests and beside them (netdevice(7)).
//!
//! Each call needs `CAP_NET_ADMIN`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `struct ifreq`: a name, and the data of the call.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

impl Request {
    fn new(name: &str, value: &[u8]) -> io::Result<Self> {
        let mut request = Self {
            name: [0; libc::IFNAMSIZ],
            value: [0; 24],
        };
        let place = request.name.get_mut(..name.len());
        place
            .filter(|place| place.len() < libc::IFNAMSIZ)
            .ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(name.as_bytes());
        request.value[..value.len()].copy_from_slice(value);
        Ok(request)
    }

    /// Makes a call to the kernel whose argument is such a request.
    fn call(&mut self, file: &impl AsRawFd, call: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the calls made here read and write a `struct ifreq`, which this is; it lives for the call.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), call as _, &raw mut *self) };
        done(result)
    }
}

/// Gives an interface an address in a network of 24 bits, and switches it on.
///
/// # Errors
/// There is no such interface, or the system refuses it.
pub fn set_up(name: &str, address: Ipv4Addr) -> io::Result<()> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    for (call, address) in [
        (libc::SIOCSIFADDR, address),
        (libc::SIOCSIFNETMASK, Ipv4Addr::new(255, 255, 255, 0)),
    ] {
        // `struct sockaddr_in`: the family, a port of 0, and the address.
        let family = (libc::AF_INET as u16).to_ne_bytes();
        let address = [&family[..], &[0; 2], &address.octets()].concat();
        Request::new(name, &address)?.call(&socket, call)?;
    }
    let up = (libc::IFF_UP as i16).to_ne_bytes();
    Request::new(name, &up)?.call(&socket, libc::SIOCSIFFLAGS)
}

/// Routes packets for other networks than the host's own over the interface `name`, to `gateway`.
///
/// # Errors
/// As [`set_up`].
pub fn set_gateway(name: &str, gateway: Ipv4Addr) -> io::Result<()> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let address = |address: Ipv4Addr| {
        let [a, b, c, d] = address.octets();
        libc::sockaddr {
            sa_family: libc::AF_INET as libc::sa_family_t,
            sa_data: [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0]
                .map(|byte: u8| byte as libc::c_char),
        }
    };
    let mut device = [name.as_bytes(), &[0]].concat();
    // SAFETY: zeros are a route: addresses, numbers, and a pointer to no name.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = address(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    route.rt_dev = device.as_mut_ptr().cast();
    // SAFETY: the call reads a route and the name that it points to; both live for the call.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT as _, &raw const route) })
}

/// A tap interface. It is removed when this is dropped.
#[derive(Debug)]
pub struct Tap {
    name: String,
}

impl Tap {
    /// Makes one, with an address in a network of 24 bits, and switches it on. Its other end isn't open yet.
    ///
    /// # Errors
    /// The kernel has no tap interfaces (module `tun`), or this process may not make one.
    pub fn new(name: &str, address: Ipv4Addr) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        let flags = ((libc::IFF_TAP | libc::IFF_NO_PI) as i16).to_ne_bytes();
        Request::new(name, &flags)?.call(&file, libc::TUNSETIFF as libc::c_ulong)?;
        // SAFETY: the argument is a number.
        done(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST as _, 1) })?;
        let tap = Self {
            name: name.to_owned(),
        };
        set_up(name, address)?;
        Ok(tap)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes it, even if its other end is open.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn remove(self) -> io::Result<()> {
        let removed = remove(&self.name);
        std::mem::forget(self);
        removed
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _it_may_be_gone = remove(&self.name);
    }
}

/// Removes an interface (`RTM_DELLINK`, rtnetlink(7)).
fn remove(name: &str) -> io::Result<()> {
    const HEADER: u32 = 16;
    const INTERFACE: usize = 16;
    let number = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?;
    let number: i32 = number.trim().parse().map_err(io::Error::other)?;
    let mut socket = File::from(socket(
        libc::AF_NETLINK,
        libc::SOCK_RAW,
        libc::NETLINK_ROUTE,
    )?);
    let mut message = Vec::new();
    // `struct nlmsghdr`, then `struct ifinfomsg`, in which only the interface's number counts.
    message.extend((HEADER + INTERFACE as u32).to_ne_bytes());
    message.extend(libc::RTM_DELLINK.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
    message.extend([0; 8]);
    let mut interface = [0; INTERFACE];
    interface[4..8].copy_from_slice(&number.to_ne_bytes());
    message.extend(interface);
    socket.write_all(&message)?;
    // The answer is `struct nlmsgerr` behind a header: an error's number, negative, or 0.
    let mut answer = [0; 256];
    let len = socket.read(&mut answer)?;
    let code = answer[..len]
        .get(16..20)
        .ok_or(io::ErrorKind::InvalidData)?;
    match i32::from_ne_bytes([code[0], code[1], code[2], code[3]]) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
