//! The configuration of a device, as its driver reads it (2.5).

use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes that the transport shows the driver, and that the device's thread may change. All copies are of the same
/// bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceConfig(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    /// Another number after each change (2.5.1).
    generation: u8,
}

impl From<Vec<u8>> for DeviceConfig {
    fn from(bytes: Vec<u8>) -> Self {
        let content = Content {
            bytes,
            generation: 0,
        };
        Self(Arc::new(Mutex::new(content)))
    }
}

impl DeviceConfig {
    /// Reads from `offset` on. What is behind the end reads as zeros.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) {
        let content = self.0.lock();
        for (byte, at) in data.iter_mut().zip(offset..) {
            *byte = content.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// Changes the bytes from `offset` on. The driver has to be told by
    /// [`DeviceQueue::config_changed`](super::queue::DeviceQueue::config_changed).
    pub(crate) fn change(&self, offset: usize, data: &[u8]) {
        let mut content = self.0.lock();
        for (byte, new) in content.bytes.iter_mut().skip(offset).zip(data) {
            *byte = *new;
        }
        content.generation = content.generation.wrapping_add(1);
    }

    /// The number of changes so far, modulo 256. A driver that reads several fields compares it before and after.
    pub(crate) fn generation(&self) -> u8 {
        self.0.lock().generation
    }
}
