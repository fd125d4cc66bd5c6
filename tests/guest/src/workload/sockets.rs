//! Connections of `AF_VSOCK` between the guest and the host, both ways at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use serde_json::{Value, json};

use super::streams::{self, Place, Stream};
use super::{step, threads};
use crate::plan::Plan;

/// `VMADDR_CID_HOST` and `VMADDR_CID_ANY` (`include/uapi/linux/vm_sockets.h`).
const HOST: u32 = 2;
const ANY: u32 = u32::MAX;
/// `IOCTL_VM_SOCKETS_GET_LOCAL_CID`: asks for the guest's CID.
const GET_LOCAL_CID: libc::c_ulong = 0x7b9;
/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 128;

/// From each CPU, makes `count` connections to the port `at` of the host, each of which must echo what was sent. The
/// host makes as many connections to the guest's next port, which echo what they are sent.
///
/// Step: `listening`, when the host can connect.
pub fn run(plan: &Plan) -> io::Result<Value> {
    let port: u32 = plan.at.parse().map_err(io::Error::other)?;
    let listener = listen(port + 1)?;
    let cpus = threads::online_cpus()?.len();
    step(
        plan,
        "listening",
        json!({ "cid": local_cid()?, "cpus": cpus }),
    )?;
    let place = Sockets { port, listener };
    Ok(streams::both_ways(plan, &place)?.report())
}

/// The guest's end of virtio sockets.
struct Sockets {
    port: u32,
    listener: File,
}

impl Place for Sockets {
    type Stream = Socket;
    const LONG_ONE_IN: u64 = 50;

    fn connect(&self) -> io::Result<Socket> {
        Ok(Socket::new(connect(self.port)?))
    }

    fn accept(&self) -> io::Result<Socket> {
        let listener = self.listener.as_raw_fd();
        // SAFETY: no address is asked for.
        let socket = unsafe { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
        Ok(Socket::new(owned(socket)?))
    }
}

/// A connection.
struct Socket {
    file: File,
    is_uncopied: bool,
}

impl Socket {
    fn new(file: File) -> Self {
        Self {
            file,
            is_uncopied: false,
        }
    }
}

impl Stream for Socket {
    fn expect_most(&mut self) {
        self.is_uncopied = enable_uncopied(&self.file);
    }

    fn is_uncopied(&self) -> bool {
        self.is_uncopied
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(bytes)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.is_uncopied {
            true => send_uncopied(&self.file, bytes),
            false => (&self.file).write(bytes),
        }
    }

    fn end_writing(&self) -> io::Result<()> {
        // SAFETY: it involves no memory.
        done(unsafe { libc::shutdown(self.file.as_raw_fd(), libc::SHUT_WR) })
    }
}

/// Returns true if the kernel can send pages without a copy (`SO_ZEROCOPY`; since Linux 6.7 for these sockets).
fn enable_uncopied(socket: &File) -> bool {
    let on: libc::c_int = 1;
    // SAFETY: the option is a number that lives for the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    result == 0
}

fn send_uncopied(socket: &File, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_ZEROCOPY;
    // SAFETY: the bytes live for the call. The kernel keeps their pages for longer, but only reads them.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn connect(port: u32) -> io::Result<File> {
    let socket = new_socket()?;
    let address = address(HOST, port);
    // SAFETY: the address is of this length and lives for the call.
    let result = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    done(result).map(|()| socket)
}

fn listen(port: u32) -> io::Result<File> {
    let socket = new_socket()?;
    let address = address(ANY, port);
    // SAFETY: the address is of this length and lives for the call.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    done(result)?;
    // SAFETY: it involves no memory.
    done(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

fn address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: zeros are an address.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    address
}

fn new_socket() -> io::Result<File> {
    // SAFETY: it involves no memory.
    owned(unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })
}

fn local_cid() -> io::Result<u32> {
    let device = File::open("/dev/vsock")?;
    let mut cid: libc::c_uint = 0;
    // SAFETY: it writes one number.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_LOCAL_CID as _, &raw mut cid) };
    done(result).map(|()| cid)
}

/// The file of a descriptor that a call has made.
fn owned(descriptor: libc::c_int) -> io::Result<File> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
