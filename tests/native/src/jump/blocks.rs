//! Per-CPU variables, blocks and rings in this process.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use guest_kernel::context::TaskContext;
use guest_kernel::percpu::Variables;
use guest_state::GuestVirtAddr;
use probe_engine::calls::layout as calls;
use probe_engine::condition::Context;
use probe_engine::detour::{Environment, Following};
use probe_engine::ring::layout::{
    CELL, CELLS, CONTEXT_LEN, HEAD, MAGIC, RING_LEN, RINGS, TAIL, position, return_header,
};

use super::memory::map;

/// The distance from the variables of one CPU to those of the next, and from block to block.
const APART: usize = 64 * 1024;
/// Offsets of the variables that detours read.
const TASK: usize = 0x1100;
const CPU: usize = 0x1108;
const INTERRUPT_STACK: usize = 0x1110;
/// Offsets of a task's numbers.
const PID: usize = 0x4e0;
const TGID: usize = 0x4e4;
const CANARY: usize = 0x4e8;
/// Offset of its name.
const COMM: usize = 0x4f0;
/// Bytes of a task.
const TASK_LEN: usize = 4096;
const LEN: u64 = RING_LEN;
const CALLS_LEN: usize = calls::WINDOW as usize;

/// A record as it is in a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The detour's number.
    pub detour: u32,
    /// True if it is of a call that has returned.
    pub returns: bool,
    /// The time stamp counter.
    pub tsc: u64,
    /// The current task's address.
    pub task: u64,
    /// The recorded registers; for a return, all registers and the other words of its record.
    pub registers: Vec<u64>,
}

/// The memory of some vCPUs.
pub struct Blocks {
    /// Variables, then the same number of blocks, then tasks.
    low: *mut u8,
    rings: *mut u8,
    /// The table of followed calls.
    calls: *mut u8,
    vcpus: usize,
}

/// The counts of a detour's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Calls under way.
    pub active: u32,
    /// Calls that weren't followed, or whose records were lost.
    pub missed: u32,
    /// Calls that were only counted.
    pub counted: u32,
    /// Calls that will never return.
    pub ended: u32,
}

// SAFETY: threads access the mappings only by volatile accesses and by detours.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

impl Blocks {
    /// Makes the memory of `vcpus` vCPUs, with empty rings. Everything except the rings is below 2 GiB.
    ///
    /// # Errors
    /// The system has no memory left for it.
    pub fn new(vcpus: u8) -> io::Result<Self> {
        let vcpus = usize::from(vcpus);
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let low = map(
            ptr::null_mut(),
            low_len(vcpus),
            write,
            libc::MAP_32BIT,
            None,
        )?;
        // As in the arena, there is room for the ring of every possible vCPU, and the address of the first is
        // arbitrary.
        let rings = map(ptr::null_mut(), rings_len(), libc::PROT_NONE, 0, None)?;
        let calls = map(ptr::null_mut(), CALLS_LEN, write, 0, None)?;
        let blocks = Self {
            low,
            rings,
            calls,
            vcpus,
        };
        for vcpu in 0..vcpus {
            let name = c"ring";
            // SAFETY: the name is a C string.
            let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: it was just opened, and nothing else owns it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // SAFETY: the descriptor is open.
            if unsafe { libc::ftruncate(fd.as_raw_fd(), LEN as i64) } != 0 {
                return Err(io::Error::last_os_error());
            }
            for half in 0..2 {
                let at = rings.wrapping_add((2 * vcpu + half) * LEN as usize);
                map(at, LEN as usize, write, libc::MAP_FIXED, Some(&fd))?;
            }
            blocks.put(blocks.block(vcpu) + HEAD, position(vcpu as u8, 0));
            blocks.put(blocks.block(vcpu) + TAIL, position(vcpu as u8, 0));
            blocks.put(blocks.gs_base(vcpu) + TASK as u64, blocks.task(vcpu));
            blocks.put(blocks.gs_base(vcpu) + CPU as u64, vcpu as u64);
            blocks.put(blocks.task(vcpu) + CANARY as u64, blocks.canary(vcpu));
        }
        Ok(blocks)
    }

    /// Where the variables of a vCPU are.
    pub fn gs_base(&self, vcpu: usize) -> u64 {
        self.low as u64 + (vcpu * APART) as u64
    }

    /// Sets the address of the top word of a vCPU's stack for interrupts.
    pub fn set_interrupt_stack(&self, vcpu: usize, top: u64) {
        self.put(self.gs_base(vcpu) + INTERRUPT_STACK as u64, top);
    }

    fn block(&self, vcpu: usize) -> u64 {
        self.gs_base(self.vcpus + vcpu)
    }

    /// Where the current task of a vCPU is.
    pub fn task(&self, vcpu: usize) -> u64 {
        self.gs_base(2 * self.vcpus) + (vcpu * TASK_LEN) as u64
    }

    /// The secret of the current task of a vCPU.
    pub fn canary(&self, vcpu: usize) -> u64 {
        0x5eed_0000_0000 + vcpu as u64
    }

    /// Returns what a detour has to know, if `gs_base` is the GS base of the first vCPU and those of the others follow
    /// at the usual distance.
    pub fn environment(&self, gs_base: u64) -> Environment {
        let variable = |at: usize| {
            let from_base = (self.gs_base(0) + at as u64).wrapping_sub(gs_base);
            i32::try_from(from_base.cast_signed()).ok()
        };
        Environment {
            block: self.block(0).wrapping_sub(gs_base),
            rings: GuestVirtAddr(self.rings as u64),
            variables: Variables {
                current_task: variable(TASK),
                cpu_number: variable(CPU),
                pid: Some(PID as u32),
                tgid: Some(TGID as u32),
                stack_canary: Some(CANARY as u32),
                comm: Some(COMM as u32),
                interrupt_stack: variable(INTERRUPT_STACK),
                ..Variables::default()
            },
            following: None,
            pointers: None,
        }
    }

    /// Returns what following calls needs, with the trampoline at this address.
    pub fn following(&self, trampoline: u64) -> Following {
        Following {
            table: GuestVirtAddr(self.calls as u64),
            trampoline: GuestVirtAddr(trampoline),
        }
    }

    /// Returns the counts of a detour's calls.
    pub fn tally(&self, detour: u32) -> Tally {
        let at = self.calls as u64 + calls::TALLIES + u64::from(detour) * calls::TALLY_LEN;
        let get = |offset: u64| (self.get(at + (offset & !7)) >> (8 * (offset & 7))) as u32;
        Tally {
            active: get(calls::ACTIVE),
            missed: get(calls::MISSED),
            counted: get(calls::COUNTED),
            ended: get(calls::ENDED),
        }
    }

    /// How many calls are in the table.
    pub fn calls(&self) -> usize {
        let start = self.calls as u64;
        let keys = (start..start + calls::KEYS_LEN).step_by(8);
        keys.filter(|at| self.get(*at) != 0).count()
    }

    /// Sets how many calls of a detour are under way.
    pub fn set_active(&self, detour: u32, active: u32) {
        let at = calls::TALLIES + u64::from(detour) * calls::TALLY_LEN + calls::ACTIVE;
        self.put(self.calls as u64 + at, active.into());
    }

    /// Writes a call that isn't really under way into an entry of the table.
    pub fn set_call(&self, index: u64, slot: u64, word: u32) {
        let start = self.calls as u64;
        let call = start + calls::CALLS + index * calls::CALL_LEN;
        self.put(call + calls::WORD, word.into());
        self.put(start + index * 8, slot);
    }

    /// Sets the level of a call, and its return address before the first of ours.
    pub fn set_origin(&self, index: u64, level: u32, origin: u64) {
        let call = self.calls as u64 + calls::CALLS + index * calls::CALL_LEN;
        self.put(call + calls::LEVEL, level.into());
        self.put(call + calls::ORIGIN, origin);
    }

    /// Makes a call one of a vCPU's current task.
    pub fn set_task(&self, index: u64, vcpu: usize) {
        let call = self.calls as u64 + calls::CALLS + index * calls::CALL_LEN;
        self.put(call + calls::TASK, self.task(vcpu));
        self.put(call + calls::CANARY, self.canary(vcpu));
    }

    /// Returns the indexes in the table of calls whose return address is at `slot`.
    pub fn calls_at(&self, slot: u64) -> Vec<u64> {
        let start = self.calls as u64;
        let ours = |index: &u64| self.get(start + index * 8) == slot;
        (0..calls::BUCKETS * calls::WAYS).filter(ours).collect()
    }

    /// Makes a call of the detour count nowhere, as the host does when its probe is removed.
    pub fn orphan(&self, index: u64, detour: u32) {
        let word = self.calls as u64 + calls::CALLS + index * calls::CALL_LEN + calls::WORD;
        self.put(word, self.get(word) | u64::from(calls::ORPHAN));
        self.set_active(detour, self.tally(detour).active - 1);
    }

    /// Empties the table, and sets the counts of a detour to 0.
    pub fn clear_calls(&self, detour: u32) {
        let start = self.calls as u64;
        for at in (start..start + calls::KEYS_LEN).step_by(8) {
            self.put(at, 0);
        }
        let at = start + calls::TALLIES + u64::from(detour) * calls::TALLY_LEN;
        self.put(at, 0);
        self.put(at + 8, 0);
    }

    /// Makes this thread a vCPU.
    ///
    /// # Errors
    /// The system doesn't let the GS base be set.
    pub fn enter(&self, vcpu: usize) -> io::Result<()> {
        const ARCH_SET_GS: libc::c_long = 0x1001;
        // SAFETY: neither Rust nor the C library use GS on x86-64.
        let status =
            unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, self.gs_base(vcpu)) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Sets what conditions read on the first vCPU.
    pub fn set_context(&self, context: Context) {
        let numbers = |low: Option<u32>, high: Option<u32>| {
            u64::from(low.unwrap_or(0)) | u64::from(high.unwrap_or(0)) << 32
        };
        self.put(self.gs_base(0) + CPU as u64, context.cpu.into());
        self.put(
            self.task(0) + PID as u64,
            numbers(context.pid, context.tgid),
        );
    }

    /// Sets what a record has of the first vCPU's task.
    pub fn describe_task(&self, context: &TaskContext) {
        self.set_context(Context {
            cpu: 0,
            pid: Some(context.pid),
            tgid: Some(context.tgid),
        });
        let (words, _) = context.comm.as_chunks();
        for (word, at) in words.iter().zip((COMM..).step_by(8)) {
            self.put(self.task(0) + at as u64, u64::from_le_bytes(*word));
        }
    }

    /// Returns the words that a record has of a vCPU's task.
    pub fn context_words(&self, vcpu: usize) -> [u64; CONTEXT_LEN as usize / 8] {
        let word = |at: usize| self.get(self.task(vcpu) + at as u64);
        [word(PID), word(COMM), word(COMM + 8), 1 << 31, 0]
    }

    /// A cell.
    pub fn cell(&self, vcpu: usize, cell: u32) -> u32 {
        self.get(self.block(vcpu) + CELLS + u64::from(cell) * CELL) as u32
    }

    /// Sets two cells, the first of which has an even number, to 0.
    pub fn clear_cells(&self, vcpu: usize, cell: u32) {
        self.put(self.block(vcpu) + CELLS + u64::from(cell) * CELL, 0);
    }

    /// HEAD of a vCPU's block.
    pub fn head(&self, vcpu: usize) -> u64 {
        self.get(self.block(vcpu) + HEAD)
    }

    /// Sets how many bytes were ever written to and read from a vCPU's ring.
    pub fn set_position(&self, vcpu: usize, head: u64, tail: u64) {
        self.put(self.block(vcpu) + HEAD, position(vcpu as u8, head));
        self.put(self.block(vcpu) + TAIL, position(vcpu as u8, tail));
    }

    /// Makes a vCPU's TAIL one of another vCPU's ring.
    pub fn set_tail_of_other(&self, vcpu: usize, other: u8, tail: u64) {
        self.put(self.block(vcpu) + TAIL, position(other, tail));
    }

    /// Frees all space of a ring without reading it.
    pub fn discard(&self, vcpu: usize) {
        self.put(self.block(vcpu) + TAIL, self.head(vcpu));
    }

    /// Takes a vCPU's records out of its ring, and clears their space.
    pub fn drain(&self, vcpu: usize) -> Vec<Record> {
        let mut records = Vec::new();
        let mut tail = self.get(self.block(vcpu) + TAIL);
        let head = self.head(vcpu);
        let ring = self.rings as u64 + vcpu as u64 * 2 * LEN;
        while tail < head {
            let at = ring + (tail & (LEN - 1));
            let header = self.get(at);
            let words = header >> 32 & 0xff;
            if header >> 48 != MAGIC || words < 3 {
                break;
            }
            let values: Vec<u64> = (0..words).map(|word| self.get(at + 8 * word)).collect();
            for word in 0..words {
                self.put(at + 8 * word, 0);
            }
            records.push(Record {
                detour: header as u32,
                returns: header == return_header(header as u32, words as u8),
                tsc: values[1],
                task: values[2],
                registers: values[3..].to_vec(),
            });
            tail += 8 * words;
            self.put(self.block(vcpu) + TAIL, tail);
        }
        records
    }

    fn put(&self, at: u64, value: u64) {
        self.check(at);
        // SAFETY: as was just checked, it is in one of the mappings, writable, and aligned.
        unsafe { (at as *mut u64).write_volatile(value) };
    }

    fn get(&self, at: u64) -> u64 {
        self.check(at);
        // SAFETY: as was just checked, it is in one of the mappings, readable, and aligned.
        unsafe { (at as *const u64).read_volatile() }
    }

    fn check(&self, at: u64) {
        let low = at.wrapping_sub(self.low as u64) < low_len(self.vcpus) as u64;
        let ring = at.wrapping_sub(self.rings as u64) < self.vcpus as u64 * 2 * LEN;
        let call = at.wrapping_sub(self.calls as u64) < CALLS_LEN as u64;
        assert!((low || ring || call) && at.is_multiple_of(4), "{at:#x}");
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and `self` was the last to refer to it.
        let _status = unsafe { libc::munmap(self.low.cast(), low_len(self.vcpus)) };
        // SAFETY: as above.
        let _status = unsafe { libc::munmap(self.rings.cast(), rings_len()) };
        // SAFETY: as above.
        let _status = unsafe { libc::munmap(self.calls.cast(), CALLS_LEN) };
    }
}

fn low_len(vcpus: usize) -> usize {
    2 * vcpus * APART + vcpus * TASK_LEN
}

fn rings_len() -> usize {
    (RINGS * 2 * LEN) as usize
}
