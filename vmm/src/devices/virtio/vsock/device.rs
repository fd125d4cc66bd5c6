//! The device: it moves packets between the queues and the multiplexer.

use std::io::{self, Read, Write};

use event_manager::{EventOps, Events};

use super::{
    BUFFER, GUEST_CIDS, MAX_CONNECTIONS, Vsock, VsockError,
    host_socket::HostSocket,
    multiplexer::Multiplexer,
    packet::{HEADER_LEN, Header, Op},
};
use crate::devices::virtio::{
    device::{DeviceId, VirtioDevice, watch_own},
    device_config::DeviceConfig,
    queue::{DeviceQueue, QueueError},
};

/// The queue of packets for the guest and that of the guest's. A third one is for events that never happen
/// here: the guest's CID stays (5.10.6.7).
const RX: usize = 0;
const TX: usize = 1;
const QUEUE_SIZES: [u16; 3] = [256, 256, 16];
/// Most packets that are taken, and most that are sent, before the thread looks at its other events.
const PACKETS: usize = 256;

/// The device.
pub(crate) struct VsockDevice {
    cid: u32,
    multiplexer: Multiplexer,
    /// A packet's data on its way.
    data: Box<[u8]>,
}

impl VsockDevice {
    /// A device whose socket on the host is there from now on. A process that connects to it waits until the
    /// guest's driver has started the device.
    ///
    /// # Errors
    /// See [`VsockError`].
    pub(crate) fn open(wanted: &Vsock) -> Result<Self, VsockError> {
        Self::with_limit(wanted, MAX_CONNECTIONS)
    }

    /// As [`open`](Self::open), with at most `limit` connections.
    pub(super) fn with_limit(wanted: &Vsock, limit: usize) -> Result<Self, VsockError> {
        if !GUEST_CIDS.contains(&wanted.cid) {
            return Err(VsockError::Cid(wanted.cid));
        }
        let socket = HostSocket::new(&wanted.path)?;
        let multiplexer = Multiplexer::new(wanted.cid, socket, limit);
        let multiplexer = multiplexer.map_err(|cause| VsockError::Make {
            path: wanted.path.name().to_owned(),
            cause,
        })?;
        Ok(Self {
            cid: wanted.cid,
            multiplexer,
            data: vec![0; BUFFER].into(),
        })
    }

    /// Does what there is to do, but not for so long that other events wait for it.
    fn turn(&mut self, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        self.multiplexer.poll();
        let mut more = false;
        if let Some(queue) = queue(queues, TX) {
            more |= self.take_packets(queue)?;
        }
        let was_full = !self.multiplexer.has_room();
        if let Some(queue) = queue(queues, RX) {
            more |= self.send_packets(queue)?;
        }
        more |= was_full && self.multiplexer.has_room();
        if more || self.multiplexer.can_accept() {
            self.multiplexer.wake();
        }
        Ok(())
    }

    /// Takes packets of the guest's. Returns true if there may be more that can be taken.
    fn take_packets(&mut self, queue: &mut DeviceQueue) -> Result<bool, QueueError> {
        let memory = queue.memory();
        queue.mute_doorbell()?;
        for _ in 0..PACKETS {
            if !self.multiplexer.has_room() {
                queue.notify()?;
                return Ok(false);
            }
            let Some(chain) = queue.next_or_listen()? else {
                return Ok(false);
            };
            let mut reader = queue.reader(&memory, &chain)?;
            let mut header = [0; HEADER_LEN];
            reader
                .read_exact(&mut header)
                .map_err(|_| queue.malformed("it is shorter than a header"))?;
            let header = Header::from_bytes(&header);
            let mut len = 0;
            if header.op == Op::Data as u16 {
                // A longer packet is refused for its length.
                len = (header.len as usize).min(BUFFER);
                reader
                    .read_exact(&mut self.data[..len])
                    .map_err(|_| queue.malformed("it is shorter than its header says"))?;
            }
            self.multiplexer.take(&header, &self.data[..len]);
            queue.finish(&chain, 0)?;
        }
        queue.notify()?;
        Ok(true)
    }

    /// Sends packets to the guest as long as it has room. Returns true if there may be more that can be sent.
    fn send_packets(&mut self, queue: &mut DeviceQueue) -> Result<bool, QueueError> {
        let memory = queue.memory();
        queue.mute_doorbell()?;
        for _ in 0..PACKETS {
            if !self.multiplexer.has_packet() {
                queue.notify()?;
                return Ok(false);
            }
            // The driver rings when it has room again.
            let Some(chain) = queue.next_or_listen()? else {
                return Ok(false);
            };
            let mut writer = queue.writer(&memory, &chain)?;
            let room = writer.available_bytes().saturating_sub(HEADER_LEN);
            if room == 0 {
                return Err(queue.malformed("no room for a header and data"));
            }
            let room = room.min(BUFFER);
            let Some(header) = self.multiplexer.next_packet(&mut self.data[..room]) else {
                queue.put_back();
                continue;
            };
            let len = header.len as usize;
            writer
                .write_all(&header.to_bytes())
                .and_then(|()| writer.write_all(&self.data[..len]))
                .map_err(|_| queue.malformed("it can't be written"))?;
            queue.finish(&chain, (HEADER_LEN + len) as u32)?;
        }
        queue.notify()?;
        Ok(true)
    }
}

impl VirtioDevice for VsockDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Vsock
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    /// `struct virtio_vsock_config` (5.10.4).
    fn config(&self) -> DeviceConfig {
        u64::from(self.cid).to_le_bytes().to_vec().into()
    }

    fn start(&mut self, _: u64, watch: &mut EventOps<'_>, _: &[DeviceQueue]) -> io::Result<()> {
        watch_own(watch, self.multiplexer.file())?;
        // A process may have connected before.
        self.multiplexer.wake();
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
        self.turn(queues)
    }

    fn reset(&mut self) {
        self.multiplexer.clear();
    }
}

/// Queue `index`, if the driver has enabled it.
fn queue(queues: &mut [DeviceQueue], index: usize) -> Option<&mut DeviceQueue> {
    queues.iter_mut().find(|queue| queue.index() == index)
}
