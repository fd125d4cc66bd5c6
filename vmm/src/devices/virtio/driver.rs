//! A guest's driver, for tests: it does with a device's registers and queues what Linux does.

use std::sync::{
    Arc,
    atomic::{Ordering, fence},
};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::{device::VirtioDevice, pci::VirtioPci};
use crate::confinement::Confinement;
use crate::devices::{events::recorded::RecordedEvents, pci::PciFunction};

/// Where the function's memory begins, and the guest's own ends.
const FUNCTION: u32 = 0xc000_0000;
const MEMORY: usize = 4 << 20;
/// Elements of each queue.
pub(crate) const QUEUE_SIZE: u16 = 16;
/// Where the rings of queue 0 are, and bytes from one queue's to the next one's.
const RINGS: u64 = 0x1000;
const RINGS_LEN: u64 = 0x1000;
/// Where in a queue's rings the driver's and the device's begin.
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
/// Data of the interrupt of queue 0 and of changes of the configuration.
pub(crate) const QUEUE_INTERRUPT: u32 = 0x40;
pub(crate) const CONFIG_INTERRUPT: u32 = 0x30;
/// Flags of a descriptor (2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A piece of memory that a driver gives the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) at: u64,
    pub(crate) len: u32,
    /// The device is to fill it.
    pub(crate) writable: bool,
}

/// The driver and what it drives.
pub(crate) struct Driver {
    pub(crate) device: VirtioPci,
    pub(crate) memory: Arc<GuestMemoryMmap>,
    pub(crate) events: RecordedEvents,
    /// Features that it doesn't accept.
    pub(crate) refused: u64,
    /// Chains made available and taken back so far, by queue.
    queues: Vec<(u16, u16)>,
    /// The queue that chains go to.
    queue: u16,
}

impl Driver {
    /// A driver that has not begun.
    pub(crate) fn new(device: Box<dyn VirtioDevice>) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]);
        let memory = Arc::new(memory.unwrap());
        let events = RecordedEvents::default();
        let queues = device.queue_sizes().len();
        let device = VirtioPci::new(
            "test".to_owned(),
            device,
            FUNCTION,
            Arc::clone(&memory),
            Arc::new(events.clone()),
            Confinement::none(),
        );
        Self {
            device: device.unwrap(),
            memory,
            events,
            refused: 0,
            queues: vec![(0, 0); queues],
            queue: 0,
        }
    }

    /// How many queues the device has.
    pub(crate) fn queue_count(&self) -> u8 {
        self.queues.len() as u8
    }

    /// Makes chains go to queue `queue` from now on; at first they go to queue 0.
    pub(crate) fn use_queue(&mut self, queue: u16) {
        self.queue = queue;
    }

    /// Where the rings of the queue in use are.
    fn rings(&self) -> u64 {
        rings(self.queue)
    }

    /// A driver whose device serves, with all the features that it offers.
    pub(crate) fn started(device: Box<dyn VirtioDevice>) -> Self {
        let mut driver = Self::new(device);
        driver.start();
        driver
    }

    /// Negotiates and starts the device (3.1.1).
    pub(crate) fn start(&mut self) {
        self.queues.fill((0, 0));
        // Memory and bus master; interrupts by message, of which all are unmasked.
        self.device.write_config(4, &6u16.to_le_bytes());
        self.device.write_config(0x40 + 2, &0x8000u16.to_le_bytes());
        for vector in 0..=self.queues.len() as u32 {
            let entry = 0x4000 + u64::from(vector) * 16;
            let data = match vector {
                0 => CONFIG_INTERRUPT,
                queue => QUEUE_INTERRUPT + queue - 1,
            };
            self.put(entry, &0xfee0_0000u64.to_le_bytes());
            self.put(entry + 8, &data.to_le_bytes());
            self.put(entry + 12, &0u32.to_le_bytes());
        }
        for status in [0u8, 1, 3] {
            self.put(0x14, &[status]);
        }
        for select in [0u32, 1] {
            self.put(0, &select.to_le_bytes());
            self.put(8, &select.to_le_bytes());
            let offered = u32::from_le_bytes(self.get(4));
            let refused = (self.refused >> (32 * select)) as u32;
            self.put(0xc, &(offered & !refused).to_le_bytes());
        }
        self.put(0x14, &[0x0b]);
        assert_eq!(self.status(), 0x0b);
        self.put(0x10, &0u16.to_le_bytes());
        for queue in 0..self.queues.len() as u16 {
            let rings = rings(queue);
            self.memory
                .write_slice(&[0; RINGS_LEN as usize], GuestAddress(rings))
                .unwrap();
            self.put(0x16, &queue.to_le_bytes());
            self.put(0x18, &QUEUE_SIZE.to_le_bytes());
            self.put(0x1a, &(queue + 1).to_le_bytes());
            for (register, ring) in [(0x20, 0), (0x28, AVAILABLE), (0x30, USED)] {
                self.put(register, &((rings + ring) as u32).to_le_bytes());
                self.put(register + 4, &0u32.to_le_bytes());
            }
            self.put(0x1c, &1u16.to_le_bytes());
        }
        self.put(0x14, &[0x0f]);
    }

    /// Resets the device.
    pub(crate) fn reset(&mut self) {
        self.put(0x14, &[0]);
        assert_eq!(self.status(), 0);
    }

    pub(crate) fn status(&self) -> u8 {
        self.get::<1>(0x14)[0]
    }

    /// Writes to the function's memory.
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        self.device.write_memory(offset, bytes);
    }

    /// Reads the function's memory.
    pub(crate) fn get<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0xee; N];
        self.device.read_memory(offset, &mut bytes);
        bytes
    }

    /// Makes a chain of `buffers` available and rings the queue's doorbell. Descriptors are used again:
    /// only one chain may be under way.
    pub(crate) fn offer(&mut self, buffers: &[Buffer]) {
        self.offer_from(self.queue, 0, buffers);
    }

    /// Makes a chain of `buffers` available in `queue`, which is the one in use then. It takes as many
    /// descriptors, from `head` on.
    pub(crate) fn offer_from(&mut self, queue: u16, head: u16, buffers: &[Buffer]) {
        self.use_queue(queue);
        for (buffer, index) in buffers.iter().zip(head..) {
            let is_last = usize::from(index - head) + 1 == buffers.len();
            let flags = if is_last { 0 } else { NEXT } | if buffer.writable { WRITE } else { 0 };
            self.describe(index, buffer.at, buffer.len, flags, index + 1);
        }
        self.offer_head(head);
    }

    /// Writes a descriptor of the queue.
    pub(crate) fn describe(&self, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        let (at, len) = (at.to_le_bytes(), len.to_le_bytes());
        let descriptor = [&at[..], &len, &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        let place = GuestAddress(self.rings() + u64::from(index) * 16);
        self.memory.write_slice(&descriptor, place).unwrap();
    }

    /// Makes the chain from `head` on available and rings the queue's doorbell.
    pub(crate) fn offer_head(&mut self, head: u16) {
        let ring = self.rings() + AVAILABLE;
        let (available, _) = &mut self.queues[usize::from(self.queue)];
        let place = ring + 4 + u64::from(*available % QUEUE_SIZE) * 2;
        self.memory
            .write_slice(&head.to_le_bytes(), GuestAddress(place))
            .unwrap();
        *available = available.wrapping_add(1);
        let count = *available;
        self.set_available(count);
        let doorbell = 0x3000 + u64::from(self.queue) * 4;
        self.put(doorbell, &self.queue.to_le_bytes());
    }

    /// Says how many chains there have been in the queue.
    pub(crate) fn set_available(&self, count: u16) {
        fence(Ordering::SeqCst);
        self.memory
            .write_slice(
                &count.to_le_bytes(),
                GuestAddress(self.rings() + AVAILABLE + 2),
            )
            .unwrap();
    }

    /// Waits until the device has given the chain back, the only one under way. Returns how many bytes it says
    /// that it has filled.
    pub(crate) fn finished(&mut self) -> u32 {
        let queue = self.queue;
        self.events.wait_for(QUEUE_INTERRUPT + u32::from(queue));
        let (_, len) = self.finished_in(queue);
        let (_, taken) = self.queues[usize::from(queue)];
        assert_eq!(self.used_count(queue), taken, "one chain was given back");
        len
    }

    /// Waits until the device has given a chain of `queue` back. Returns its head, and how many bytes the
    /// device says that it has filled.
    pub(crate) fn finished_in(&mut self, queue: u16) -> (u16, u32) {
        let (_, taken) = self.queues[usize::from(queue)];
        while self.used_count(queue) == taken {
            self.events.wait_for(QUEUE_INTERRUPT + u32::from(queue));
        }
        let next = taken.wrapping_add(1);
        self.queues[usize::from(queue)].1 = next;
        // The next one is to interrupt as well (2.7.10).
        let event = rings(queue) + AVAILABLE + 4 + u64::from(QUEUE_SIZE) * 2;
        self.memory.write_obj(next, GuestAddress(event)).unwrap();
        fence(Ordering::SeqCst);
        let entry = rings(queue) + USED + 4 + u64::from(taken % QUEUE_SIZE) * 8;
        let word = |at: u64| self.memory.read_obj::<u32>(GuestAddress(at)).unwrap();
        (word(entry) as u16, word(entry + 4))
    }

    /// How many chains of the queue the device has given back so far.
    pub(crate) fn used_count(&self, queue: u16) -> u16 {
        let place = GuestAddress(rings(queue) + USED + 2);
        self.memory.read_obj(place).unwrap()
    }

    /// Bytes of the guest's memory.
    pub(crate) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read_slice(&mut bytes, GuestAddress(at))
            .unwrap();
        bytes
    }

    /// Sets bytes of the guest's memory.
    pub(crate) fn set_bytes(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }
}

/// Where the rings of `queue` are.
fn rings(queue: u16) -> u64 {
    RINGS + u64::from(queue) * RINGS_LEN
}
