//! BPF programs of a few instructions that count in a map, at kprobes and at function entries and
//! returns: `bpf(2)`, `perf_event_open(2)` and Linux `include/uapi/linux/bpf.h`.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde_json::Value;

use super::{Tool, btf::Types};

/// Commands of `bpf(2)`.
const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const PROG_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
/// Types of maps and programs.
const ARRAY: u32 = 2;
const KPROBE: u32 = 2;
const TRACING: u32 = 26;
/// Attach types of a tracing program.
pub const FENTRY: u32 = 24;
pub const FEXIT: u32 = 25;

/// A program, its map, and how it is attached.
pub struct Program {
    map: OwnedFd,
    program: OwnedFd,
    attached: Option<OwnedFd>,
    at: At,
}

enum At {
    Probe { place: String, returns: bool },
    Trampoline,
}

impl Program {
    /// A program at a kprobe or kretprobe.
    pub fn probe(place: &str, returns: bool) -> io::Result<Self> {
        let at = At::Probe {
            place: place.into(),
            returns,
        };
        Self::new(at, KPROBE, 0, 0)
    }

    /// A program at the entry or the return of a function, by a trampoline of its own.
    pub fn trampoline(function: &str, kind: u32) -> io::Result<Self> {
        let id = Types::of_kernel()?.function(function)?;
        Self::new(At::Trampoline, TRACING, kind, id)
    }

    fn new(at: At, kind: u32, attach_kind: u32, function: u32) -> io::Result<Self> {
        // map_type, key_size, value_size, max_entries.
        let map = bpf(
            MAP_CREATE,
            &Attr::new().u32(0, ARRAY).u32(4, 4).u32(8, 8).u32(12, 1),
        )?;
        let code = counter(map.as_raw_fd());
        let license = c"GPL";
        let mut log = vec![0_u8; 1 << 16];
        // Fields in the order of `union bpf_attr`.
        let attr = Attr::new()
            .u32(0, kind)
            .u32(4, code.len() as u32)
            .u64(8, code.as_ptr() as u64)
            .u64(16, license.as_ptr() as u64)
            .u32(24, 1)
            .u32(28, log.len() as u32)
            .u64(32, log.as_mut_ptr() as u64)
            .u32(68, attach_kind)
            .u32(108, function);
        let program = bpf(PROG_LOAD, &attr).map_err(|error| {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(0);
            let log = String::from_utf8_lossy(&log[..end]);
            io::Error::other(format!("the BPF program isn't loaded: {error}: {log}"))
        })?;
        Ok(Self {
            map,
            program,
            attached: None,
            at,
        })
    }
}

impl Tool for Program {
    fn on(&mut self) -> io::Result<()> {
        let attached = match &self.at {
            At::Probe { place, returns } => {
                let event = perf_probe(place, *returns)?;
                perf_ioctl(&event, SET_BPF, self.program.as_raw_fd().into())?;
                perf_ioctl(&event, ENABLE, 0)?;
                event
            }
            At::Trampoline => {
                let program = self.program.as_raw_fd() as u32;
                bpf(RAW_TRACEPOINT_OPEN, &Attr::new().u32(8, program))?
            }
        };
        self.attached = Some(attached);
        Ok(())
    }

    fn off(&mut self) -> io::Result<()> {
        self.attached = None;
        Ok(())
    }

    fn seen(&mut self, _: &Value) -> io::Result<u64> {
        let (key, mut value) = (0_u32, 0_u64);
        let attr = Attr::new()
            .u32(0, self.map.as_raw_fd() as u32)
            .u64(8, &raw const key as u64)
            .u64(16, &raw mut value as u64);
        bpf_raw(MAP_LOOKUP, &attr)?;
        Ok(value)
    }

    fn go(&mut self) -> io::Result<()> {
        self.off()
    }
}

/// `union bpf_attr`: zeros except for the fields that are set.
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Self {
        Self([0; 128])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }
}

fn bpf_raw(command: libc::c_int, attr: &Attr) -> io::Result<libc::c_long> {
    // SAFETY: the attribute and all that its addresses lead to live for the call, and are as large as
    // the other fields say.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr.0.as_ptr(), attr.0.len()) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// Makes a command that opens something.
fn bpf(command: libc::c_int, attr: &Attr) -> io::Result<OwnedFd> {
    let opened = bpf_raw(command, attr)?;
    // SAFETY: the kernel has just opened it for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as libc::c_int) })
}

/// `struct bpf_insn` as one number.
const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    code as u64
        | (dst as u64 | (src as u64) << 4) << 8
        | (off as u16 as u64) << 16
        | (imm as u32 as u64) << 32
}

/// A program that adds one to the map's only value, on whichever CPU it runs.
fn counter(map: libc::c_int) -> Vec<u64> {
    const PSEUDO_MAP_FD: u8 = 1;
    const LOOKUP: i32 = 1;
    vec![
        insn(0x62, 10, 0, -4, 0),             // *(u32 *)(r10 - 4) = 0
        insn(0xbf, 2, 10, 0, 0),              // r2 = r10
        insn(0x07, 2, 0, 0, -4),              // r2 += -4
        insn(0x18, 1, PSEUDO_MAP_FD, 0, map), // r1 = map
        0,                                    // its upper half
        insn(0x85, 0, 0, 0, LOOKUP),          // r0 = lookup(r1, r2)
        insn(0x15, 0, 0, 2, 0),               // if r0 == 0 goto the end
        insn(0xb7, 1, 0, 0, 1),               // r1 = 1
        insn(0xdb, 0, 1, 0, 0),               // lock *(u64 *)r0 += r1
        insn(0xb7, 0, 0, 0, 0),               // r0 = 0
        insn(0x95, 0, 0, 0, 0),               // exit
    ]
}

/// `PERF_EVENT_IOC_SET_BPF` and `PERF_EVENT_IOC_ENABLE`.
const SET_BPF: libc::c_ulong = 0x4004_2408;
const ENABLE: libc::c_ulong = 0x2400;

/// Opens a kprobe or kretprobe as a perf event of all processes.
fn perf_probe(place: &str, returns: bool) -> io::Result<OwnedFd> {
    const TYPE: &str = "/sys/bus/event_source/devices/kprobe/type";
    /// `PERF_ATTR_SIZE_VER1`.
    const SIZE: u32 = 72;
    let kind: u32 = fs::read_to_string(TYPE)?
        .trim()
        .parse()
        .map_err(io::Error::other)?;
    let (function, offset) = place.split_once('+').unwrap_or((place, "0x0"));
    let offset =
        u64::from_str_radix(offset.trim_start_matches("0x"), 16).map_err(io::Error::other)?;
    let name = CString::new(function)?;
    // `struct perf_event_attr`: type, size, config, config1 (the name), config2 (the offset).
    let attr = Attr::new()
        .u32(0, kind)
        .u32(4, SIZE)
        .u64(8, returns.into())
        .u64(56, name.as_ptr() as u64)
        .u64(64, offset);
    let (any_process, first_cpu, no_group, close_on_exec) = (-1, 0, -1, 8);
    // SAFETY: the attribute is as large as it says, and it and the name live for the call.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr.0.as_ptr(),
            any_process,
            first_cpu,
            no_group,
            close_on_exec,
        )
    };
    if opened == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as libc::c_int) })
}

fn perf_ioctl(event: &OwnedFd, request: libc::c_ulong, argument: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open, and neither request takes an address.
    match unsafe { libc::ioctl(event.as_raw_fd(), request, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
