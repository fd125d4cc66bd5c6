//! A virtual machine.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use guest_state::{ArenaMemory, GuestPhysAddr, Segment, TrapHandler, VcpuId};
use kvm_ioctls::VmFd;
use parking_lot::Mutex;
use thiserror::Error;

use crate::{
    config::{CreateError, VmConfig},
    confinement::{Confinement, Role},
    devices::{
        console::Console,
        events::DeviceEvents,
        guest_end::GuestEnd,
        virtio::{self, VirtioDevices},
    },
    ending::{EndSignal, Ending},
    exits::{ExitCounters, ExitCounts},
    gate::Gate,
    kvm,
    parts::{create_vcpu, map_memory, serial_port},
    ram::{GuestRam, RamConfig},
    stopped_vm::StoppedVm,
    stops::{RecentStop, Stops},
    unpack::unpack,
    vcpu::{
        self, KvmVcpu, Shared,
        kick::{self, KickThreads},
    },
    x86_64::{
        acpi::Hardware,
        boot::{self, bzimage::KernelFile},
        chips, cpu,
        events::KvmEvents,
        layout, platform,
        vcpu::clock::{ClockSample, GuestClock},
    },
};

/// A guest and the threads that run it. Dropping a `Vm` ends the guest.
pub struct Vm {
    shared: Arc<Shared>,
    vcpus: Vec<Arc<Mutex<KvmVcpu>>>,
    console: Arc<Console>,
    threads: Mutex<Threads>,
    segments: Vec<Segment>,
    entry: GuestPhysAddr,
    unpacked_itself: bool,
    /// The clock of the first vCPU's counter; all have the same.
    clock: Option<GuestClock>,
    devices: VirtioDevices,
    confinement: Confinement,
    /// The VM's own file, which must outlive the vCPUs.
    _fd: Arc<VmFd>,
}

#[derive(Default)]
struct Threads {
    started: bool,
    handles: Vec<JoinHandle<()>>,
}

/// The state of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmState {
    /// Made, its first instruction not executed.
    Created,
    /// Its vCPUs run.
    Running,
    /// All vCPUs are out of guest mode until resumed.
    Paused,
    /// It has ended.
    Ended,
}

/// A request that doesn't fit the state of the VM.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StateError {
    /// Not started.
    #[error("the VM has not been started")]
    NotStarted,
    /// Started before.
    #[error("the VM has been started already")]
    Started,
    /// Not paused.
    #[error("the VM isn't paused")]
    NotPaused,
    /// Ended.
    #[error("the VM has ended")]
    Ended,
}

/// Why a VM did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The VM was started before or has ended.
    #[error(transparent)]
    State(#[from] StateError),
    /// The host gave no thread for a vCPU.
    #[error("the host has no thread for vCPU {vcpu}: {cause}")]
    Thread {
        /// The vCPU.
        vcpu: usize,
        /// What the system said.
        cause: io::Error,
    },
}

impl Vm {
    /// Makes a VM with its kernel in place, ready to execute its first
    /// instruction. `kernel` is what [`VmConfig::read_kernel`] has read. A bzImage that unpacks itself has done so. Its
    /// threads will be confined by `confinement`.
    ///
    /// # Errors
    /// See [`CreateError`]; nothing is left behind.
    pub fn create(
        config: &VmConfig,
        kernel: &KernelFile,
        confinement: &Confinement,
    ) -> Result<Self, CreateError> {
        config.validate()?;
        let initramfs = config.read_initramfs()?;
        let end = Arc::new(EndSignal::default());
        let console = Arc::new(Console::default());
        let guest_end = GuestEnd::new(Arc::clone(&console), Arc::clone(&end));
        let ends = virtio::Ends {
            console: &console,
            guest_end: &guest_end,
        };
        let devices = virtio::open(&config.devices, &ends)?;
        let kvm = kvm::open()?;
        let most = kvm.get_max_vcpus();
        if config.vcpus as usize > most {
            let vcpus = config.vcpus;
            return Err(CreateError::HostVcpus { vcpus, most });
        }
        let ram = GuestRam::with(RamConfig {
            mib: config.memory_mib,
            vcpus: config.vcpus,
            huge_pages: config.huge_pages,
        })?;
        let bits = cpu::physical_address_bits(&kvm)?;
        let arena_end = ram.arena().data.end().0;
        if arena_end > 1 << bits {
            return Err(CreateError::Arena {
                end: arena_end,
                bits,
            });
        }
        let loaded = boot::load(
            &ram,
            kernel,
            config.boot,
            initramfs.as_deref(),
            &config.cmdline,
            Hardware {
                vcpus: config.vcpus,
                nodes: config.numa_nodes,
                has_pci: !devices.is_empty(),
            },
        )?;
        drop(initramfs);

        let fd = kvm.create_vm();
        let fd = Arc::new(fd.map_err(CreateError::refused("create a virtual machine"))?);
        chips::create(&fd)?;
        map_memory(&fd, &ram)?;
        let serial = serial_port(&fd, &console, guest_end.clone())?;
        if config.devices.console.is_none() {
            console.connect_input(serial.input());
        }
        let events: Arc<dyn DeviceEvents> = Arc::new(KvmEvents::new(Arc::clone(&fd)));
        let devices = virtio::attach(
            devices,
            layout::PCI_WINDOW,
            ram.shared(),
            &events,
            confinement,
        );
        let devices = devices.map_err(CreateError::Events)?;
        let bus = platform::bus(serial, &guest_end, devices.functions())?;
        let vcpus = (0..config.vcpus)
            .map(|index| create_vcpu(&kvm, &fd, index, config, loaded.entry))
            .collect::<Result<Vec<_>, _>>()?;
        let clock = vcpus.first().map(KvmVcpu::clock);
        let count = vcpus.len();

        let kicks = Arc::new(KickThreads::new(count));
        let gate = Gate::new(count);
        gate.set_kick(Box::new(Arc::clone(&kicks)));
        let shared = Arc::new(Shared {
            gate,
            bus,
            ram,
            end,
            kicks,
            exits: ExitCounters::default(),
            gigabyte_pages: cpu::has_gigabyte_pages(&kvm)?,
        });
        let ended = Arc::downgrade(&shared);
        shared.end.on_end(move || {
            if let Some(shared) = ended.upgrade() {
                shared.gate.end();
            }
        });
        let vcpus: Vec<_> = vcpus
            .into_iter()
            .map(|vcpu| Arc::new(Mutex::new(vcpu)))
            .collect();
        let entry = match (loaded.last_jump, vcpus.first()) {
            (Some(jump), Some(boot_cpu)) => unpack(boot_cpu, &shared, &console, jump)?,
            _ => loaded.entry.address(),
        };
        Ok(Self {
            shared,
            vcpus,
            console,
            threads: Mutex::default(),
            segments: loaded.segments,
            entry,
            unpacked_itself: loaded.last_jump.is_some(),
            clock,
            devices,
            confinement: confinement.clone(),
            _fd: fd,
        })
    }

    /// The kernel's segments, where they were linked to be.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Where the kernel begins. With KASLR that is elsewhere than its file says.
    pub fn entry(&self) -> GuestPhysAddr {
        self.entry
    }

    /// Returns true if the kernel came to be in memory by its own decompressor.
    pub fn has_unpacked_itself(&self) -> bool {
        self.unpacked_itself
    }

    /// Hertz of the guest's time stamp counter.
    pub fn tsc_hz(&self) -> u64 {
        self.clock.map_or(0, |clock| clock.hz())
    }

    /// The guest's time stamp counter and the host's clock now. The guest doesn't stand still for it.
    pub fn clock(&self) -> Option<ClockSample> {
        self.clock.map(|clock| clock.now())
    }

    /// Number of vCPUs.
    pub fn vcpus(&self) -> u32 {
        self.vcpus.len() as u32
    }

    /// The guest physical memory that the guest isn't told about.
    pub fn arena(&self) -> ArenaMemory {
        self.shared.ram.arena()
    }

    /// The guest's memory. It may be read while the guest runs.
    pub fn memory(&self) -> &GuestRam {
        &self.shared.ram
    }

    /// How often the vCPUs have left guest mode so far, by reason.
    pub fn exits(&self) -> ExitCounts {
        self.shared.exits.get()
    }

    /// The serial console.
    pub fn console(&self) -> &Arc<Console> {
        &self.console
    }

    /// Starts all vCPUs; `handler` decides about their traps.
    ///
    /// # Errors
    /// When it was started or ended before, or the host gives no thread.
    pub fn start(&self, handler: &Arc<dyn TrapHandler>) -> Result<(), StartError> {
        let mut threads = self.threads.lock();
        if self.ending().is_some() {
            return Err(StateError::Ended.into());
        }
        if threads.started {
            return Err(StateError::Started.into());
        }
        threads.started = true;
        kick::install_handler();
        let running = Arc::new(AtomicUsize::new(self.vcpus.len()));
        for (index, cell) in self.vcpus.iter().enumerate() {
            let (cell, shared) = (Arc::clone(cell), Arc::clone(&self.shared));
            let (handler, console) = (Arc::clone(handler), Arc::clone(&self.console));
            let running = Arc::clone(&running);
            let run = move || {
                vcpu::run_thread(index, &cell, &shared, &*handler);
                if running.fetch_sub(1, Ordering::AcqRel) == 1 {
                    console.close();
                }
            };
            let name = format!("vcpu{index}");
            let spawned = self.confinement.spawn(Role::Vcpu, name, run);
            match spawned {
                Ok(handle) => threads.handles.push(handle),
                Err(cause) => {
                    self.shared.end.end(Ending::Failed {
                        reason: cause.to_string(),
                    });
                    self.console.close();
                    return Err(StartError::Thread { vcpu: index, cause });
                }
            }
        }
        self.shared.gate.set_paused(false);
        Ok(())
    }

    /// The VM's state.
    pub fn state(&self) -> VmState {
        if self.ending().is_some() {
            VmState::Ended
        } else if !self.threads.lock().started {
            VmState::Created
        } else if self.shared.gate.is_paused() {
            VmState::Paused
        } else {
            VmState::Running
        }
    }

    /// Pauses all vCPUs; they are out of guest mode when it returns. A paused VM
    /// stays so.
    ///
    /// # Errors
    /// When it has not been started or has ended.
    pub fn pause(&self) -> Result<(), StateError> {
        self.running()?;
        self.shared.gate.set_paused(true);
        Ok(())
    }

    /// Lets the vCPUs of a paused VM go on.
    ///
    /// # Errors
    /// When it has not been started or has ended.
    pub fn resume(&self) -> Result<(), StateError> {
        self.running()?;
        self.shared.gate.set_paused(false);
        Ok(())
    }

    /// Lets one vCPU of a paused VM enter guest mode, and no other, until the next pause. Its trap handler is
    /// asked first ([`guest_state::Trap::StepWanted`]) unless the vCPU is in the middle of a step already.
    ///
    /// # Errors
    /// When it isn't paused.
    pub fn step(&self, vcpu: VcpuId) -> Result<(), StateError> {
        self.running()?;
        match self.shared.gate.step(vcpu.0 as usize) {
            true => Ok(()),
            false => Err(StateError::NotPaused),
        }
    }

    /// Makes vCPUs that the trap handler holds ask it again whether it still does ([`TrapHandler::held_until`]).
    pub fn look_again(&self) {
        self.shared.gate.look_again();
    }

    fn running(&self) -> Result<(), StateError> {
        match self.state() {
            VmState::Created => Err(StateError::NotStarted),
            VmState::Ended => Err(StateError::Ended),
            VmState::Running | VmState::Paused => Ok(()),
        }
    }

    /// Runs `work` while every vCPU is out of guest mode, whether the VM was
    /// running, paused, not started or has ended. If `work` panics, the guest
    /// ends before a vCPU goes on: it may have been changed by half.
    pub fn stopped<R>(&self, work: impl FnOnce(&StoppedVm<'_>) -> R) -> R {
        let stopped = StoppedVm::new(&self.shared, &self.vcpus);
        self.end_on_panic("what was done while the guest stood still", || {
            work(&stopped)
        })
    }

    /// Starts a thread that works for the VM. If it panics, the guest ends.
    ///
    /// # Errors
    /// See [`Confinement::spawn`].
    pub fn spawn(
        self: &Arc<Self>,
        role: Role,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let (vm, thread) = (Arc::clone(self), format!("the thread `{name}`"));
        let run = move || vm.end_on_panic(&thread, work);
        self.confinement.spawn(role, name, run)
    }

    /// Does `work`, and ends the guest if it panics.
    fn end_on_panic<R>(&self, what: &str, work: impl FnOnce() -> R) -> R {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            self.end(Ending::Failed {
                reason: format!("{what} panicked: a bug of vmprobe; the log says where"),
            });
            resume_unwind(panic)
        })
    }

    /// How often the vCPUs have been stopped so far, and for how long.
    pub fn stops(&self) -> Stops {
        self.shared.gate.stops()
    }

    /// The last stops of all vCPUs, at most `most` of [`RECENT_STOPS`](crate::RECENT_STOPS), the oldest first.
    pub fn recent_stops(&self, most: usize) -> Vec<RecentStop> {
        self.shared.gate.recent_stops(most)
    }

    /// Ends the guest at once.
    pub fn kill(&self) {
        self.end(Ending::Killed);
    }

    fn end(&self, ending: Ending) {
        self.shared.end.end(ending);
        if !self.threads.lock().started {
            self.console.close();
        }
    }

    /// How the guest has ended, if it has.
    pub fn ending(&self) -> Option<Ending> {
        self.shared.end.get()
    }

    /// Waits until the guest and its threads have ended.
    pub fn wait(&self) -> Ending {
        let ending = self.shared.end.wait();
        self.join();
        ending
    }

    fn join(&self) {
        // The lock is held meanwhile: a second waiter waits as long.
        for handle in self.threads.lock().handles.drain(..) {
            let _a_panic_became_the_ending = handle.join();
        }
        // No vCPU gives them work any more.
        self.devices.stop();
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
        self.join();
    }
}
