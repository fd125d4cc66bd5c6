//! Building a VM from a request.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use guest_kernel::symbols::GivenSymbols;
use guest_kernel::{ImageMap, Kernel, KernelError, Move};
use parking_lot::Mutex;
use probe_engine::engine::Engine;
use probe_engine::event::{Event, EventSink};
use tokio::sync::watch;
use tonic::Status;
use vmm::boot::bzimage::{KernelFile, KernelFormat};
use vmm::confinement::{Confinement, Role};
use vmm::{BootMethod, Vm, VmConfig};
use vmprobe_proto::v1;

use super::asked::{AskedOfBatch, AskedProbes};
use super::bell::Bell;
use super::patterns::Expanded;
use super::sessions::Sessions;
use super::{Described, Machine, OptimizerThread, ReaderThread, Watched, symbol_file};
use crate::fanout::Fanout;
use crate::files::GrantedFiles;
use crate::settings::Settings;
use crate::status::ProbeField;
use crate::{convert, status};

/// Hands the engine's events to the clients' streams.
struct Events {
    fanout: Arc<Fanout>,
    asked: Arc<AskedProbes>,
    /// Wakes the optimizer's thread.
    optimizer: Arc<Bell>,
}

impl EventSink for Events {
    fn event(&self, event: &Event) {
        if self.is_wanted() {
            self.fanout.publish(&self.asked.event(event));
        }
    }

    fn is_wanted(&self) -> bool {
        !self.fanout.is_idle()
    }

    fn may_jump(&self) {
        self.optimizer.ring();
    }
}

impl Machine {
    /// Builds a VM of files that are `granted`, and plants its first probes. The guest doesn't run yet. Then
    /// `confinement` is sealed, and confines all that runs from now on. Blocks.
    ///
    /// # Errors
    /// The request or the host is unsuitable. Nothing of the VM is left then.
    pub fn create(
        name: &str,
        request: &v1::CreateVmRequest,
        settings: &Settings,
        granted: &GrantedFiles,
        confinement: &Confinement,
    ) -> Result<(Arc<Self>, Vec<v1::Probe>), Status> {
        let first = first_probes(request)?;
        let config = config(request, settings, granted)?;
        let symbols = symbol_file::read(&request.symbols, granted, &settings.limits)?;
        let file = config.read_kernel();
        let file = file.map_err(|error| status::create(&error))?;
        let (
            vm,
            Read {
                kernel,
                version,
                image,
            },
        ) = load(&config, file, symbols, confinement)?;

        let events = Arc::new(Fanout::new(settings.limits.event_queue));
        let kernel = Arc::new(kernel);
        let asked = Arc::new(AskedProbes::new(Arc::clone(&kernel)));
        let optimizer = OptimizerThread::default();
        let sink = Arc::new(Events {
            fanout: Arc::clone(&events),
            asked: Arc::clone(&asked),
            optimizer: Arc::clone(&optimizer.bell),
        });
        let engine = Arc::new(Engine::new(kernel, image, vm.vcpus(), sink));
        let (ended, ending) = watch::channel(None);
        let machine = Arc::new(Self {
            name: name.to_owned(),
            config: Described::new(&config, version),
            memory: vm.memory().clone(),
            vm: Arc::new(vm),
            engine,
            events,
            asked,
            sessions: Sessions::new(settings.limits.sessions),
            event_streams: Arc::default(),
            ending,
            changing: Mutex::default(),
            optimizer,
            reader: ReaderThread::default(),
            max_probes: settings.limits.probes,
            allow_changes: settings.changes,
            watched: Watched::default(),
        });
        let probes = machine.plant_first(&first)?;
        confinement
            .seal()
            .map_err(|error| status::confinement(&error))?;
        machine.start_threads(ended).inspect_err(|_| {
            // The threads that were started end with the guest.
            machine.kill();
        })?;
        Ok((machine, probes))
    }

    fn plant_first(&self, first: &FirstProbes) -> Result<Vec<v1::Probe>, Status> {
        let mut batch = Expanded::default();
        for (list, probes) in first {
            self.expand(list, probes, &mut batch)?;
        }
        let (specs, compiled) = self.compile(&batch)?;
        let fields = &batch.fields;
        self.check_room(specs.len())?;
        self.check_events(&specs, &compiled, fields)?;
        let asked = AskedOfBatch::new(&compiled);
        self.stopped(|stopped| {
            self.install_arena(stopped);
            self.engine
                .arm_milestones(stopped)
                .map_err(|error| status::register(&error.into(), fields))?;
            let probes = self.engine.register(stopped, &specs);
            let probes = probes.map_err(|error| status::register(&error, fields))?;
            if !probes.is_empty() {
                self.optimizer.probes_changed();
            }
            let ids: Vec<_> = probes.iter().map(|probe| probe.id).collect();
            self.asked.remember(&ids, &asked);
            Ok(self.asked.describe(convert::probes(probes)))
        })
    }

    /// Starts the threads that run beside the vCPUs until the guest's end.
    fn start_threads(
        self: &Arc<Self>,
        ended: watch::Sender<Option<v1::Ending>>,
    ) -> Result<(), Status> {
        self.start_thread(Role::End, "end", move |machine| {
            machine.watch_for_the_end(&ended);
        })?;
        self.start_thread(Role::Engine, "jumps", Self::optimize_in_background)?;
        self.start_thread(Role::Engine, "rings", Self::read_rings)
    }

    fn start_thread(
        self: &Arc<Self>,
        role: Role,
        what: &str,
        work: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<(), Status> {
        let machine = Arc::clone(self);
        let name = format!("{}-{what}", self.name);
        let thread = self.vm.spawn(role, name, move || work(&machine));
        thread.map(drop).map_err(|error| status::no_thread(&error))
    }

    /// Waits for the guest's end, reports the guest's last events, and then tells all clients of the end.
    fn watch_for_the_end(&self, ended: &watch::Sender<Option<v1::Ending>>) {
        let ending = convert::ending(&self.vm.wait());
        self.watched.end();
        self.optimizer.end();
        self.reader.end();
        self.drain_ended();
        tracing::info!(vm = self.name, kind = ?ending.kind(), "ended");
        ended.send_replace(Some(ending));
        self.events.end();
    }
}

fn config(
    request: &v1::CreateVmRequest,
    settings: &Settings,
    granted: &GrantedFiles,
) -> Result<VmConfig, Status> {
    if request.kernel.is_empty() {
        return Err(status::invalid("kernel", "the path of a kernel is missing"));
    }
    let boot = match v1::BootMethod::try_from(request.boot) {
        Ok(v1::BootMethod::Unspecified | v1::BootMethod::Elf) => BootMethod::Elf,
        Ok(v1::BootMethod::Bzimage) => BootMethod::BzImage,
        Ok(v1::BootMethod::Pvh) => BootMethod::Pvh,
        Err(_) => {
            let message = format!("boot method {} is unknown to this server", request.boot);
            return Err(status::invalid("boot", message));
        }
    };
    let initramfs = Some(&request.initramfs).filter(|path| !path.is_empty());
    let initramfs = initramfs.map(|path| granted.file("initramfs", path));
    Ok(VmConfig {
        kernel: granted.file("kernel", &request.kernel)?,
        initramfs: initramfs.transpose()?,
        cmdline: request.cmdline.clone(),
        memory_mib: convert::memory_mib(request),
        huge_pages: request.huge_pages,
        numa_nodes: request.numa_nodes.max(1),
        vcpus: request.vcpus.max(1),
        boot,
        max_file: settings.limits.file_mib.saturating_mul(1 << 20),
        kernel_cache: settings.kernel_cache.clone(),
        devices: convert::devices(request.devices.as_ref(), granted)?,
    })
}

/// The probes of a request, by the fields that they are in: its own, then those on the kernel's command line.
type FirstProbes = [(&'static str, Vec<v1::ProbeSpec>); 2];

fn first_probes(request: &v1::CreateVmRequest) -> Result<FirstProbes, Status> {
    let found = vmprobe_spec::from_cmdline(&request.cmdline);
    let found = found.into_iter().collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| status::invalid("cmdline", error.to_string()))?;
    convert::check_batch(request.probes.len() + found.len())?;
    let first = [("probes", request.probes.clone()), ("cmdline", found)];
    // Errors in a probe that don't depend on the kernel are reported before a kernel is loaded.
    for (list, probes) in &first {
        for (index, probe) in probes.iter().enumerate() {
            convert::spec(ProbeField { list, index }, probe)?;
        }
    }
    Ok(first)
}

/// The parts of a kernel's file that are needed.
struct Read {
    /// The data that probing needs, at the addresses where the kernel is.
    kernel: Kernel,
    version: String,
    /// Where the kernel is in guest memory.
    image: ImageMap,
}

/// Makes a VM, and reads the needed parts of its kernel's file. If it's known beforehand where the kernel will be, both
/// are done at the same time.
fn load(
    config: &VmConfig,
    file: KernelFile,
    symbols: Option<GivenSymbols>,
    confinement: &Confinement,
) -> Result<(Vm, Read), Status> {
    let create = || Vm::create(config, &file, confinement).map_err(|error| status::create(&error));
    let (vm, kernel, moved) = match config.boot {
        BootMethod::Elf | BootMethod::Pvh => thread::scope(|scope| {
            let reader = thread::Builder::new().name("symbols".to_owned());
            let reader = reader.spawn_scoped(scope, || read_kernel(&file.elf, symbols));
            let reader = reader.map_err(|error| status::no_thread(&error))?;
            let vm = create();
            let kernel = reader.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok::<_, Status>((vm?, kernel?, Move::default()))
        })?,
        BootMethod::BzImage => {
            let vm = create()?;
            let mut elf = file.elf;
            let moved = match vm.has_unpacked_itself() {
                true => Move::relocate(&mut elf, vm.entry(), vm.memory())
                    .map_err(|error| status::invalid("kernel", error.to_string()))?,
                false => Move::default(),
            };
            let symbols = symbols.map(|symbols| symbols.moved_by(moved.virt));
            let kernel = read_kernel(&elf, symbols)?;
            (vm, kernel, moved)
        }
    };
    let version = match file.format {
        KernelFormat::BzImage { version, .. } => version,
        KernelFormat::Elf => kernel.version.clone(),
    };
    let segments = vm.segments().iter().map(|linked| moved.segment(*linked));
    let image = ImageMap::new(segments.collect());
    let read = Read {
        kernel,
        version,
        image,
    };
    Ok((vm, read))
}

fn read_kernel(elf: &[u8], symbols: Option<GivenSymbols>) -> Result<Kernel, Status> {
    let kernel = match symbols {
        Some(symbols) => Kernel::with_symbols(elf, symbols),
        None => Kernel::from_image(elf),
    };
    kernel.map_err(|error| {
        let field = match error {
            KernelError::Given(_) => "symbols",
            _ => "kernel",
        };
        status::invalid(field, error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;
    use tonic_types::StatusExt;

    fn request() -> v1::CreateVmRequest {
        v1::CreateVmRequest {
            kernel: "/k".into(),
            ..Default::default()
        }
    }

    fn field(status: &Status) -> String {
        let details = status.get_details_bad_request().unwrap();
        details.field_violations[0].field.clone()
    }

    fn probe(symbol: &str) -> v1::ProbeSpec {
        let symbol = v1::SymbolPlace {
            symbol: symbol.into(),
            ..Default::default()
        };
        v1::ProbeSpec {
            place: Some(v1::probe_spec::Place::Symbol(symbol)),
            ..Default::default()
        }
    }

    #[test]
    fn fields_that_a_request_leaves_out_have_defaults() {
        let any = GrantedFiles::any();
        let config = config(&request(), &Settings::default(), &any).unwrap();
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
        for (request, name) in requests {
            let config = config(&request, &Settings::default(), &GrantedFiles::any());
            assert_eq!(field(&config.unwrap_err()), name);
        }
    }

    #[test]
    fn probes_on_the_command_line_come_after_those_of_the_request() {
        let request = v1::CreateVmRequest {
            cmdline: "quiet vmprobe.probe=b vmprobe.probe=c;d".into(),
            probes: vec![probe("a")],
            ..request()
        };
        let first = first_probes(&request).unwrap();
        let all = first.iter().flat_map(|(list, probes)| {
            let text = move |spec| format!("{list}: {}", vmprobe_spec::definition(spec));
            probes.iter().map(text)
        });
        let all: Vec<String> = all.collect();
        let expected = [
            "probes: p a",
            "cmdline: p b",
            "cmdline: p c",
            "cmdline: p d",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_bad_definition_on_the_command_line_names_it_and_the_column() {
        let request = v1::CreateVmRequest {
            cmdline: "quiet vmprobe.probe=vfs_read+x".into(),
            ..request()
        };
        let status = first_probes(&request).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(field(&status), "cmdline");
        let message = status.message();
        assert!(message.contains("column 10"), "{message}");
        assert!(message.contains("`vfs_read+x`"), "{message}");
    }

    #[test]
    fn request_and_command_line_together_keep_the_limit() {
        let request = v1::CreateVmRequest {
            cmdline: "vmprobe.probe=b".into(),
            probes: vec![probe("a"); crate::limits::PROBES_A_BATCH],
            ..request()
        };
        let status = first_probes(&request).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}
