//! The VMs of one server, by name.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::process::{VmProcess, VmProgram};
use crate::images::ImageStore;
use crate::limits;
use crate::settings::Settings;
use crate::status::{self, Precondition, Reason, Resource};

/// All VMs of the server.
#[derive(Debug)]
pub struct Vms {
    slots: Mutex<VmTable>,
    settings: Settings,
    program: VmProgram,
    images: Option<Arc<ImageStore>>,
    /// Places for VMs that are being made.
    creations: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct VmTable {
    by_name: BTreeMap<String, VmEntry>,
    /// The number of the next VM whose request gives no name.
    next: u64,
    closed: bool,
}

#[derive(Debug)]
enum VmEntry {
    /// Being built. The name and this much memory are taken.
    Reserved {
        memory_mib: u64,
    },
    Ready(Arc<VmProcess>),
}

impl VmEntry {
    fn memory_mib(&self) -> u64 {
        match self {
            Self::Reserved { memory_mib } => *memory_mib,
            Self::Ready(process) => process.memory_mib(),
        }
    }
}

/// A name for a VM under construction. Dropping it frees the name.
#[derive(Debug)]
pub struct Reservation {
    vms: Arc<Vms>,
    name: String,
}

impl Vms {
    /// Makes a table without VMs, with room for as many as the limits in `settings` say. VMs will be run by `program`,
    /// and use `images`.
    pub fn new(settings: Settings, program: VmProgram, images: Option<Arc<ImageStore>>) -> Self {
        let creations = settings.limits.creations.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            slots: Mutex::default(),
            settings,
            program,
            images,
            creations: Arc::new(Semaphore::new(creations)),
        }
    }

    /// The settings for all VMs.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The program that runs the VMs.
    pub fn program(&self) -> &VmProgram {
        &self.program
    }

    /// The images that VMs can use, if the server keeps images.
    pub fn images(&self) -> Option<&Arc<ImageStore>> {
        self.images.as_ref()
    }

    /// Waits for one of the places for VMs that are being made.
    ///
    /// # Errors
    /// `INTERNAL`, never in practice, as the places are never closed.
    pub async fn creation(&self) -> Result<OwnedSemaphorePermit, Status> {
        let place = Arc::clone(&self.creations).acquire_owned().await;
        place.map_err(|error| Status::internal(error.to_string()))
    }

    /// Takes a name, or makes one from an empty `name`, for a VM with this much memory.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, `ALREADY_EXISTS`, `RESOURCE_EXHAUSTED`, or `UNAVAILABLE` while the server
    /// shuts down.
    pub fn reserve(self: &Arc<Self>, name: &str, memory_mib: u64) -> Result<Reservation, Status> {
        let mut slots = self.slots.lock();
        if slots.closed {
            return Err(shutting_down());
        }
        let (vms, most) = (slots.by_name.len(), self.settings.limits.vms);
        if vms >= most {
            let why = format!(
                "this server has {vms} VMs, as many as it takes: delete one that has ended, or start \
                 vmprobed with a larger --max-vms"
            );
            return Err(status::exhausted("--max-vms", why));
        }
        let most = self.settings.limits.guest_memory_mib;
        let taken = slots.by_name.values().map(VmEntry::memory_mib);
        let taken = taken.fold(0, u64::saturating_add);
        if taken.saturating_add(memory_mib) > most {
            return Err(status::exhausted_by(
                "memory_mib",
                "--max-guest-memory",
                format!(
                    "{memory_mib} MiB of memory is too much: the guests of this server have {taken} \
                     MiB of the {most} MiB that they may have; ask for less, delete a VM, or start \
                     vmprobed with a larger --max-guest-memory"
                ),
            ));
        }
        let name = if name.is_empty() {
            slots.fresh_name()
        } else {
            check_name(name)?
        };
        match slots.by_name.entry(name.clone()) {
            Entry::Occupied(_) => {
                let why =
                    format!("a VM called `{name}` exists: choose another name, or delete that one");
                Err(status::exists(Resource::Vm, &name, why))
            }
            Entry::Vacant(vacant) => {
                vacant.insert(VmEntry::Reserved { memory_mib });
                Ok(Reservation {
                    vms: Arc::clone(self),
                    name,
                })
            }
        }
    }

    /// Returns the VM of this name.
    ///
    /// # Errors
    /// `NOT_FOUND`, with the names of the VMs that exist; `INVALID_ARGUMENT` for an empty name; `FAILED_PRECONDITION`
    /// while the VM is being built.
    pub fn get(&self, name: &str) -> Result<Arc<VmProcess>, Status> {
        if name.is_empty() {
            return Err(status::invalid("vm", "the name of a VM is missing"));
        }
        let slots = self.slots.lock();
        match slots.by_name.get(name) {
            Some(VmEntry::Ready(process)) => Ok(Arc::clone(process)),
            Some(VmEntry::Reserved { .. }) => {
                let why = format!("VM `{name}` is still being created");
                Err(status::precondition(Precondition::State, name, why))
            }
            None if slots.by_name.is_empty() => {
                let why = format!("no VM is called `{name}`: this server has none");
                Err(status::missing(Resource::Vm, name, why))
            }
            None => {
                let names: Vec<&str> = slots.by_name.keys().map(String::as_str).collect();
                let names = names.join(", ");
                let why = format!("no VM is called `{name}`; there are: {names}");
                Err(status::missing(Resource::Vm, name, why))
            }
        }
    }

    /// Returns all VMs that are built, by name.
    pub fn list(&self) -> Vec<Arc<VmProcess>> {
        let slots = self.slots.lock();
        let vms = slots.by_name.values().filter_map(|slot| match slot {
            VmEntry::Ready(process) => Some(Arc::clone(process)),
            VmEntry::Reserved { .. } => None,
        });
        vms.collect()
    }

    /// Removes this VM from the table. Another VM of the same name stays.
    pub fn remove(&self, process: &Arc<VmProcess>) {
        let mut slots = self.slots.lock();
        if let Entry::Occupied(entry) = slots.by_name.entry(process.name().to_owned())
            && matches!(entry.get(), VmEntry::Ready(there) if Arc::ptr_eq(there, process))
        {
            entry.remove();
        }
    }

    /// Refuses new VMs from now on, and returns the existing ones.
    pub fn close(&self) -> Vec<Arc<VmProcess>> {
        self.slots.lock().closed = true;
        self.list()
    }
}

impl Vms {
    /// Removes all VMs from the table.
    pub fn forget(&self) {
        self.slots.lock().by_name.clear();
    }
}

impl VmTable {
    fn fresh_name(&mut self) -> String {
        loop {
            let name = format!("vm{}", self.next);
            self.next += 1;
            if !self.by_name.contains_key(&name) {
                return name;
            }
        }
    }
}

impl Reservation {
    /// The name that is taken.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Puts the finished VM into the table.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the server began to shut down meanwhile.
    pub fn fill(self, process: Arc<VmProcess>) -> Result<(), Status> {
        let mut slots = self.vms.slots.lock();
        if slots.closed {
            return Err(shutting_down());
        }
        slots
            .by_name
            .insert(self.name.clone(), VmEntry::Ready(process));
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut slots = self.vms.slots.lock();
        if let Some(VmEntry::Reserved { .. }) = slots.by_name.get(&self.name) {
            slots.by_name.remove(&self.name);
        }
    }
}

fn shutting_down() -> Status {
    status::because(Reason::ShuttingDown, "the server is shutting down")
}

fn check_name(name: &str) -> Result<String, Status> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.len() > limits::NAME_CHARS || !name.chars().all(fits) {
        return Err(status::invalid(
            "name",
            format!(
                "a VM's name has at most {} letters, digits, `-`, `_` and `.`",
                limits::NAME_CHARS
            ),
        ));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::limits::Limits;

    fn vms(limits: Limits) -> Arc<Vms> {
        let program = VmProgram::Process("/proc/self/exe".into());
        let settings = Settings {
            limits,
            ..Settings::default()
        };
        Arc::new(Vms::new(settings, program, None))
    }

    #[test]
    fn a_reserved_name_is_taken_until_it_is_dropped() {
        let vms = vms(Limits::default());
        let reservation = vms.reserve("a", 64).unwrap();
        assert_eq!(
            vms.reserve("a", 64).unwrap_err().code(),
            Code::AlreadyExists
        );
        assert_eq!(vms.get("a").unwrap_err().code(), Code::FailedPrecondition);
        drop(reservation);
        assert_eq!(vms.get("a").unwrap_err().code(), Code::NotFound);
        assert!(vms.reserve("a", 64).is_ok());
    }

    #[test]
    fn a_vm_without_a_name_gets_a_free_one() {
        let vms = vms(Limits::default());
        let taken = vms.reserve("vm0", 64).unwrap();
        let made = vms.reserve("", 64).unwrap();
        assert_eq!((taken.name(), made.name()), ("vm0", "vm1"));
    }

    #[test]
    fn a_name_that_would_not_print_well_is_refused() {
        let vms = vms(Limits::default());
        for name in ["a b", "a/b", "ä", "a\n", &"x".repeat(65)] {
            assert_eq!(
                vms.reserve(name, 64).unwrap_err().code(),
                Code::InvalidArgument,
                "{name}"
            );
        }
    }

    #[test]
    fn one_vm_too_many_exhausts_the_server() {
        let vms = vms(Limits::default());
        let taken: Vec<_> = (0..Limits::default().vms)
            .map(|_| vms.reserve("", 64).unwrap())
            .collect();
        assert_eq!(
            vms.reserve("", 64).unwrap_err().code(),
            Code::ResourceExhausted
        );
        drop(taken);
        assert!(vms.reserve("", 64).is_ok());
    }

    #[test]
    fn a_server_that_shuts_down_takes_no_vm() {
        let vms = vms(Limits::default());
        vms.close();
        assert_eq!(vms.reserve("a", 64).unwrap_err().code(), Code::Unavailable);
    }

    #[test]
    fn guests_have_so_much_memory_together_and_no_more() {
        let limits = Limits {
            guest_memory_mib: 1000,
            ..Limits::default()
        };
        let vms = vms(limits);
        let first = vms.reserve("a", 600).unwrap();
        for too_much in [401, u64::MAX] {
            let refused = vms.reserve("b", too_much).unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted);
            let message = refused.message();
            assert!(message.contains("--max-guest-memory"), "{message}");
        }
        assert!(vms.reserve("b", 400).is_ok());
        drop(first);
        assert!(vms.reserve("b", 1000).is_ok());
    }
}
