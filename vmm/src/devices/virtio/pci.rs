//! A virtio device as a function on the PCI bus (4.1).

use std::{io, sync::Arc};

use parking_lot::Mutex;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

use super::{
    common_config::{self, CommonConfig, Request},
    device::{DeviceId, VirtioDevice},
    device_config::DeviceConfig,
    interrupts::Interrupts,
    queue::DeviceQueue,
    worker::{BelledQueue, Worker},
};
use crate::confinement::Confinement;
use crate::devices::{
    events::DeviceEvents,
    pci::{CapabilityId, ConfigSpace, Identity, Msix, PciFunction, TABLE_ENTRY_LEN},
};

/// Bytes of the function's memory.
pub(crate) const MEMORY_LEN: u32 = 0x8000;
/// Where the parts of it are, and how long each is.
const COMMON: Part = Part::new(0x0000, common_config::LEN as u32);
const INTERRUPT_STATUS: Part = Part::new(0x1000, 1);
const DEVICE_CONFIG: Part = Part::new(0x2000, 0x1000);
const DOORBELLS: Part = Part::new(0x3000, 0x1000);
const VECTOR_TABLE: Part = Part::new(0x4000, 0x1000);
const PENDING_VECTORS: Part = Part::new(0x5000, 0x1000);
/// Bytes from one queue's doorbell to the next.
const DOORBELL_STRIDE: u32 = 4;
/// Most queues of a device: there is room for their doorbells, and in the table for their vectors.
const MAX_QUEUES: usize = VECTOR_TABLE.len as usize / TABLE_ENTRY_LEN - 1;

/// Virtio's vendor, and the number of its device 0 of version 1 (4.1.2).
const VENDOR: u16 = 0x1af4;
const FIRST_DEVICE: u16 = 0x1040;
/// Revision of a device that is of version 1 only.
const REVISION: u8 = 1;
/// What a structure's capability tells (4.1.4).
const CFG_COMMON: u8 = 1;
const CFG_NOTIFY: u8 = 2;
const CFG_ISR: u8 = 3;
const CFG_DEVICE: u8 = 4;
const CFG_PCI: u8 = 5;
/// Offsets in the capability of the window into the function's memory, from its start (4.1.4.9).
const WINDOW_OFFSET: usize = 8;
const WINDOW_LEN: usize = 12;
const WINDOW_DATA: usize = 16;

/// A part of the function's memory.
#[derive(Clone, Copy)]
struct Part {
    start: u32,
    len: u32,
}

impl Part {
    const fn new(start: u32, len: u32) -> Self {
        Self { start, len }
    }

    /// The offset in the part of `at` in the memory.
    fn offset(self, at: u64) -> Option<usize> {
        let offset = at.checked_sub(u64::from(self.start))?;
        (offset < u64::from(self.len)).then_some(offset as usize)
    }
}

/// The function.
pub(crate) struct VirtioPci {
    name: String,
    interrupts: Arc<Interrupts>,
    events: Arc<dyn DeviceEvents>,
    memory: Arc<GuestMemoryMmap>,
    device_config: DeviceConfig,
    doorbells: Vec<EventFd>,
    confinement: Confinement,
    /// Where its capabilities for interrupts and for the window are.
    msix_at: usize,
    window_at: usize,
    state: Mutex<State>,
}

struct State {
    config: ConfigSpace,
    common: CommonConfig,
    device: DeviceState,
    /// Where the doorbells are that KVM listens to.
    belled: Option<u64>,
}

enum DeviceState {
    Idle(Box<dyn VirtioDevice>),
    Started(Worker),
    /// It can't be started again.
    Failed,
}

impl VirtioPci {
    /// A function for `device`, at `address` until the guest moves it. Its thread will be called `name`, and confined
    /// by `confinement`.
    ///
    /// # Errors
    /// The host or KVM has no more events.
    pub(crate) fn new(
        name: String,
        device: Box<dyn VirtioDevice>,
        address: u32,
        memory: Arc<GuestMemoryMmap>,
        events: Arc<dyn DeviceEvents>,
        confinement: Confinement,
    ) -> io::Result<Self> {
        let sizes = device.queue_sizes();
        debug_assert!(sizes.len() <= MAX_QUEUES);
        let queues = sizes.iter().map(|size| Queue::new(*size));
        let queues = queues
            .collect::<Result<Vec<_>, _>>()
            .map_err(io::Error::other)?;
        let doorbell = || EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
        let doorbells = queues.iter().map(|_| doorbell());
        let doorbells = doorbells.collect::<io::Result<Vec<_>>>()?;
        let msix = Msix::new(&*events, queues.len() + 1)?;

        let mut config = ConfigSpace::new(&identity(device.id()));
        config.set_memory(address, MEMORY_LEN);
        let (body, writable) = msix.capability(VECTOR_TABLE.start, PENDING_VECTORS.start);
        let msix_at = config.add_capability(CapabilityId::MsiX, &body, &writable);
        let stride = DOORBELL_STRIDE.to_le_bytes();
        for (kind, part, more) in [
            (CFG_COMMON, COMMON, &[][..]),
            (CFG_NOTIFY, DOORBELLS, &stride),
            (CFG_ISR, INTERRUPT_STATUS, &[]),
            (CFG_DEVICE, DEVICE_CONFIG, &[]),
        ] {
            let body = structure(kind, part, more);
            config.add_capability(CapabilityId::VendorSpecific, &body, &[]);
        }
        let window_at = add_window(&mut config);

        let interrupts = Arc::new(Interrupts::new(msix, queues.len()));
        let device_config = device.config();
        let common = CommonConfig::new(
            device.features(),
            queues,
            Arc::clone(&interrupts),
            device_config.clone(),
        );
        Ok(Self {
            name,
            interrupts,
            events,
            memory,
            device_config,
            doorbells,
            confinement,
            msix_at,
            window_at,
            state: Mutex::new(State {
                config,
                common,
                device: DeviceState::Idle(device),
                belled: None,
            }),
        })
    }

    /// Stops the device, for good.
    pub(crate) fn stop(&self) {
        let state = std::mem::replace(&mut self.state.lock().device, DeviceState::Failed);
        drop(state);
    }

    fn start(&self, state: &mut State) {
        let DeviceState::Idle(device) = std::mem::replace(&mut state.device, DeviceState::Failed)
        else {
            return;
        };
        match self.started(device, &state.common) {
            Ok(worker) => state.device = DeviceState::Started(worker),
            Err(Unstarted { device, reason }) => {
                tracing::warn!(device = self.name, "not started: {reason}");
                state.device = device.map_or(DeviceState::Failed, DeviceState::Idle);
                self.interrupts.need_reset();
            }
        }
    }

    fn started(
        &self,
        device: Box<dyn VirtioDevice>,
        common: &CommonConfig,
    ) -> Result<Worker, Unstarted> {
        let mut queues = Vec::new();
        for (index, queue) in common.enabled_queues() {
            let queue = DeviceQueue::new(index, queue, &self.memory, &self.interrupts);
            let doorbell = self.doorbells.get(index).map(EventFd::try_clone);
            let (Some(queue), Some(Ok(doorbell))) = (queue, doorbell) else {
                let reason = format!("queue {index} is not in the guest's memory");
                return Err(Unstarted {
                    device: Some(device),
                    reason,
                });
            };
            queues.push(BelledQueue { queue, doorbell });
        }
        let interrupts = Arc::clone(&self.interrupts);
        Worker::start(
            self.name.clone(),
            device,
            common.accepted(),
            queues,
            interrupts,
            &self.confinement,
        )
        .map_err(|error| Unstarted {
            device: None,
            reason: error.to_string(),
        })
    }

    fn reset(state: &mut State) {
        let device = std::mem::replace(&mut state.device, DeviceState::Failed);
        state.device = match device {
            DeviceState::Started(worker) => {
                worker.stop().map_or(DeviceState::Failed, DeviceState::Idle)
            }
            other => other,
        };
        state.common.reset();
    }

    /// Makes KVM listen to the doorbells where the function's memory is now.
    fn move_doorbells(&self, state: &mut State) {
        let now = state.config.memory();
        if state.belled == now {
            return;
        }
        let address = |memory: u64, index: u64| {
            memory + u64::from(DOORBELLS.start) + index * u64::from(DOORBELL_STRIDE)
        };
        for (doorbell, index) in self.doorbells.iter().zip(0..) {
            if let Some(memory) = state.belled
                && let Err(error) = self
                    .events
                    .remove_doorbell(address(memory, index), doorbell)
            {
                tracing::debug!(device = self.name, "a doorbell stays: {error}");
            }
            if let Some(memory) = now
                && let Err(error) = self.events.add_doorbell(address(memory, index), doorbell)
            {
                tracing::debug!(
                    device = self.name,
                    "a doorbell costs an exit each time: {error}"
                );
            }
        }
        state.belled = now;
    }

    fn read_at(&self, state: &State, at: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some(offset) = COMMON.offset(at) {
            state.common.read(offset, data);
        } else if INTERRUPT_STATUS.offset(at).is_some() {
            if let Some(first) = data.first_mut() {
                *first = self.interrupts.take_status();
            }
        } else if let Some(offset) = DEVICE_CONFIG.offset(at) {
            self.device_config.read(offset, data);
        } else if let Some(offset) = VECTOR_TABLE.offset(at) {
            self.interrupts.msix().read_table(offset, data);
        } else if let Some(offset) = PENDING_VECTORS.offset(at) {
            self.interrupts.msix().read_pending(offset, data);
        }
    }

    fn write_at(&self, state: &mut State, at: u64, data: &[u8]) {
        if let Some(offset) = COMMON.offset(at) {
            match state.common.write(offset, data) {
                Request::None => {}
                Request::Start => self.start(state),
                Request::Reset => Self::reset(state),
            }
        } else if let Some(offset) = DOORBELLS.offset(at) {
            // Where KVM doesn't listen.
            let doorbell = self.doorbells.get(offset / DOORBELL_STRIDE as usize);
            if let Some(Err(error)) = doorbell.map(|doorbell| doorbell.write(1)) {
                tracing::debug!(device = self.name, "a doorbell can't be rung: {error}");
            }
        } else if let Some(offset) = VECTOR_TABLE.offset(at) {
            self.interrupts.msix().write_table(offset, data);
        }
    }

    /// What the driver has set the window to: the place in the memory and a length of 1, 2 or 4.
    fn window(&self, state: &State) -> Option<(u64, usize)> {
        let at = state.config.u32_at(self.window_at + WINDOW_OFFSET);
        let len = state.config.u32_at(self.window_at + WINDOW_LEN);
        let is_inside = u64::from(at) + u64::from(len) <= u64::from(MEMORY_LEN);
        ([1, 2, 4].contains(&len) && is_inside).then_some((u64::from(at), len as usize))
    }
}

struct Unstarted {
    /// None if it is gone.
    device: Option<Box<dyn VirtioDevice>>,
    reason: String,
}

impl PciFunction for VirtioPci {
    fn read_config(&self, offset: usize, data: &mut [u8]) {
        let mut state = self.state.lock();
        let window = self.window_at + WINDOW_DATA;
        if offset == window
            && let Some((at, len)) = self.window(&state)
        {
            let mut read = [0; 4];
            self.read_at(&state, at, &mut read[..len]);
            state.config.put(window, &read);
        }
        state.config.read(offset, data);
    }

    fn write_config(&self, offset: usize, data: &[u8]) {
        let mut state = self.state.lock();
        state.config.write(offset, data);
        let control = state.config.u16_at(self.msix_at + 2);
        self.interrupts.msix().set_control(control);
        self.move_doorbells(&mut state);
        if offset == self.window_at + WINDOW_DATA
            && let Some((at, len)) = self.window(&state)
        {
            let mut written = [0; 4];
            state.config.read(offset, &mut written);
            self.write_at(&mut state, at, &written[..len]);
        }
    }

    fn memory(&self) -> Option<u64> {
        self.state.lock().config.memory()
    }

    fn memory_len(&self) -> u64 {
        u64::from(MEMORY_LEN)
    }

    fn read_memory(&self, offset: u64, data: &mut [u8]) {
        self.read_at(&self.state.lock(), offset, data);
    }

    fn write_memory(&self, offset: u64, data: &[u8]) {
        self.write_at(&mut self.state.lock(), offset, data);
    }
}

fn identity(id: DeviceId) -> Identity {
    Identity {
        vendor: VENDOR,
        device: FIRST_DEVICE + id as u16,
        revision: REVISION,
        class: id.class(),
        subsystem_vendor: VENDOR,
        subsystem: FIRST_DEVICE + id as u16,
    }
}

/// What follows the kind and the link of a structure's capability, `struct virtio_pci_cap`: its length,
/// what it is, the BAR, its number among its kind, the place and the length there, and `more`.
fn structure(kind: u8, part: Part, more: &[u8]) -> Vec<u8> {
    const HEADER: usize = 16;
    let len = (HEADER + more.len()) as u8;
    let (start, bytes) = (part.start.to_le_bytes(), part.len.to_le_bytes());
    [&[len, kind, 0, 0, 0, 0][..], &start, &bytes, more].concat()
}

/// The window into the function's memory: the driver sets place and length, and the data is there.
fn add_window(config: &mut ConfigSpace) -> usize {
    let body = structure(CFG_PCI, Part::new(0, 0), &[0; 4]);
    let mut writable = vec![0xff; body.len()];
    // Length, kind, BAR (there is only one), number, padding.
    writable[..WINDOW_OFFSET - 2].fill(0);
    config.add_capability(CapabilityId::VendorSpecific, &body, &writable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::virtio::{driver::Driver, entropy::Entropy};

    fn driver() -> Driver {
        Driver::new(Box::new(Entropy))
    }

    fn config<const N: usize>(driver: &Driver, offset: usize) -> [u8; N] {
        let mut data = [0; N];
        driver.device.read_config(offset, &mut data);
        data
    }

    #[test]
    fn the_guest_finds_each_structure_by_its_capability() {
        let driver = driver();
        assert_eq!(config(&driver, 0), [0xf4, 0x1a, 0x44, 0x10]);
        let [mut at] = config(&driver, 0x34);
        let mut found = Vec::new();
        while at != 0 {
            let [id, next, len, kind] = config(&driver, at.into());
            if id == CapabilityId::VendorSpecific as u8 {
                let start = u32::from_le_bytes(config(&driver, usize::from(at) + 8));
                found.push((kind, len, start));
            }
            at = next;
        }
        let expected = [
            (CFG_COMMON, 16, COMMON.start),
            (CFG_NOTIFY, 20, DOORBELLS.start),
            (CFG_ISR, 16, INTERRUPT_STATUS.start),
            (CFG_DEVICE, 16, DEVICE_CONFIG.start),
            (CFG_PCI, 20, 0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_window_in_configuration_space_reaches_the_memory() {
        let mut driver = driver();
        driver.start();
        let window = driver.device.window_at;
        let look = |driver: &Driver, at: u32, len: u32| {
            driver
                .device
                .write_config(window + WINDOW_OFFSET, &at.to_le_bytes());
            driver
                .device
                .write_config(window + WINDOW_LEN, &len.to_le_bytes());
        };
        look(&driver, 0x14, 1);
        assert_eq!(config(&driver, window + WINDOW_DATA), [0x0f, 0, 0, 0]);
        driver.device.write_config(window + WINDOW_DATA, &[0]);
        assert_eq!(driver.status(), 0);
        for (at, len) in [(0x14, 3), (0x7ffe, 4), (u32::MAX, 1), (0, 0)] {
            look(&driver, at, len);
            driver.device.write_config(window + WINDOW_DATA, &[0xff; 4]);
            assert_eq!(config(&driver, window + WINDOW_DATA), [0xff; 4]);
        }
        assert_eq!(driver.status(), 0);
    }

    #[test]
    fn doorbells_follow_the_memory_and_ring_also_where_kvm_does_not_listen() {
        let driver = driver();
        let device = &driver.device;
        assert!(driver.events.doorbells.lock().is_empty());
        device.write_config(4, &2u16.to_le_bytes());
        assert_eq!(*driver.events.doorbells.lock(), [0xc000_3000]);
        device.write_config(0x10, &0xd000_0000u32.to_le_bytes());
        assert_eq!(*driver.events.doorbells.lock(), [0xd000_3000]);
        device.write_memory(0x3000, &[0, 0]);
        assert_eq!(device.doorbells[0].read().unwrap(), 1);
        device.write_memory(0x3004, &[0, 0]);
        device.write_config(4, &0u16.to_le_bytes());
        assert!(driver.events.doorbells.lock().is_empty());
    }

    #[test]
    fn every_offset_bears_accesses_of_every_width() {
        let mut driver = driver();
        driver.start();
        for width in [1, 2, 4, 8] {
            for at in (0..u64::from(MEMORY_LEN)).step_by(width) {
                let mut data = vec![0xee; width];
                driver.device.read_memory(at, &mut data);
                // The device's status alone is left, so that it goes on.
                if at + (width as u64) <= 0x14 || at > 0x14 {
                    driver.device.write_memory(at, &vec![0xff; width]);
                }
            }
            for at in 0..256 {
                let mut data = vec![0; width];
                driver.device.read_config(at, &mut data);
                driver.device.write_config(at, &data);
            }
        }
        driver.reset();
        driver.start();
        assert_eq!(driver.status(), 0x0f);
    }

    #[test]
    fn a_queue_that_is_no_memory_keeps_the_device_from_starting() {
        let mut driver = driver();
        driver.start();
        driver.reset();
        for status in [1u8, 3] {
            driver.put(0x14, &[status]);
        }
        driver.put(8, &1u32.to_le_bytes());
        driver.put(0xc, &1u32.to_le_bytes());
        driver.put(0x14, &[0x0b]);
        for register in [0x20, 0x28, 0x30] {
            driver.put(register + 4, &1u32.to_le_bytes());
        }
        driver.put(0x1c, &1u16.to_le_bytes());
        driver.put(0x14, &[0x0f]);
        assert_eq!(driver.status(), 0x4f);
        driver.reset();
        driver.start();
        assert_eq!(driver.status(), 0x0f);
    }
}
