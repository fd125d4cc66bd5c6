//! One VM: the monitor that runs it, the engine that probes it, and the clients that watch it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use probe_engine::addr::{GuestPhysAddr, GuestVirtAddr, ProbeId};
use probe_engine::engine::Engine;
use probe_engine::event::{EventSink, Hit};
use probe_engine::image_map::{ImageMap, ImageSegment};
use probe_engine::paging::{self, PageTables};
use probe_engine::symbols::Symbols;
use tokio::sync::watch;
use tonic::{Code, Status};
use vmm::boot::bzimage::Format;
use vmm::{BootMethod, StartError, Stopped, TrapHandler, Vm, VmConfig, VmState};
use vmprobe_proto::v1;

use crate::console::Reader;
use crate::fanout::Fanout;
use crate::traps::{Ram, Traps, registers};
use crate::{convert, status};

/// Memory of a guest for which the request gives none, in MiB.
const DEFAULT_MEMORY_MIB: u64 = 512;

/// A VM and what is known of it.
pub struct Machine {
    name: String,
    config: VmConfig,
    kernel_version: String,
    vm: Arc<Vm>,
    engine: Arc<Engine>,
    hits: Arc<Fanout>,
    ending: watch::Receiver<Option<v1::Ending>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Hands the engine's hits to those who follow them.
struct Hits(Arc<Fanout>);

impl EventSink for Hits {
    fn hit(&self, hit: &Hit) {
        self.0.publish(&convert::event(hit));
    }
}

impl Machine {
    /// Builds a VM and plants its first probes; the guest has not run yet. Blocks.
    ///
    /// # Errors
    /// What is wrong with the request or the host; then nothing of the VM is left.
    pub fn create(
        name: &str,
        request: &v1::CreateVmRequest,
    ) -> Result<(Arc<Self>, Vec<v1::Probe>), Status> {
        let config = config(request)?;
        let specs = convert::specs(&request.probes)?;
        let mut vm = Vm::create(&config).map_err(|error| status::create(&error))?;
        let (symbols, kernel_version) = read_kernel(&mut vm)?;

        let hits = Arc::new(Fanout::default());
        let sink = Arc::new(Hits(Arc::clone(&hits)));
        let engine = Arc::new(Engine::new(symbols, image_map(&vm), sink));
        let (ended, ending) = watch::channel(None);
        let machine = Arc::new(Self {
            name: name.to_owned(),
            config,
            kernel_version,
            vm: Arc::new(vm),
            engine,
            hits,
            ending,
        });
        let probes = machine.plant_first(&specs)?;
        machine.watch_for_the_end(ended)?;
        Ok((machine, probes))
    }

    fn plant_first(
        &self,
        specs: &[probe_engine::probe::ProbeSpec],
    ) -> Result<Vec<v1::Probe>, Status> {
        self.vm.stopped(|guest| {
            let memory = Ram(guest.memory());
            if self.engine.has_image_map() {
                self.engine
                    .arm_milestones(&memory)
                    .map_err(|error| status::register(&error))?;
            }
            let probes = self.engine.register(&memory, specs);
            let probes = probes.map_err(|error| status::register(&error))?;
            self.set_breakpoint_exits(guest)?;
            Ok(convert::probes(probes))
        })
    }

    /// Starts a thread that tells everybody of the guest's end.
    fn watch_for_the_end(
        self: &Arc<Self>,
        ended: watch::Sender<Option<v1::Ending>>,
    ) -> Result<(), Status> {
        let vm = Arc::clone(&self.vm);
        let hits = Arc::clone(&self.hits);
        let name = self.name.clone();
        let watch = move || {
            let ending = ending(&vm.wait());
            tracing::info!(vm = name, kind = ?ending.kind(), "ended");
            ended.send_replace(Some(ending));
            hits.end();
        };
        let thread = thread::Builder::new()
            .name(format!("{}-end", self.name))
            .spawn(watch);
        thread.map(drop).map_err(|error| {
            Status::resource_exhausted(format!("the host has no thread for the VM: {error}"))
        })
    }

    /// The VM's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the VM is and does.
    pub fn describe(&self) -> v1::Vm {
        let state = match self.vm.state() {
            VmState::Created => v1::VmState::Created,
            VmState::Running => v1::VmState::Running,
            VmState::Paused => v1::VmState::Paused,
            VmState::Ended => v1::VmState::Ended,
        };
        v1::Vm {
            name: self.name.clone(),
            state: state.into(),
            vcpus: self.config.vcpus,
            memory_mib: self.config.memory_mib,
            kernel: self.config.kernel.display().to_string(),
            kernel_version: self.kernel_version.clone(),
            symbols: self.engine.symbols().len() as u64,
            ending: self.ending.borrow().clone(),
        }
    }

    /// Lets the guest run its first instruction. Blocks.
    pub fn start(&self) -> Result<(), Status> {
        let handler: Arc<dyn TrapHandler> = Arc::new(Traps(Arc::clone(&self.engine)));
        self.vm.start(&handler).map_err(|error| match error {
            StartError::State(error) => self.state_error(&error),
            StartError::Thread { .. } => Status::resource_exhausted(error.to_string()),
        })
    }

    /// Stops the vCPUs. Blocks until all are out of guest mode.
    pub fn pause(&self) -> Result<(), Status> {
        self.vm.pause().map_err(|error| self.state_error(&error))
    }

    /// Lets stopped vCPUs go on.
    pub fn resume(&self) -> Result<(), Status> {
        self.vm.resume().map_err(|error| self.state_error(&error))
    }

    /// Ends the guest. Returns at once; [`Self::ended`] says when it is over.
    pub fn kill(&self) {
        self.vm.kill();
    }

    /// Waits for the guest's end.
    pub async fn ended(&self) -> v1::Ending {
        let mut ending = self.ending.clone();
        match ending.wait_for(Option::is_some).await {
            Ok(ending) => ending.clone().unwrap_or_default(),
            // The thread that waits has died: the monitor has a bug.
            Err(_) => v1::Ending {
                kind: v1::EndingKind::Failed.into(),
                exit_code: 7,
                detail: "the monitor lost track of the guest; see the server's log".to_owned(),
            },
        }
    }

    /// Registers all probes or none. Blocks.
    pub fn register(&self, specs: &[v1::ProbeSpec]) -> Result<Vec<v1::Probe>, Status> {
        let specs = convert::specs(specs)?;
        self.vm.stopped(|guest| {
            self.find_kernel(guest)?;
            let probes = self.engine.register(&Ram(guest.memory()), &specs);
            let probes = probes.map_err(|error| status::register(&error))?;
            self.set_breakpoint_exits(guest)?;
            Ok(convert::probes(probes))
        })
    }

    /// Removes all probes of these ids and names, or none. Blocks.
    pub fn unregister(&self, ids: &[u64], names: &[String]) -> Result<Vec<v1::Probe>, Status> {
        let mut all: Vec<ProbeId> = ids.iter().copied().map(ProbeId).collect();
        for (index, name) in names.iter().enumerate() {
            let id = self.engine.find(name).ok_or_else(|| {
                let message = format!("no probe is called `{name}`: list the probes");
                status::with_field(Code::NotFound, format!("names[{index}]"), message)
            })?;
            all.push(id);
        }
        self.vm.stopped(|guest| {
            let probes = self.engine.unregister(&Ram(guest.memory()), &all);
            let probes = probes.map_err(|error| status::unregister(&error))?;
            self.set_breakpoint_exits(guest)?;
            Ok(convert::probes(probes))
        })
    }

    /// The probes and their counts.
    pub fn list_probes(&self) -> Vec<v1::Probe> {
        convert::probes(self.engine.list())
    }

    /// Checks that probes of these ids exist.
    pub fn check_probes(&self, ids: &[u64]) -> Result<(), Status> {
        if ids.is_empty() {
            return Ok(());
        }
        let probes = self.engine.list();
        match ids
            .iter()
            .find(|id| !probes.iter().any(|probe| probe.id.0 == **id))
        {
            None => Ok(()),
            Some(id) => Err(status::with_field(
                Code::NotFound,
                "probe_ids",
                format!("there is no probe number {id}: list the probes"),
            )),
        }
    }

    /// The hits of all probes.
    pub fn hits(&self) -> &Arc<Fanout> {
        &self.hits
    }

    /// Hertz of the guest's time stamp counter.
    pub fn tsc_hz(&self) -> u64 {
        self.vm.tsc_hz()
    }

    /// What the guest has written to its console, and will write.
    pub fn console_output(&self) -> Reader {
        Reader::new(self.vm.console())
    }

    /// Types on the guest's console.
    pub fn console_input(&self, input: &[u8]) {
        self.vm.console().send(input);
    }

    /// Symbols that match a pattern, at most `limit`; whether there are more.
    pub fn lookup_symbols(&self, pattern: &str, limit: usize) -> (Vec<v1::Symbol>, bool) {
        let symbols = self.engine.symbols();
        let mut found: Vec<v1::Symbol> = symbols
            .find_matching(pattern)
            .take(limit + 1)
            .map(convert::symbol)
            .collect();
        let truncated = found.len() > limit;
        found.truncate(limit);
        (found, truncated)
    }

    /// The symbol that covers an address, and the address' offset in it.
    pub fn resolve_address(&self, address: u64) -> Result<(v1::Symbol, u64), Status> {
        let address = GuestVirtAddr(address);
        match self.engine.symbols().resolve(address) {
            Some(found) => Ok((convert::symbol(found.symbol), found.offset)),
            None => Err(status::with_field(
                Code::NotFound,
                "address",
                format!("{address} is not in the guest's kernel image, so no symbol covers it"),
            )),
        }
    }

    /// The general registers of a vCPU. Blocks.
    pub fn read_registers(&self, vcpu: u32) -> Result<v1::Registers, Status> {
        self.check_vcpu(vcpu)?;
        self.vm.stopped(|guest| {
            let found = guest.registers(vcpu).map_err(|error| vcpu_error(&error))?;
            Ok(convert::registers(&registers(&found)))
        })
    }

    /// Guest memory at a virtual address, up to the first page that isn't mapped. Blocks.
    pub fn read_memory(&self, vcpu: u32, address: u64, length: u32) -> Result<Vec<u8>, Status> {
        self.check_vcpu(vcpu)?;
        self.vm.stopped(|guest| {
            let tables = page_tables(guest, vcpu)?;
            let mut bytes = vec![0; length as usize];
            let read = paging::read_virt(
                &Ram(guest.memory()),
                tables,
                GuestVirtAddr(address),
                &mut bytes,
            );
            if let Err(fault) = read {
                bytes.truncate(fault.done);
            }
            Ok(bytes)
        })
    }

    fn check_vcpu(&self, vcpu: u32) -> Result<(), Status> {
        let vcpus = self.config.vcpus;
        if vcpu < vcpus {
            return Ok(());
        }
        let name = &self.name;
        Err(status::invalid(
            "vcpu",
            format!("VM `{name}` has vCPUs 0 to {}", vcpus - 1),
        ))
    }

    /// Finds where a kernel that unpacked itself is, once it has set itself up.
    fn find_kernel(&self, guest: &Stopped<'_>) -> Result<(), Status> {
        if self.engine.has_image_map() {
            return Ok(());
        }
        let entry = guest.syscall_entry(0).map_err(|error| vcpu_error(&error))?;
        if entry == 0 {
            // The engine says that the place of the text isn't known yet.
            return Ok(());
        }
        let linked = self
            .engine
            .symbols()
            .find("entry_SYSCALL_64")
            .map_err(|error| Status::failed_precondition(error.to_string()))?
            .address;
        let image = linked_image(&self.vm);
        // KASLR chooses the virtual and the physical place each for itself.
        let slide = entry.wrapping_sub(linked.0);
        let place = self.walk(guest, GuestVirtAddr(entry))?;
        let in_place = slide == 0 && image.to_phys(linked).map(|(phys, _)| phys) == Some(place);
        if !in_place {
            return Err(Status::failed_precondition(format!(
                "the kernel of VM `{}` has moved itself by {slide:#x}, to physical {place} (KASLR), \
                 and probing a moved kernel is not supported: boot it without `kaslr` on the \
                 command line",
                self.name
            )));
        }
        self.engine.set_image_map(image);
        Ok(())
    }

    /// Where the first vCPU finds a virtual address in guest memory.
    fn walk(&self, guest: &Stopped<'_>, at: GuestVirtAddr) -> Result<GuestPhysAddr, Status> {
        let tables = page_tables(guest, 0)?;
        let found = paging::walk(&Ram(guest.memory()), tables, at);
        let found = found.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(found.phys)
    }

    /// The guest's own int3s cost exits while ours are watched for.
    fn set_breakpoint_exits(&self, guest: &Stopped<'_>) -> Result<(), Status> {
        let wanted = self.engine.wants_breakpoint_exits();
        guest
            .set_breakpoint_exits(wanted)
            .map_err(|error| vcpu_error(&error))
    }

    fn state_error(&self, error: &vmm::StateError) -> Status {
        Status::failed_precondition(format!("VM `{}`: {error}", self.name))
    }
}

/// The page tables that a vCPU uses.
fn page_tables(guest: &Stopped<'_>, vcpu: u32) -> Result<PageTables, Status> {
    let found = guest.control(vcpu).map_err(|error| vcpu_error(&error))?;
    PageTables::from_registers(found.cr0, found.cr3, found.cr4, found.efer)
        .map_err(|error| Status::failed_precondition(error.to_string()))
}

fn vcpu_error(error: &vmm::VcpuAccessError) -> Status {
    Status::internal(error.to_string())
}

fn config(request: &v1::CreateVmRequest) -> Result<VmConfig, Status> {
    if request.kernel.is_empty() {
        return Err(status::invalid("kernel", "the path of a kernel is missing"));
    }
    let boot = match v1::BootMethod::try_from(request.boot) {
        Ok(v1::BootMethod::Unspecified | v1::BootMethod::Elf) => BootMethod::Elf,
        Ok(v1::BootMethod::Bzimage) => BootMethod::BzImage,
        Err(_) => {
            let message = format!("boot method {} is unknown to this server", request.boot);
            return Err(status::invalid("boot", message));
        }
    };
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    Ok(VmConfig {
        kernel: PathBuf::from(&request.kernel),
        initramfs: Some(&request.initramfs)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
        cmdline: request.cmdline.clone(),
        memory_mib: or(request.memory_mib, DEFAULT_MEMORY_MIB),
        vcpus: request.vcpus.max(1),
        boot,
    })
}

/// Takes what is needed of the kernel's file, and frees the rest: its symbols and its version.
fn read_kernel(vm: &mut Vm) -> Result<(Symbols, String), Status> {
    let kernel = vm
        .take_kernel()
        .ok_or_else(|| Status::internal("the kernel was read twice"))?;
    let symbols = Symbols::from_vmlinux(&kernel.elf)
        .map_err(|error| status::invalid("kernel", error.to_string()))?;
    let version = match kernel.format {
        Format::BzImage { version, .. } => version,
        Format::Elf => String::new(),
    };
    Ok((symbols, version))
}

/// Where the kernel image is in guest memory; none while only the guest knows.
fn image_map(vm: &Vm) -> Option<ImageMap> {
    vm.kernel_in_place().then(|| linked_image(vm))
}

/// Where the kernel image is once it is where it was linked to be.
fn linked_image(vm: &Vm) -> ImageMap {
    let segment = |segment: &vmm::Segment| ImageSegment {
        virt: GuestVirtAddr(segment.virt),
        phys: GuestPhysAddr(segment.phys),
        len: segment.len,
    };
    ImageMap::new(vm.segments().iter().map(segment).collect())
}

fn ending(ending: &vmm::Ending) -> v1::Ending {
    use vmm::Ending as E;
    let (kind, detail) = match ending {
        E::PowerOff => (v1::EndingKind::PowerOff, ""),
        E::Reset => (v1::EndingKind::Reset, ""),
        E::Panic { reason } => (v1::EndingKind::Panic, reason.as_str()),
        E::TripleFault => (v1::EndingKind::TripleFault, ""),
        E::Killed => (v1::EndingKind::Killed, ""),
        E::Failed { reason } => (v1::EndingKind::Failed, reason.as_str()),
    };
    v1::Ending {
        kind: kind.into(),
        exit_code: ending.exit_code().into(),
        detail: detail.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::StatusExt;

    fn request() -> v1::CreateVmRequest {
        v1::CreateVmRequest {
            kernel: "/k".into(),
            ..Default::default()
        }
    }

    #[test]
    fn what_a_request_leaves_out_has_a_default() {
        let config = config(&request()).unwrap();
        assert_eq!((config.memory_mib, config.vcpus), (512, 1));
        assert_eq!(config.initramfs, None);
        assert!(matches!(config.boot, BootMethod::Elf));
    }

    #[test]
    fn a_request_without_a_kernel_or_with_an_unknown_boot_method_names_the_field() {
        let requests = [
            (
                v1::CreateVmRequest {
                    kernel: String::new(),
                    ..request()
                },
                "kernel",
            ),
            (
                v1::CreateVmRequest {
                    boot: 99,
                    ..request()
                },
                "boot",
            ),
        ];
        for (request, field) in requests {
            let status = config(&request).unwrap_err();
            let details = status.get_details_bad_request().unwrap();
            assert_eq!(details.field_violations[0].field, field);
        }
    }

    #[test]
    fn an_ending_keeps_its_kind_code_and_reason() {
        let end = ending(&vmm::Ending::Panic {
            reason: "no init".into(),
        });
        assert_eq!(
            (end.kind(), end.detail.as_str()),
            (v1::EndingKind::Panic, "no init")
        );
        assert_ne!(end.exit_code, 0);
        assert_eq!(ending(&vmm::Ending::PowerOff).exit_code, 0);
    }
}
