//! The registers by which a driver negotiates with a device and sets up its queues (4.1.4.3).

use std::sync::Arc;

use virtio_queue::{Queue, QueueT};

use super::{device_config::DeviceConfig, interrupts::Interrupts};

/// Bytes of the registers.
pub(crate) const LEN: usize = 0x38;

/// Where each register is.
const DEVICE_FEATURE_SELECT: usize = 0x00;
const DEVICE_FEATURE: usize = 0x04;
const DRIVER_FEATURE_SELECT: usize = 0x08;
const DRIVER_FEATURE: usize = 0x0c;
const CONFIG_VECTOR: usize = 0x10;
const NUM_QUEUES: usize = 0x12;
const DEVICE_STATUS: usize = 0x14;
const CONFIG_GENERATION: usize = 0x15;
const QUEUE_SELECT: usize = 0x16;
const QUEUE_SIZE: usize = 0x18;
const QUEUE_VECTOR: usize = 0x1a;
const QUEUE_ENABLE: usize = 0x1c;
const QUEUE_NOTIFY_OFFSET: usize = 0x1e;
const QUEUE_DESCRIPTORS: usize = 0x20;
const QUEUE_DRIVER: usize = 0x28;
const QUEUE_DEVICE: usize = 0x30;
/// From a register's low word to its high word.
const HIGH: usize = 4;

/// Bits of the device status (2.1).
const FEATURES_OK: u8 = 1 << 3;
const DRIVER_OK: u8 = 1 << 2;
const NEEDS_RESET: u8 = 1 << 6;

/// Features of the transport: chains that are in a table of their own, doorbells and interrupts on demand,
/// and that the device isn't one of before version 1 (6, "Reserved Feature Bits").
const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;
const VERSION_1: u64 = 1 << 32;

/// What a write of the driver's asks of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Nothing more.
    None,
    /// The driver is ready: the device is to be started.
    Start,
    /// The device is to be stopped and forgets everything.
    Reset,
}

/// The registers.
pub(crate) struct CommonConfig {
    interrupts: Arc<Interrupts>,
    /// What is offered, and what the driver has accepted.
    offered: u64,
    accepted: u64,
    device_feature_select: u32,
    driver_feature_select: u32,
    status: u8,
    queue_select: u16,
    queues: Vec<Queue>,
    config: DeviceConfig,
}

impl CommonConfig {
    /// Registers of a device that offers `features` of its own and has `queues` and `config`.
    pub(crate) fn new(
        features: u64,
        queues: Vec<Queue>,
        interrupts: Arc<Interrupts>,
        config: DeviceConfig,
    ) -> Self {
        Self {
            interrupts,
            offered: features | VERSION_1 | EVENT_INDEX | INDIRECT_DESCRIPTORS,
            accepted: 0,
            device_feature_select: 0,
            driver_feature_select: 0,
            status: 0,
            queue_select: 0,
            queues,
            config,
        }
    }

    /// The features that the driver has accepted.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The queues that the driver has enabled, with their numbers.
    pub(crate) fn enabled_queues(&self) -> impl Iterator<Item = (usize, Queue)> {
        let event_index = self.accepted & EVENT_INDEX != 0;
        let enabled = self.queues.iter().enumerate().filter(|(_, q)| q.ready());
        enabled.filter_map(move |(index, queue)| {
            let mut copy = Queue::try_from(queue.state()).ok()?;
            copy.set_event_idx(event_index);
            Some((index, copy))
        })
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        for queue in &mut self.queues {
            queue.reset();
        }
        self.interrupts.reset();
        self.accepted = 0;
        self.device_feature_select = 0;
        self.driver_feature_select = 0;
        self.status = 0;
        self.queue_select = 0;
    }

    /// Does a read of any width. What is no register reads as zeros.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) {
        let image = self.image();
        for (byte, at) in data.iter_mut().zip(offset..) {
            *byte = image.get(at).copied().unwrap_or(0);
        }
    }

    fn image(&self) -> [u8; LEN] {
        let mut image = [0; LEN];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(
            DEVICE_FEATURE_SELECT,
            &self.device_feature_select.to_le_bytes(),
        );
        put(
            DEVICE_FEATURE,
            &word(self.offered, self.device_feature_select).to_le_bytes(),
        );
        put(
            DRIVER_FEATURE_SELECT,
            &self.driver_feature_select.to_le_bytes(),
        );
        put(
            DRIVER_FEATURE,
            &word(self.accepted, self.driver_feature_select).to_le_bytes(),
        );
        put(
            CONFIG_VECTOR,
            &self.interrupts.config_vector().to_le_bytes(),
        );
        put(NUM_QUEUES, &(self.queues.len() as u16).to_le_bytes());
        put(DEVICE_STATUS, &[self.status()]);
        put(CONFIG_GENERATION, &[self.config.generation()]);
        put(QUEUE_SELECT, &self.queue_select.to_le_bytes());
        let selected = usize::from(self.queue_select);
        let Some(queue) = self.queues.get(selected) else {
            return image;
        };
        put(QUEUE_SIZE, &queue.size().to_le_bytes());
        let vector = self.interrupts.queue_vector(selected);
        put(QUEUE_VECTOR, &vector.to_le_bytes());
        put(QUEUE_ENABLE, &u16::from(queue.ready()).to_le_bytes());
        put(QUEUE_NOTIFY_OFFSET, &self.queue_select.to_le_bytes());
        put(QUEUE_DESCRIPTORS, &queue.desc_table().to_le_bytes());
        put(QUEUE_DRIVER, &queue.avail_ring().to_le_bytes());
        put(QUEUE_DEVICE, &queue.used_ring().to_le_bytes());
        image
    }

    fn status(&self) -> u8 {
        if self.interrupts.needs_reset() {
            self.status | NEEDS_RESET
        } else {
            self.status
        }
    }

    /// Does a write of a whole register; others are ignored (4.1.3.1: a driver makes none).
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> Request {
        match *data {
            [value] if offset == DEVICE_STATUS => return self.set_status(value),
            [a, b] => self.write_u16(offset, u16::from_le_bytes([a, b])),
            [a, b, c, d] => self.write_u32(offset, u32::from_le_bytes([a, b, c, d])),
            _ => {}
        }
        Request::None
    }

    fn set_status(&mut self, value: u8) -> Request {
        if value == 0 {
            return Request::Reset;
        }
        // Only a reset clears bits (2.1.1).
        let mut new = (value | self.status) & !NEEDS_RESET;
        if new & FEATURES_OK != 0 && self.status & FEATURES_OK == 0 {
            let is_known = self.accepted & !self.offered == 0;
            if !is_known || self.accepted & VERSION_1 == 0 {
                // The driver reads it back and gives up (3.1.1).
                new &= !FEATURES_OK;
            }
        }
        let starts = new & DRIVER_OK != 0 && self.status & DRIVER_OK == 0;
        if starts && new & FEATURES_OK == 0 {
            new &= !DRIVER_OK;
        }
        self.status = new;
        if starts && new & DRIVER_OK != 0 {
            Request::Start
        } else {
            Request::None
        }
    }

    fn write_u16(&mut self, offset: usize, value: u16) {
        let selected = usize::from(self.queue_select);
        match offset {
            CONFIG_VECTOR => self.interrupts.set_config_vector(value),
            QUEUE_SELECT => self.queue_select = value,
            QUEUE_VECTOR => self.interrupts.set_queue_vector(selected, value),
            QUEUE_SIZE => self.set_up(|queue| {
                let _stays_as_it_was = queue.try_set_size(value);
            }),
            // Only a reset disables (4.1.4.3.2).
            QUEUE_ENABLE if value == 1 => self.set_up(|queue| queue.set_ready(true)),
            _ => {}
        }
    }

    fn write_u32(&mut self, offset: usize, value: u32) {
        match offset {
            DEVICE_FEATURE_SELECT => self.device_feature_select = value,
            DRIVER_FEATURE_SELECT => self.driver_feature_select = value,
            DRIVER_FEATURE if self.status & FEATURES_OK == 0 => {
                if let Some(shift) = shift(self.driver_feature_select) {
                    self.accepted &= !(0xffff_ffff << shift);
                    self.accepted |= u64::from(value) << shift;
                }
            }
            _ => self.set_up(|queue| set_ring(queue, offset, value)),
        }
    }

    /// Changes the selected queue, unless it has been enabled.
    fn set_up(&mut self, change: impl FnOnce(&mut Queue)) {
        let queue = self.queues.get_mut(usize::from(self.queue_select));
        if let Some(queue) = queue.filter(|queue| !queue.ready()) {
            change(queue);
        }
    }
}

/// Sets half of the address of a ring. An address that isn't aligned is refused and stays as it was.
fn set_ring(queue: &mut Queue, offset: usize, value: u32) {
    const DESCRIPTORS_HIGH: usize = QUEUE_DESCRIPTORS + HIGH;
    const DRIVER_HIGH: usize = QUEUE_DRIVER + HIGH;
    const DEVICE_HIGH: usize = QUEUE_DEVICE + HIGH;
    match offset {
        QUEUE_DESCRIPTORS => queue.set_desc_table_address(Some(value), None),
        DESCRIPTORS_HIGH => queue.set_desc_table_address(None, Some(value)),
        QUEUE_DRIVER => queue.set_avail_ring_address(Some(value), None),
        DRIVER_HIGH => queue.set_avail_ring_address(None, Some(value)),
        QUEUE_DEVICE => queue.set_used_ring_address(Some(value), None),
        DEVICE_HIGH => queue.set_used_ring_address(None, Some(value)),
        _ => {}
    }
}

/// The first bit of the features that `select` stands for.
fn shift(select: u32) -> Option<u32> {
    (select < 2).then(|| select * 32)
}

fn word(features: u64, select: u32) -> u32 {
    shift(select).map_or(0, |shift| (features >> shift) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::devices::{
        events::recorded::RecordedEvents, pci::Msix, virtio::interrupts::NO_VECTOR,
    };

    const OWN_FEATURE: u64 = 1 << 5;

    fn registers() -> CommonConfig {
        let msix = Msix::new(&RecordedEvents::default(), 3).unwrap();
        let queues = vec![Queue::new(256).unwrap(), Queue::new(64).unwrap()];
        let interrupts = Arc::new(Interrupts::new(msix, queues.len()));
        CommonConfig::new(OWN_FEATURE, queues, interrupts, DeviceConfig::default())
    }

    fn read<const N: usize>(registers: &CommonConfig, offset: usize) -> [u8; N] {
        let mut data = [0xee; N];
        registers.read(offset, &mut data);
        data
    }

    fn accept(registers: &mut CommonConfig, features: u64) {
        for (select, word) in [(0u32, features as u32), (1, (features >> 32) as u32)] {
            registers.write(DRIVER_FEATURE_SELECT, &select.to_le_bytes());
            registers.write(DRIVER_FEATURE, &word.to_le_bytes());
        }
    }

    #[test]
    fn features_are_offered_and_accepted_by_halves() {
        let mut registers = registers();
        let mut offered = [0; 3];
        for (word, select) in offered.iter_mut().zip(0u32..) {
            registers.write(DEVICE_FEATURE_SELECT, &select.to_le_bytes());
            *word = u32::from_le_bytes(read(&registers, DEVICE_FEATURE));
        }
        assert_eq!(offered, [1 << 28 | 1 << 29 | 1 << 5, 1, 0]);
        accept(&mut registers, VERSION_1 | OWN_FEATURE);
        assert_eq!(registers.accepted(), VERSION_1 | OWN_FEATURE);
        assert_eq!(
            registers.write(DEVICE_STATUS, &[3 | FEATURES_OK]),
            Request::None
        );
        accept(&mut registers, VERSION_1);
        assert_eq!(registers.accepted(), VERSION_1 | OWN_FEATURE);
        assert_eq!(
            registers.write(DEVICE_STATUS, &[0x0f]),
            Request::Start,
            "the driver is ready"
        );
        assert_eq!(registers.write(DEVICE_STATUS, &[0x0f]), Request::None);
        assert_eq!(registers.write(DEVICE_STATUS, &[0]), Request::Reset);
    }

    #[test]
    fn a_driver_that_knows_no_version_1_or_features_that_were_not_offered_is_refused() {
        for features in [0, OWN_FEATURE, VERSION_1 | 1 << 3] {
            let mut registers = registers();
            accept(&mut registers, features);
            registers.write(DEVICE_STATUS, &[3 | FEATURES_OK]);
            assert_eq!(read(&registers, DEVICE_STATUS), [3], "{features:#x}");
            assert_eq!(registers.write(DEVICE_STATUS, &[0x0f]), Request::None);
            assert_eq!(read(&registers, DEVICE_STATUS), [3], "{features:#x}");
        }
    }

    #[test]
    fn a_queue_is_set_up_until_it_is_enabled() {
        let mut registers = registers();
        registers.write(QUEUE_SELECT, &1u16.to_le_bytes());
        assert_eq!(read(&registers, QUEUE_SIZE), 64u16.to_le_bytes());
        registers.write(QUEUE_SIZE, &128u16.to_le_bytes());
        assert_eq!(read(&registers, QUEUE_SIZE), 64u16.to_le_bytes());
        registers.write(QUEUE_SIZE, &32u16.to_le_bytes());
        registers.write(QUEUE_DESCRIPTORS + HIGH, &1u32.to_le_bytes());
        registers.write(QUEUE_DESCRIPTORS, &0x2000u32.to_le_bytes());
        registers.write(QUEUE_VECTOR, &2u16.to_le_bytes());
        registers.write(QUEUE_ENABLE, &1u16.to_le_bytes());
        registers.write(QUEUE_SIZE, &16u16.to_le_bytes());
        registers.write(QUEUE_DESCRIPTORS, &0x3000u32.to_le_bytes());
        assert_eq!(read(&registers, QUEUE_SIZE), 32u16.to_le_bytes());
        assert_eq!(
            read(&registers, QUEUE_DESCRIPTORS),
            0x1_0000_2000u64.to_le_bytes()
        );
        assert_eq!(read(&registers, QUEUE_VECTOR), 2u16.to_le_bytes());
        assert_eq!(read(&registers, QUEUE_NOTIFY_OFFSET), 1u16.to_le_bytes());
        let enabled: Vec<usize> = registers.enabled_queues().map(|(index, _)| index).collect();
        assert_eq!(enabled, [1]);
        registers.reset();
        assert_eq!(registers.enabled_queues().count(), 0);
        assert_eq!(read(&registers, QUEUE_SIZE), 256u16.to_le_bytes());
    }

    #[test]
    fn a_change_of_the_configuration_has_another_generation() {
        let mut registers = registers();
        assert_eq!(read(&registers, CONFIG_GENERATION), [0]);
        registers.config.change(0, &[1]);
        assert_eq!(read(&registers, CONFIG_GENERATION), [1]);
        registers.reset();
        assert_eq!(read(&registers, CONFIG_GENERATION), [1]);
    }

    #[test]
    fn a_vector_that_there_is_not_reads_back_as_none() {
        let mut registers = registers();
        for (written, read_back) in [(2u16, 2), (3, NO_VECTOR), (NO_VECTOR, NO_VECTOR)] {
            for register in [CONFIG_VECTOR, QUEUE_VECTOR] {
                registers.write(register, &written.to_le_bytes());
                assert_eq!(read(&registers, register), read_back.to_le_bytes());
            }
        }
    }

    proptest! {
        /// Any accesses, of any width, do no harm; a reset brings back the beginning.
        #[test]
        fn registers_bear_every_access(
            accesses in prop::collection::vec((0usize..0x50, prop::collection::vec(any::<u8>(), 0..9)), 0..200),
        ) {
            let mut registers = registers();
            let beginning = registers.image();
            for (offset, data) in accesses {
                registers.write(offset, &data);
                let mut read = vec![0; data.len()];
                registers.read(offset, &mut read);
            }
            registers.reset();
            prop_assert_eq!(registers.image(), beginning);
        }
    }
}
