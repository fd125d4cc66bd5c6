//! Connections of `AF_VSOCK` between the guest and the host, both ways at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::{numbers, step, threads};
use crate::plan::Plan;

/// `VMADDR_CID_HOST` and `VMADDR_CID_ANY` (`include/uapi/linux/vm_sockets.h`).
const HOST: u32 = 2;
const ANY: u32 = u32::MAX;
/// `IOCTL_VM_SOCKETS_GET_LOCAL_CID`: which CID the guest has.
const GET_LOCAL_CID: libc::c_ulong = 0x7b9;
/// Most bytes that a connection carries each way; one in so many carries all of them, the others few.
const MOST: usize = 600_000;
const FEW: usize = 3000;
const ONE_IN: u64 = 50;
/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 128;

/// What was done, in calls of the kernel.
#[derive(Default)]
struct Counts {
    connects: AtomicU64,
    accepts: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    /// Those of `writes` in which the kernel was to send pages as they are.
    uncopied: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// From each CPU, `count` connections to the port `at` of the host, each of which has to bring back what was sent; and
/// from there as many connections to the guest's next port, which bring back what they are sent.
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
    let counts = Counts::default();
    threads::on_each_cpu(|cpu| {
        thread::scope(|scope| {
            // It is bound to the same CPU.
            let served =
                scope.spawn(|| (0..plan.count).try_for_each(|_| serve(&listener, &counts)));
            let mut random = numbers::from(plan.seed + cpu as u64);
            let sent = (0..plan.count).try_for_each(|_| send(port, random(), &counts));
            let served = served.join();
            sent.and(served.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
        })
    })?;
    Ok(json!({
        "connects": counts.connects.into_inner(),
        "accepts": counts.accepts.into_inner(),
        "writes": counts.writes.into_inner(),
        "reads": counts.reads.into_inner(),
        "bytes": counts.bytes.into_inner(),
        "uncopied": counts.uncopied.into_inner(),
    }))
}

/// Sends bytes drawn from `random` to the host, and compares what comes back.
fn send(port: u32, random: u64, counts: &Counts) -> io::Result<()> {
    let len = match random % ONE_IN {
        0 => MOST,
        _ => (random >> 32) as usize % FEW,
    };
    let mut next = numbers::from(random);
    let bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| next().to_le_bytes())
        .take(len)
        .collect();
    let mut socket = connect(port)?;
    Counts::add(&counts.connects, 1);
    let mut back = vec![0; len];
    thread::scope(|scope| {
        // What comes back need not wait until all is sent.
        let written = scope.spawn(|| write(&socket, &bytes, counts));
        let mut socket = &socket;
        let read = fill(&mut socket, &mut back, counts);
        let written = written.join();
        read.and(written.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
    })?;
    if back != bytes {
        return Err(io::Error::other("other bytes came back"));
    }
    Counts::add(&counts.bytes, len as u64);
    // Then the end comes back as well.
    shut_writing(&socket)?;
    Counts::add(&counts.reads, 1);
    match socket.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("more came back than was sent")),
    }
}

/// Writes all, and has the kernel send the pages of long data as they are, if it can.
fn write(mut socket: &File, bytes: &[u8], counts: &Counts) -> io::Result<()> {
    let mut rest = bytes;
    let is_uncopied = bytes.len() == MOST && enable_uncopied(socket);
    while !rest.is_empty() {
        let sent = if is_uncopied {
            Counts::add(&counts.uncopied, 1);
            send_uncopied(socket, rest)?
        } else {
            socket.write(rest)?
        };
        Counts::add(&counts.writes, 1);
        rest = &rest[sent..];
    }
    Ok(())
}

fn fill(socket: &mut &File, bytes: &mut [u8], counts: &Counts) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        Counts::add(&counts.reads, 1);
        match socket.read(&mut bytes[at..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => at += count,
        }
    }
    Ok(())
}

/// Accepts a connection, and sends back what comes until its end.
fn serve(listener: &File, counts: &Counts) -> io::Result<()> {
    // SAFETY: no address is asked for.
    let socket = unsafe {
        libc::accept(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    let mut socket = owned(socket)?;
    Counts::add(&counts.accepts, 1);
    let mut bytes = vec![0; 64 << 10];
    loop {
        Counts::add(&counts.reads, 1);
        let count = socket.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            Counts::add(&counts.writes, 1);
            let sent = socket.write(rest)?;
            rest = &rest[sent..];
        }
        Counts::add(&counts.bytes, count as u64);
    }
}

/// Whether the kernel can send pages as they are (`SO_ZEROCOPY`; since Linux 6.7 for these sockets).
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

fn shut_writing(socket: &File) -> io::Result<()> {
    // SAFETY: it involves no memory.
    done(unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) })
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
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
