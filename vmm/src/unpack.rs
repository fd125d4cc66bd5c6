//! Makes a bzImage unpack itself, up to the first instruction of the kernel inside.
//!
//! The decompressor decides where the kernel goes (KASLR), so the monitor doesn't know the address before the jump to
//! it. An int3 in the place of that jump stops the decompressor. The decompressor moves itself before it unpacks, and
//! the int3 with it.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use guest_state::x86_64::INT3;
use guest_state::{
    Action, Debugging, GuestMemory, GuestPhysAddr, MemoryError, Trap, TrapHandler, Vcpu, VcpuError,
};
use parking_lot::{Condvar, Mutex};
use thiserror::Error;

use crate::devices::console::Console;
use crate::ending::Ending;
use crate::vcpu::{self, KvmVcpu, Shared, kick};
use crate::x86_64::boot::last_jump::JUMP;

/// The time that a decompressor has: hundreds of times what it takes on a processor, and more than it takes on an
/// emulated one.
const LIMIT: Duration = Duration::from_secs(180);
/// The most that an error tells of the console, in bytes.
const CONSOLE_TAIL: usize = 200;

/// Why a bzImage did not come to its kernel.
#[derive(Debug, Error)]
pub enum UnpackError {
    /// It has not come there in time.
    #[error(
        "the kernel's decompressor did not come to an end in {} s{console}; give the guest more memory, or \
         boot the kernel as ELF (`--boot elf`), without a decompressor",
        .limit.as_secs()
    )]
    TooLong {
        /// The time that it had.
        limit: Duration,
        /// What it said, with an introduction; empty if nothing.
        console: String,
    },
    /// The guest has ended.
    #[error(
        "the guest has ended while the kernel's decompressor ran: {ending}{console}; boot the kernel as ELF \
         (`--boot elf`), without a decompressor"
    )]
    Ended {
        /// How.
        ending: Ending,
        /// What it said, with an introduction; empty if nothing.
        console: String,
    },
    /// KVM can't stop the decompressor.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// The decompressor isn't in guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// No thread to watch the time.
    #[error("the host has no thread to watch the kernel's decompressor: {0}")]
    Thread(std::io::Error),
}

/// Runs the boot CPU of a guest that hasn't been started, on the calling thread, until its decompressor is about to
/// make its last jump, which is at `jump` now. Returns where the jump leads. The boot CPU is there then, and the
/// guest is as if it hadn't been started.
///
/// # Errors
/// See [`UnpackError`]; the guest may have ended.
pub(crate) fn unpack(
    boot_cpu: &Mutex<KvmVcpu>,
    shared: &Shared,
    console: &Console,
    jump: GuestPhysAddr,
) -> Result<GuestPhysAddr, UnpackError> {
    shared.ram.write(jump, &[INT3])?;
    let breakpoints = |breakpoints| {
        boot_cpu.lock().set_debugging(&Debugging {
            breakpoints,
            watchpoints: Vec::new(),
        })
    };
    breakpoints(true)?;
    kick::install_handler();
    let arrival = Arrival::default();
    let watch = Watch::default();
    shared.gate.set_paused(false);
    let timed_out = thread::scope(|scope| {
        let watching = thread::Builder::new()
            .name("unpack".to_owned())
            .spawn_scoped(scope, || watch.end_guest_after(LIMIT, shared));
        let watching = watching.map_err(UnpackError::Thread)?;
        vcpu::run_until_paused(0, boot_cpu, shared, &arrival);
        watch.done();
        Ok::<_, UnpackError>(watching.join().unwrap_or(false))
    })?;
    let Some(entry) = arrival.0.get() else {
        let console = last_words(console);
        return Err(match shared.end.get() {
            Some(ending) if !timed_out => UnpackError::Ended { ending, console },
            _ => UnpackError::TooLong {
                limit: LIMIT,
                console,
            },
        });
    };
    breakpoints(false)?;
    Ok(*entry)
}

/// The trap handler that waits for the decompressor's last jump, and keeps where it leads.
#[derive(Default)]
struct Arrival(OnceLock<GuestPhysAddr>);

impl TrapHandler for Arrival {
    fn trap(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory, trap: Trap) -> Action {
        let registers = *vcpu.registers();
        // The decompressor maps each address to itself.
        let at = GuestPhysAddr(registers.rip);
        let mut bytes = [0; JUMP.len()];
        let is_jump = memory.read(at, &mut bytes).is_ok() && bytes == [INT3, JUMP[1]];
        if trap != Trap::Breakpoint || !is_jump || memory.write(at, &JUMP).is_err() {
            return Action::Reinject;
        }
        let _first = self.0.set(GuestPhysAddr(registers.rax));
        vcpu.registers_mut().rip = registers.rax;
        vcpu.pause_guest();
        Action::Resume
    }

    fn before_step(&self, _vcpu: &mut dyn Vcpu, _memory: &dyn GuestMemory) -> bool {
        false
    }
}

/// Watches the time of a decompressor.
#[derive(Default)]
struct Watch {
    is_done: Mutex<bool>,
    changed: Condvar,
}

impl Watch {
    /// Ends the guest unless the decompressor is done in time. Returns true if it wasn't.
    fn end_guest_after(&self, limit: Duration, shared: &Shared) -> bool {
        let end = Instant::now() + limit;
        let mut is_done = self.is_done.lock();
        while !*is_done {
            if self.changed.wait_until(&mut is_done, end).timed_out() {
                break;
            }
        }
        if !*is_done {
            shared.end.end(Ending::Killed);
        }
        !*is_done
    }

    fn done(&self) {
        *self.is_done.lock() = true;
        self.changed.notify_all();
    }
}

/// The end of what the guest has said, for an error; empty if nothing.
fn last_words(console: &Console) -> String {
    let said = console.read(0).bytes;
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(CONSOLE_TAIL)..]);
    let said: Vec<_> = said.split_whitespace().collect();
    match said.is_empty() {
        true => String::new(),
        false => format!(" (its last words: {:?})", said.join(" ")),
    }
}
