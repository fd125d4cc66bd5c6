//! The device: it moves bytes between the queues and the VM's console.

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use event_manager::{EventOps, Events};

use super::{VirtioConsole, input::Input};
use crate::devices::{
    console::{Console, ConsoleWriter},
    guest_end::GuestEnd,
    virtio::{
        device::{DeviceId, VirtioDevice, watch_own},
        device_config::DeviceConfig,
        queue::{DeviceQueue, QueueError},
    },
};

/// The queue of input for the guest and that of the guest's output (5.3.2).
pub(super) const RX: usize = 0;
pub(super) const TX: usize = 1;
const QUEUE_SIZES: [u16; 2] = [64, 64];
/// The driver may read the size of the terminal in the configuration (5.3.3).
pub(super) const F_SIZE: u64 = 1 << 0;
/// Bytes that are moved in one piece.
const PIECE: usize = 4096;
/// Longest output of one chain. Linux' driver writes 32 KiB at most (`drivers/char/virtio_console.c`).
pub(super) const MAX_OUTPUT: usize = 1 << 20;
/// Most chains of each queue that are served before the thread looks at its other events.
const CHAINS: usize = 64;

/// The device.
pub(crate) struct ConsoleDevice {
    wanted: VirtioConsole,
    output: ConsoleWriter,
    end: GuestEnd,
    input: Input,
    /// Bytes on their way.
    piece: Box<[u8; PIECE]>,
}

impl ConsoleDevice {
    /// A device that has `console` at its other end. Input goes to it from now on, and waits until the guest's driver
    /// has started it.
    ///
    /// # Errors
    /// The host has no more files.
    pub(crate) fn new(
        wanted: VirtioConsole,
        console: &Arc<Console>,
        end: &GuestEnd,
    ) -> io::Result<Self> {
        let input = Input::new()?;
        console.connect_input(input.clone());
        Ok(Self {
            wanted,
            output: ConsoleWriter::new(console),
            end: end.clone(),
            input,
            piece: Box::new([0; PIECE]),
        })
    }

    /// Does what there is to do, but not for so long that other events wait for it.
    fn turn(&mut self, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        let mut more = false;
        for queue in queues {
            more |= match queue.index() {
                RX => self.give_input(queue)?,
                TX => self.take_output(queue)?,
                _ => false,
            };
        }
        if more {
            self.input.wake();
        }
        Ok(())
    }

    /// Gives the guest input as long as it has room. Returns true if there may be more that can be given.
    fn give_input(&mut self, queue: &mut DeviceQueue) -> Result<bool, QueueError> {
        let memory = queue.memory();
        queue.mute_doorbell()?;
        for _ in 0..CHAINS {
            if self.input.is_empty() {
                queue.notify()?;
                return Ok(false);
            }
            // The driver rings when it has room again.
            let Some(chain) = queue.next_or_listen()? else {
                return Ok(false);
            };
            let mut writer = queue.writer(&memory, &chain)?;
            let room = writer.available_bytes().min(PIECE);
            if room == 0 {
                return Err(queue.malformed("no room for input"));
            }
            let len = self.input.take(&mut self.piece[..room]);
            writer
                .write_all(&self.piece[..len])
                .map_err(|_| queue.malformed("it can't be written"))?;
            queue.finish(&chain, len as u32)?;
        }
        queue.notify()?;
        Ok(true)
    }

    /// Takes what the guest writes. Returns true if there may be more.
    fn take_output(&mut self, queue: &mut DeviceQueue) -> Result<bool, QueueError> {
        let memory = queue.memory();
        queue.mute_doorbell()?;
        for _ in 0..CHAINS {
            let Some(chain) = queue.next_or_listen()? else {
                return Ok(false);
            };
            let mut reader = queue.reader(&memory, &chain)?;
            if reader.available_bytes() > MAX_OUTPUT {
                return Err(queue.malformed("output of more than a MiB at a time"));
            }
            while reader.available_bytes() > 0 {
                let read = reader.read(&mut self.piece[..]);
                let len = read.map_err(|_| queue.malformed("it can't be read"))?;
                // Nothing that is written to a console fails.
                let _all_are_taken = self.output.write(&self.piece[..len]);
            }
            queue.finish(&chain, 0)?;
            self.end.end_after_reported_panic();
        }
        queue.notify()?;
        Ok(true)
    }
}

impl VirtioDevice for ConsoleDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Console
    }

    fn features(&self) -> u64 {
        self.wanted.size.map_or(0, |_| F_SIZE)
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    /// `struct virtio_console_config` (5.3.4), of which there is what the features are for.
    fn config(&self) -> DeviceConfig {
        let size = self.wanted.size;
        let bytes = size.map(|size| [size.columns.to_le_bytes(), size.rows.to_le_bytes()].concat());
        bytes.unwrap_or_default().into()
    }

    fn start(&mut self, _: u64, watch: &mut EventOps<'_>, _: &[DeviceQueue]) -> io::Result<()> {
        watch_own(watch, self.input.file())?;
        // Input may have come before.
        self.input.wake();
        Ok(())
    }

    fn queue_ready(&mut self, _: usize, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        self.turn(queues)
    }

    fn own_event(
        &mut self,
        _: Events,
        _: &mut EventOps<'_>,
        queues: &mut [DeviceQueue],
    ) -> Result<(), QueueError> {
        self.input.woken();
        self.turn(queues)
    }
}
