//! An entropy device: random bytes of the host's (5.4).

use std::io::Write;

use rustix::rand::{GetRandomFlags, getrandom};

use super::{
    device::{DeviceId, VirtioDevice},
    queue::{DeviceQueue, QueueError},
};

const QUEUE_SIZE: u16 = 64;
/// Most bytes for one request: a driver that wants more asks again.
const REQUEST_LIMIT: usize = 4096;

/// The device.
pub(crate) struct Entropy;

impl VirtioDevice for Entropy {
    fn id(&self) -> DeviceId {
        DeviceId::Entropy
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn queue_ready(&mut self, _: usize, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        let Some(queue) = queues.first_mut() else {
            return Ok(());
        };
        let memory = queue.memory();
        queue.drain(|queue, chain| {
            let mut writer = queue.writer(&memory, &chain)?;
            let mut bytes = [0; REQUEST_LIMIT];
            let bytes = &mut bytes[..writer.available_bytes().min(REQUEST_LIMIT)];
            let written = match getrandom(&mut *bytes, GetRandomFlags::empty()) {
                Ok(filled) => writer.write(&bytes[..filled]).unwrap_or(0),
                Err(error) => {
                    tracing::warn!("the host has no random bytes: {error}");
                    0
                }
            };
            queue.finish(&chain, written as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::virtio::driver::{Buffer, CONFIG_INTERRUPT, Driver, QUEUE_SIZE};

    const AT: u64 = 0x10_0000;
    const NEEDS_RESET: u8 = 0x40;

    fn room(len: u32) -> Buffer {
        Buffer {
            at: AT,
            len,
            writable: true,
        }
    }

    #[test]
    fn a_request_is_filled_with_bytes_that_differ_each_time() {
        let mut driver = Driver::started(Box::new(Entropy));
        let mut seen = Vec::new();
        for _ in 0..3 {
            driver.offer(&[room(64)]);
            assert_eq!(driver.finished(), 64);
            let bytes = driver.bytes(AT, 64);
            assert!(!seen.contains(&bytes), "{bytes:?}");
            seen.push(bytes);
        }
    }

    #[test]
    fn a_long_request_is_filled_in_part_and_one_without_room_not_at_all() {
        let mut driver = Driver::started(Box::new(Entropy));
        driver.offer(&[room(1 << 20)]);
        assert_eq!(driver.finished(), REQUEST_LIMIT as u32);
        let unreadable = Buffer {
            writable: false,
            ..room(64)
        };
        driver.offer(&[unreadable]);
        assert_eq!(driver.finished(), 0);
    }

    #[test]
    fn a_driver_that_breaks_the_protocol_must_reset_the_device_which_then_serves_again() {
        let breaks: [fn(&mut Driver); 3] = [
            // A buffer that is no memory.
            |driver| {
                driver.offer(&[Buffer {
                    at: 1 << 40,
                    ..room(64)
                }]);
            },
            // More chains than the ring has room for.
            |driver| {
                driver.set_available(QUEUE_SIZE + 1);
                driver.put(0x3000, &0u16.to_le_bytes());
            },
            // A head that is no descriptor.
            |driver| driver.offer_head(QUEUE_SIZE),
        ];
        let mut driver = Driver::new(Box::new(Entropy));
        for break_it in breaks {
            driver.start();
            break_it(&mut driver);
            driver.events.wait_for(CONFIG_INTERRUPT);
            assert_eq!(driver.status() & NEEDS_RESET, NEEDS_RESET);
            driver.reset();
            driver.start();
            driver.offer(&[room(8)]);
            assert_eq!(driver.finished(), 8);
            driver.reset();
        }
    }
}
