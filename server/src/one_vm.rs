//! The VM of this process.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;
use vmm::confinement::Confinement;
use vmprobe_proto::v1;

use crate::files::GrantedFiles;
use crate::machine::Machine;
use crate::settings::Settings;
use crate::status::{self, Resource};

/// A VM's name, and the VM from when it is made until it is deleted.
#[derive(Debug)]
pub struct OneVm {
    name: String,
    settings: Settings,
    granted: GrantedFiles,
    confinement: Confinement,
    machine: Mutex<Option<Arc<Machine>>>,
}

impl OneVm {
    /// Makes one without a VM yet. It will open files that are `granted`, and its threads will be confined by
    /// `confinement`.
    pub fn new(
        name: String,
        settings: Settings,
        granted: GrantedFiles,
        confinement: Confinement,
    ) -> Self {
        Self {
            name,
            settings,
            granted,
            confinement,
            machine: Mutex::default(),
        }
    }

    /// Makes the VM, plants its first probes, and starts it unless the request says `hold`. Blocks.
    ///
    /// # Errors
    /// The request or the host is unsuitable, or the VM is made already.
    pub fn create(
        self: &Arc<Self>,
        request: v1::CreateVmRequest,
    ) -> Result<(Arc<Machine>, Vec<v1::Probe>), Status> {
        let ended = |error: io::Error| Status::internal(error.to_string());
        let this = Arc::clone(self);
        // This runs on the thread that can still open files.
        let make = move || {
            let mut slot = this.machine.lock();
            if slot.is_some() {
                let name = &this.name;
                let why = format!("VM `{name}` is made already");
                return Err(status::exists(Resource::Vm, name, why));
            }
            let Self {
                name,
                settings,
                granted,
                confinement,
                ..
            } = &*this;
            let (machine, probes) =
                Machine::create(name, &request, settings, granted, confinement)?;
            if !request.hold {
                machine.start()?;
            }
            *slot = Some(Arc::clone(&machine));
            Ok((machine, probes))
        };
        self.confinement.make(make).map_err(ended)?
    }

    /// Returns the VM, by its name.
    ///
    /// # Errors
    /// `NOT_FOUND` if it has another name or there is none; `INVALID_ARGUMENT` for an empty name.
    pub fn get(&self, name: &str) -> Result<Arc<Machine>, Status> {
        if name.is_empty() {
            return Err(status::invalid("vm", "the name of a VM is missing"));
        }
        let machine = self.machine.lock().clone();
        machine
            .filter(|machine| machine.name() == name)
            .ok_or_else(|| {
                let why = format!("no VM is called `{name}` here");
                status::missing(Resource::Vm, name, why)
            })
    }

    /// Returns the VM, if there is one.
    pub fn machine(&self) -> Option<Arc<Machine>> {
        self.machine.lock().clone()
    }

    /// The most bytes of a request.
    pub fn max_request_bytes(&self) -> usize {
        self.settings.limits.request_bytes()
    }

    /// The most streams that the VM may have at the same time.
    pub fn max_streams(&self) -> usize {
        self.settings.limits.streams
    }

    /// Drops the VM.
    pub fn remove(&self) {
        self.machine.lock().take();
    }
}

/// A way to publish events for VMs in this process, besides those of the VMs' own probes.
#[cfg(feature = "testing")]
#[derive(Clone, Debug, Default)]
pub struct Publishers(Arc<Mutex<Vec<Arc<OneVm>>>>);

#[cfg(feature = "testing")]
impl Publishers {
    /// Returns the events of the VM of this name, if there is one.
    #[must_use]
    pub fn of(&self, vm: &str) -> Option<Arc<crate::fanout::Fanout>> {
        let machine = self.0.lock().iter().find_map(|one| one.get(vm).ok())?;
        Some(Arc::clone(machine.events()))
    }

    /// Makes a VM that can be found here.
    pub(crate) fn new_vm(
        &self,
        name: &str,
        settings: Settings,
        granted: GrantedFiles,
    ) -> Arc<OneVm> {
        let none = Confinement::none();
        let vm = Arc::new(OneVm::new(name.to_owned(), settings, granted, none));
        self.0.lock().push(Arc::clone(&vm));
        vm
    }
}
