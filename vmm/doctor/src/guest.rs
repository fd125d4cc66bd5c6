//! Guests of a few bytes, each with a thread and a time limit of its own.
//!
//! A guest has one vCPU in 64-bit mode at CPL 0 and 2 MiB of memory, mapped as
//! they lie. Every exception vector of its interrupt table leads to an `out`, so
//! that an exception shows as a port exit. It is meant to end with `hlt`, which
//! exits as there is no in-kernel interrupt controller.

use std::{
    cell::Cell,
    ptr,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use kvm_bindings::{kvm_guest_debug, kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use libc::{c_int, c_void, siginfo_t};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler, unblock_signal};

use crate::{
    error::{GuestError, MAX_HANGS, MEMORY_SIZE, failed},
    setup::{CODE, EXCEPTION_PORT, EXCEPTIONS, WITH_ERROR_CODE, memory_with, set_up},
};

/// How long a guest may take.
const LIMIT: Duration = Duration::from_secs(2);
/// How long a kicked vCPU may take to leave guest mode.
const GRACE: Duration = Duration::from_millis(500);
/// What made the guest leave guest mode.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GuestExit {
    /// `hlt`.
    Halted,
    /// `out` to a port.
    Port(u16),
    /// An exception reached the guest's own handler.
    Exception { vector: u8, return_address: u64 },
    /// `KVM_EXIT_DEBUG`.
    Debug { exception: u32, pc: u64, dr6: u64 },
    /// `KVM_EXIT_INTERNAL_ERROR`.
    InternalError { suberror: u32 },
    /// A triple fault.
    Shutdown,
    /// Any other exit.
    Other(String),
}

/// Runs guests one after another.
pub(crate) struct Runner {
    kvm: Arc<Kvm>,
    hangs: Cell<u32>,
    limit: Duration,
}

impl Runner {
    pub(crate) fn new(kvm: Arc<Kvm>) -> Self {
        install_kick();
        Self {
            kvm,
            hangs: Cell::new(0),
            limit: LIMIT,
        }
    }

    /// Makes a guest of `code` and gives it to `job`, on a thread of its own. One
    /// that doesn't end in time is kicked out; one that ignores this is left
    /// behind with its thread.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        code: &[u8],
        job: impl FnOnce(&mut Guest) -> Result<T, GuestError> + Send + 'static,
    ) -> Result<T, GuestError> {
        if self.hangs.get() >= MAX_HANGS {
            return Err(GuestError::GaveUp);
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = mpsc::channel();
        let (kvm, code, cancel) = (Arc::clone(&self.kvm), code.to_vec(), Arc::clone(&cancelled));
        let thread = thread::Builder::new()
            .name("doctor-vcpu".into())
            .spawn(move || {
                let answer = Guest::new(&kvm, &code, cancel).and_then(|mut guest| job(&mut guest));
                // The receiver is gone if it took too long.
                let _ = sender.send(answer);
            })
            .map_err(GuestError::Thread)?;
        let answer = receiver.recv_timeout(self.limit).or_else(|error| {
            cancelled.store(true, Ordering::SeqCst);
            // A thread that has ended needs no kick.
            let _ = thread.kill(kick_signal());
            match error {
                mpsc::RecvTimeoutError::Timeout => receiver.recv_timeout(GRACE),
                mpsc::RecvTimeoutError::Disconnected => Err(error),
            }
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(GuestError::Hangs),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(GuestError::Lost),
        };
        if matches!(answer, Err(GuestError::Hangs)) {
            self.hangs.set(self.hangs.get() + 1);
        }
        answer
    }
}

/// A guest with one vCPU, on the vCPU's thread.
pub(crate) struct Guest {
    // Before the memory, which its VM uses.
    vcpu: VcpuFd,
    _vm: VmFd,
    memory: GuestMemoryMmap,
    cancelled: Arc<AtomicBool>,
}

impl Guest {
    fn new(kvm: &Kvm, code: &[u8], cancelled: Arc<AtomicBool>) -> Result<Self, GuestError> {
        let memory = memory_with(code)?;
        let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
        let host_address = memory
            .get_host_address(GuestAddress(0))
            .map_err(|e| GuestError::Memory(e.to_string()))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: MEMORY_SIZE as u64,
            userspace_addr: host_address as u64,
        };
        // SAFETY: the region is a mapping of just this size, which `Guest` keeps until the VM is
        // gone, and there is no Rust reference into it.
        unsafe { vm.set_user_memory_region(region) }
            .map_err(failed("KVM_SET_USER_MEMORY_REGION"))?;
        let mut vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
        set_up(kvm, &vcpu)?;
        IMMEDIATE_EXIT.set(&raw mut vcpu.get_kvm_run().immediate_exit);
        // The mask is inherited from the thread that asked for the report.
        let _ = unblock_signal(kick_signal());
        Ok(Self {
            vcpu,
            _vm: vm,
            memory,
            cancelled,
        })
    }

    /// Runs until the guest leaves guest mode for a reason of its own.
    pub(crate) fn run(&mut self) -> Result<GuestExit, GuestError> {
        loop {
            if self.cancelled.load(Ordering::SeqCst) {
                return Err(GuestError::Hangs);
            }
            let stop = match self.vcpu.run() {
                Ok(VcpuExit::Hlt) => GuestExit::Halted,
                Ok(VcpuExit::IoOut(port, _)) => return self.port_stop(port),
                Ok(VcpuExit::Debug(debug)) => GuestExit::Debug {
                    exception: debug.exception,
                    pc: debug.pc,
                    dr6: debug.dr6,
                },
                Ok(VcpuExit::InternalError) => {
                    let run = self.vcpu.get_kvm_run();
                    // SAFETY: the exit reason says that this is the field in use.
                    let error = unsafe { run.__bindgen_anon_1.internal };
                    GuestExit::InternalError {
                        suberror: error.suberror,
                    }
                }
                Ok(VcpuExit::Shutdown) => GuestExit::Shutdown,
                Ok(VcpuExit::Intr) => continue,
                Ok(other) => GuestExit::Other(format!("{other:?}")),
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => continue,
                Err(error) => return Err(failed("KVM_RUN")(error)),
            };
            return Ok(stop);
        }
    }

    fn port_stop(&self, port: u16) -> Result<GuestExit, GuestError> {
        let vector = match port.checked_sub(EXCEPTION_PORT) {
            Some(vector @ 0..EXCEPTIONS) => vector as u8,
            _ => return Ok(GuestExit::Port(port)),
        };
        let error_code = if WITH_ERROR_CODE.contains(&vector) {
            8
        } else {
            0
        };
        let frame = GuestAddress(self.registers()?.rsp.wrapping_add(error_code));
        let return_address = self
            .memory
            .read_obj(frame)
            .map_err(|e| GuestError::Memory(e.to_string()))?;
        Ok(GuestExit::Exception {
            vector,
            return_address,
        })
    }

    pub(crate) fn vcpu(&self) -> &VcpuFd {
        &self.vcpu
    }

    pub(crate) fn registers(&self) -> Result<kvm_regs, GuestError> {
        self.vcpu.get_regs().map_err(failed("KVM_GET_REGS"))
    }

    pub(crate) fn set_registers(&self, registers: &kvm_regs) -> Result<(), GuestError> {
        self.vcpu
            .set_regs(registers)
            .map_err(failed("KVM_SET_REGS"))
    }

    /// `KVM_SET_GUEST_DEBUG`, with `KVM_GUESTDBG_` flags.
    pub(crate) fn debug(&self, debug: &kvm_guest_debug) -> Result<(), GuestError> {
        self.vcpu
            .set_guest_debug(debug)
            .map_err(failed("KVM_SET_GUEST_DEBUG"))
    }

    /// Injects #BP, a software exception.
    pub(crate) fn inject_breakpoint_event(&self) -> Result<(), GuestError> {
        let mut events = self
            .vcpu
            .get_vcpu_events()
            .map_err(failed("KVM_GET_VCPU_EVENTS"))?;
        events.exception.injected = 1;
        events.exception.nr = 3;
        events.exception.has_error_code = 0;
        self.vcpu
            .set_vcpu_events(&events)
            .map_err(failed("KVM_SET_VCPU_EVENTS"))
    }

    /// A stop in words.
    pub(crate) fn describe(&self, stop: &GuestExit) -> Result<String, GuestError> {
        Ok(match stop {
            GuestExit::Halted => "ran to its end".into(),
            GuestExit::Port(port) => format!("output to port {port:#x}"),
            GuestExit::Exception {
                vector,
                return_address,
            } => {
                format!(
                    "the guest got {} at {}",
                    exception_name(*vector),
                    place(*return_address)
                )
            }
            GuestExit::Debug { exception, pc, dr6 } => format!(
                "KVM_EXIT_DEBUG, exception {exception}, at {}, DR6 {dr6:#x}",
                place(*pc)
            ),
            GuestExit::InternalError { suberror } => {
                let meaning = match suberror {
                    1 => " (emulation)",
                    2 => " (exceptions at once)",
                    3 => " (event delivery)",
                    _ => "",
                };
                let rip = place(self.registers()?.rip);
                format!("KVM_EXIT_INTERNAL_ERROR, suberror {suberror}{meaning}, at {rip}")
            }
            GuestExit::Shutdown => "triple fault".into(),
            GuestExit::Other(exit) => format!("an exit that has no place here: {exit}"),
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(ptr::null_mut());
    }
}

/// An address in the guest, as an offset from its first instruction.
pub(crate) fn place(address: u64) -> String {
    match address.checked_sub(CODE) {
        Some(offset @ 0..0x1000) => format!("code+{offset}"),
        _ => format!("{address:#x}"),
    }
}

fn exception_name(vector: u8) -> String {
    match vector {
        1 => "#DB".into(),
        3 => "#BP".into(),
        6 => "#UD".into(),
        7 => "#NM".into(),
        8 => "#DF".into(),
        10 => "#TS".into(),
        11 => "#NP".into(),
        12 => "#SS".into(),
        13 => "#GP".into(),
        14 => "#PF".into(),
        16 => "#MF".into(),
        17 => "#AC".into(),
        19 => "#XM".into(),
        _ => format!("exception {vector}"),
    }
}

thread_local! {
    /// `kvm_run.immediate_exit` of this thread's vCPU, or null.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// The signal that kicks a vCPU. It isn't the VMM's own, which has another handler.
fn kick_signal() -> c_int {
    SIGRTMIN() + 1
}

extern "C" fn on_kick(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let immediate_exit = IMMEDIATE_EXIT.get();
    if !immediate_exit.is_null() {
        // SAFETY: non-null only while a `Guest` lives on this very thread, and its
        // vCPU's mapping with it; a byte is written whole.
        unsafe { immediate_exit.write_volatile(1) };
    }
}

fn install_kick() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // Fails only for a signal that isn't one; guests that hang are then left behind.
        let _ = register_signal_handler(kick_signal(), on_kick);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner() -> Option<Runner> {
        let kvm = Kvm::new()
            .map_err(|error| println!("skipped: no KVM here: {error}"))
            .ok()?;
        Some(Runner::new(Arc::new(kvm)))
    }

    #[test]
    fn a_guest_that_runs_on_without_end_is_kicked_out_and_said_to_hang() {
        let Some(mut runner) = runner() else { return };
        runner.limit = Duration::from_millis(50);
        // jmp to itself
        let outcome = runner.run(&[0xeb, 0xfe], Guest::run);
        assert!(matches!(outcome, Err(GuestError::Hangs)), "{outcome:?}");
        assert_eq!(runner.hangs.get(), 1);
        runner.limit = LIMIT;
        let after = runner.run(&[0xf4], Guest::run);
        assert!(matches!(after, Ok(GuestExit::Halted)), "{after:?}");
    }

    #[test]
    fn no_guest_is_tried_after_too_many_hung() {
        let Some(runner) = runner() else { return };
        runner.hangs.set(MAX_HANGS);
        let outcome = runner.run(&[0xf4], Guest::run);
        assert!(matches!(outcome, Err(GuestError::GaveUp)), "{outcome:?}");
    }

    #[test]
    fn an_exception_shows_with_its_vector_and_address() {
        let Some(runner) = runner() else { return };
        // ud2; hlt, and a read of an address that isn't mapped; hlt
        let ud = runner.run(&[0x0f, 0x0b, 0xf4], Guest::run);
        let stop = GuestExit::Exception {
            vector: 6,
            return_address: CODE,
        };
        assert_eq!(ud.unwrap(), stop);
        let pf = runner.run(&[0xb8, 0, 0, 0, 0x40, 0x8b, 0x00, 0xf4], Guest::run);
        let stop = GuestExit::Exception {
            vector: 14,
            return_address: CODE + 5,
        };
        assert_eq!(pf.unwrap(), stop);
    }
}
