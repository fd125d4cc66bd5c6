//! What a process that runs one VM may still do once the guest runs.
//!
//! A guest that finds a hole in the monitor is in this process. Three things keep it there. Each thread has a
//! seccomp filter of its own ([`Role`], `filters/`): a system call that its work doesn't need ends the process.
//! Landlock keeps all threads from the host's files, but for the folders that the guest was given ([`Access`]). And
//! no thread keeps a capability, except those that the shares of a root's process need. Files that are opened for
//! the VM are opened before that.
//!
//! A thread hands its filters down to the threads that it starts (seccomp(2), "execve, fork and clone"). So that a
//! vCPU's thread, which starts a device when the driver says so, needs no more than its own calls, one thread
//! starts all others: the `Starter`. It also makes the VM, before it is restricted itself.

mod allocator;
mod capabilities;
mod error;
mod files;
mod filters;
mod role;
mod starter;
mod violation;

use std::{
    fmt, io,
    panic::resume_unwind,
    sync::{Arc, mpsc::channel},
    thread::{Builder, JoinHandle},
};

pub use error::ConfinementError;
pub use files::Access;
pub use role::Role;
pub use violation::frame_violations;

use files::FileRules;
use filters::Filters;
use starter::Starter;

/// How a process is confined: each of its VM's threads gets its restrictions from it.
#[derive(Clone, Default)]
pub struct Confinement(Option<Arc<Confined>>);

struct Confined {
    /// None where they were not wanted.
    filters: Option<Filters>,
    files: FileRules,
    /// Whether the threads of file systems keep the capabilities that a root's files need.
    keeps_file_capabilities: bool,
    starter: Starter,
}

impl fmt::Debug for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Confinement")
            .field(&self.0.is_some())
            .finish()
    }
}

impl Confinement {
    /// None: threads may do what the process may.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Prepares this process for a VM that reaches the files of `access` once it runs. Call it before the process
    /// has other threads; then let each thread [`enter`](Self::enter) its role. `with_filters` is false where
    /// seccomp isn't wanted.
    ///
    /// # Errors
    /// See [`ConfinementError`].
    pub fn prepare(access: &Access, with_filters: bool) -> Result<Self, ConfinementError> {
        violation::install_handler();
        allocator::limit_arenas();
        let filters = with_filters.then(Filters::compile).transpose()?;
        let starter = Starter::new().map_err(ConfinementError::Thread)?;
        let read = starter.run(allocator::give_memory_back);
        read.map_err(ConfinementError::Thread)?;
        Ok(Self(Some(Arc::new(Confined {
            filters,
            files: FileRules::new(access)?,
            keeps_file_capabilities: access.has_folders(),
            starter,
        }))))
    }

    /// Runs `work`, which makes the VM and opens its files, on the thread that starts others. This thread isn't
    /// restricted before [`seal`](Self::seal).
    ///
    /// # Errors
    /// The thread has ended, as earlier work has panicked.
    pub fn make<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> io::Result<R> {
        match &self.0 {
            Some(confined) => confined.starter.run(work),
            None => Ok(work()),
        }
    }

    /// Restricts the thread that starts others. All that it starts from now on is restricted.
    ///
    /// # Errors
    /// See [`ConfinementError`].
    pub fn seal(&self) -> Result<(), ConfinementError> {
        let this = self.clone();
        let sealed = self.make(move || this.enter(Role::Starter));
        sealed.map_err(ConfinementError::Thread)?
    }

    /// Restricts the calling thread to what `role` needs, for good.
    ///
    /// # Errors
    /// See [`ConfinementError`].
    pub fn enter(&self, role: Role) -> Result<(), ConfinementError> {
        let Some(confined) = &self.0 else {
            return Ok(());
        };
        confined.files.enforce()?;
        let keeps = confined.keeps_file_capabilities && role.keeps_file_capabilities();
        capabilities::drop_all_but(keeps).map_err(ConfinementError::Capabilities)?;
        match &confined.filters {
            Some(filters) => filters.apply(role),
            None => Ok(()),
        }
    }

    /// Starts a thread that is restricted to what `role` needs before it does any work.
    ///
    /// # Errors
    /// The host has no thread, or doesn't restrict it.
    pub fn spawn<R: Send + 'static>(
        &self,
        role: Role,
        name: String,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> io::Result<JoinHandle<R>> {
        let builder = Builder::new().name(name);
        let Some(confined) = &self.0 else {
            return builder.spawn(work);
        };
        let this = self.clone();
        let (tell, told) = channel();
        let confined_work = move || {
            let entered = this.enter(role);
            let is_refused = entered.is_err();
            let _the_starter_waits = tell.send(entered);
            if is_refused {
                // Without a message: the caller that asked for the thread gets the error.
                resume_unwind(Box::new("unconfined"));
            }
            work()
        };
        confined.starter.run(move || {
            let thread = builder.spawn(confined_work)?;
            match told.recv().map_err(io::Error::other)? {
                Ok(()) => Ok(thread),
                Err(error) => Err(io::Error::other(error)),
            }
        })?
    }
}
