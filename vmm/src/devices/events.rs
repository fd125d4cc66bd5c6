//! What a device needs of KVM while the guest runs: interrupts and doorbells, both as events.
//!
//! A thread that has these needs no other call of KVM's than writes and reads of event files.

use std::io;

use vmm_sys_util::eventfd::EventFd;

/// A message signalled interrupt: what a device writes, and where (PCI Local Bus 3.0, 6.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MsiMessage {
    /// The address, which tells the CPU.
    pub(crate) address: u64,
    /// The data, which tells the vector.
    pub(crate) data: u32,
}

/// An interrupt that a device can raise.
pub(crate) trait InterruptVector: Send + Sync {
    /// Sets what the interrupt is in the guest from now on.
    ///
    /// # Errors
    /// KVM's refusal; the message before stays.
    fn set_message(&self, message: MsiMessage) -> io::Result<()>;

    /// Raises it.
    ///
    /// # Errors
    /// The event can't be written.
    fn signal(&self) -> io::Result<()>;
}

/// Makes interrupts and doorbells for a guest's devices.
pub(crate) trait DeviceEvents: Send + Sync {
    /// A new interrupt. It is none in the guest until its message is set.
    ///
    /// # Errors
    /// KVM's refusal.
    fn new_vector(&self) -> io::Result<Box<dyn InterruptVector>>;

    /// Makes KVM signal `event` at each write of the guest's to `address`, instead of leaving guest
    /// mode for it.
    ///
    /// # Errors
    /// KVM's refusal; writes to the address then leave guest mode.
    fn add_doorbell(&self, address: u64, event: &EventFd) -> io::Result<()>;

    /// Takes back [`add_doorbell`](Self::add_doorbell), with the same arguments.
    ///
    /// # Errors
    /// KVM's refusal.
    fn remove_doorbell(&self, address: u64, event: &EventFd) -> io::Result<()>;
}

#[cfg(any(test, feature = "testing"))]
pub(crate) mod recorded {
    //! Interrupts and doorbells that are noted instead.

    use std::{io, sync::Arc};

    use parking_lot::{Condvar, Mutex};
    use vmm_sys_util::eventfd::EventFd;

    use super::{DeviceEvents, InterruptVector, MsiMessage};

    /// What was asked for.
    #[derive(Clone, Default)]
    pub(crate) struct RecordedEvents {
        /// Messages of the interrupts that were raised.
        pub(crate) raised: Arc<Mutex<Vec<MsiMessage>>>,
        /// Addresses of the doorbells that there are.
        pub(crate) doorbells: Arc<Mutex<Vec<u64>>>,
        changed: Arc<Condvar>,
    }

    impl RecordedEvents {
        /// Waits until an interrupt with `data` is raised, and forgets it.
        pub(crate) fn wait_for(&self, data: u32) {
            let mut raised = self.raised.lock();
            loop {
                if let Some(at) = raised.iter().position(|message| message.data == data) {
                    raised.remove(at);
                    return;
                }
                self.changed.wait(&mut raised);
            }
        }

        /// Waits until any interrupt is raised, and forgets all.
        #[cfg(test)]
        pub(crate) fn wait_for_any(&self) {
            let mut raised = self.raised.lock();
            while raised.is_empty() {
                self.changed.wait(&mut raised);
            }
            raised.clear();
        }
    }

    struct RecordedVector {
        message: Mutex<MsiMessage>,
        raised: Arc<Mutex<Vec<MsiMessage>>>,
        changed: Arc<Condvar>,
    }

    impl InterruptVector for RecordedVector {
        fn set_message(&self, message: MsiMessage) -> io::Result<()> {
            *self.message.lock() = message;
            Ok(())
        }

        fn signal(&self) -> io::Result<()> {
            self.raised.lock().push(*self.message.lock());
            self.changed.notify_all();
            Ok(())
        }
    }

    impl DeviceEvents for RecordedEvents {
        fn new_vector(&self) -> io::Result<Box<dyn InterruptVector>> {
            Ok(Box::new(RecordedVector {
                message: Mutex::default(),
                raised: Arc::clone(&self.raised),
                changed: Arc::clone(&self.changed),
            }))
        }

        fn add_doorbell(&self, address: u64, _: &EventFd) -> io::Result<()> {
            self.doorbells.lock().push(address);
            Ok(())
        }

        fn remove_doorbell(&self, address: u64, _: &EventFd) -> io::Result<()> {
            self.doorbells.lock().retain(|at| *at != address);
            Ok(())
        }
    }
}
