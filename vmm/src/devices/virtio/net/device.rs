//! The device: it moves packets between the queues and the back end.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    time::{Duration, Instant},
};

use event_manager::{EventOps, Events};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::{epoll::EventSet, eventfd::EventFd};

use super::{
    HEADER_LEN, MAX_FRAME, MAX_PACKET, MIN_FRAME,
    backend::{Backend, Lost},
    feature,
    passt::{self, Passt},
    stream::FrameStream,
    tap::Tap,
    wanted::{Mac, NetBackend, NetError, Network},
};
use crate::devices::virtio::{
    device::{DeviceId, OWN_EVENT, VirtioDevice},
    device_config::DeviceConfig,
    queue::{Chain, DeviceQueue, QueueError},
    rate::{Alarm, Limiter},
};

/// The queue of packets for the guest and that of the guest's.
const RX: usize = 0;
const TX: usize = 1;
const QUEUE_SIZES: [u16; 2] = [256, 256];
/// Most packets that are taken, and most that are given, before the thread looks at its other events.
const PACKETS: usize = 256;

/// Events of the device's own: one of the back end's, that there is more to do at once, and that a wait has ended.
const BACKEND_EVENT: u32 = OWN_EVENT;
const AGAIN_EVENT: u32 = OWN_EVENT + 1;
const ALARM_EVENT: u32 = OWN_EVENT + 2;

/// What a driver may accept, whatever the back end is.
const FEATURES: u64 = feature::MAC | feature::MRG_RXBUF | feature::STATUS;
/// Where a packet's header has the number of buffers that the packet is in (5.1.6).
const NUM_BUFFERS: usize = 10;
/// Bit of the configuration's status, and where that is (5.1.4).
const LINK_UP: u16 = 1 << 0;
const STATUS_AT: usize = 6;

/// The device.
pub(crate) struct NetDevice {
    backend: Box<dyn Backend>,
    /// The back end is gone: packets of the guest's are dropped, and none come.
    is_lost: bool,
    config: DeviceConfig,
    features: u64,
    accepted: u64,
    to_host: Limiter,
    to_guest: Limiter,
    alarm: Alarm,
    again: EventFd,
    /// The back end may have a packet: it has not said that it has none since its last event.
    may_receive: bool,
    /// A packet of the guest's on its way.
    packet: Box<[u8]>,
    /// A packet for the guest, and how many bytes it has. 0: there is none.
    received: Box<[u8]>,
    received_len: usize,
    room: Room,
}

/// Chains of the guest's that are to be filled, in their order.
#[derive(Default)]
struct Room {
    /// Each with the bytes that it has room for.
    chains: VecDeque<(Chain, usize)>,
    /// The bytes that all of them have room for.
    bytes: usize,
}

/// Why a queue isn't served any further at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// A doorbell or a file of the back end's ends it.
    Idle,
    /// There may be more to do, but others have their turn first.
    More,
    /// The limit is reached for so long.
    For(Duration),
}

impl NetDevice {
    /// A device whose back end is opened, or started.
    ///
    /// # Errors
    /// See [`NetError`].
    pub(crate) fn open(wanted: &Network) -> Result<Self, NetError> {
        let backend: Box<dyn Backend> = match &wanted.backend {
            NetBackend::Tap(name) => Box::new(Tap::open(name)?),
            NetBackend::Passt(None) => Box::new(Passt::start()?),
            NetBackend::Passt(Some(path)) => Box::new(FrameStream::new(passt::connect(path)?)),
        };
        Self::new(backend, wanted).map_err(|cause| NetError::Host { cause })
    }

    /// A device with this back end instead.
    ///
    /// # Errors
    /// The host has no random bytes, or no more files.
    pub(super) fn new(backend: Box<dyn Backend>, wanted: &Network) -> io::Result<Self> {
        let mac = wanted.mac.map_or_else(Mac::draw, Ok)?;
        let mtu = backend.mtu();
        let mut features = FEATURES | backend.offloads();
        if mtu.is_some() {
            features |= feature::MTU;
        }
        let now = Instant::now();
        Ok(Self {
            is_lost: false,
            config: config(mac, mtu),
            features,
            accepted: 0,
            to_host: Limiter::new(wanted.limit, now),
            to_guest: Limiter::new(wanted.limit, now),
            alarm: Alarm::new()?,
            again: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
            may_receive: true,
            packet: vec![0; MAX_PACKET].into(),
            received: vec![0; MAX_PACKET].into(),
            received_len: 0,
            room: Room::default(),
            backend,
        })
    }

    fn has_accepted(&self, feature: u64) -> bool {
        self.accepted & feature != 0
    }

    /// Does what there is to do, but not for so long that other events wait for it.
    fn turn(&mut self, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        let was_lost = self.is_lost;
        let mut pauses = [Pause::Idle; 2];
        for (index, pause) in [TX, RX].into_iter().zip(&mut pauses) {
            if let Some(queue) = queues.iter_mut().find(|queue| queue.index() == index) {
                *pause = match index {
                    TX => self.take_packets(queue)?,
                    _ => self.give_packets(queue)?,
                };
            }
        }
        if self.is_lost
            && !was_lost
            && let Some(queue) = queues.first()
        {
            queue.config_changed();
        }
        if pauses.contains(&Pause::More) {
            self.wake();
        }
        let waits = pauses.iter().filter_map(|pause| match pause {
            Pause::For(wait) => Some(*wait),
            _ => None,
        });
        self.alarm.set_or_tell(waits.min());
        Ok(())
    }

    /// Makes another turn follow.
    fn wake(&self) {
        if let Err(error) = self.again.write(1) {
            tracing::error!("the thread of a network device can't be woken: {error}");
        }
    }

    /// Takes packets of the guest's.
    fn take_packets(&mut self, queue: &mut DeviceQueue) -> Result<Pause, QueueError> {
        let memory = queue.memory();
        queue.mute_doorbell()?;
        for _ in 0..PACKETS {
            if let Some(pause) = self.pause_of_sending() {
                queue.notify()?;
                return Ok(pause);
            }
            let Some(chain) = queue.next_or_listen()? else {
                return Ok(Pause::Idle);
            };
            if let Some(len) = self.read(queue, &memory, &chain)? {
                self.to_host.take((len - HEADER_LEN) as u64);
                if !self.is_lost
                    && let Err(lost) = self.backend.send(&self.packet[..len])
                {
                    self.lose(&lost);
                }
            }
            queue.finish(&chain, 0)?;
        }
        queue.notify()?;
        Ok(Pause::More)
    }

    /// Returns why no packet of the guest's can be taken now, if that is so.
    fn pause_of_sending(&mut self) -> Option<Pause> {
        if self.is_lost {
            return None;
        }
        if let Some(wait) = self.to_host.wait(Instant::now()) {
            return Some(Pause::For(wait));
        }
        match self.backend.can_send() {
            Ok(true) => None,
            Ok(false) => Some(Pause::Idle),
            Err(lost) => {
                self.lose(&lost);
                None
            }
        }
    }

    /// Reads the packet in a chain. Returns its length, or None where it is none that a network takes.
    fn read(
        &mut self,
        queue: &DeviceQueue,
        memory: &GuestMemoryMmap,
        chain: &Chain,
    ) -> Result<Option<usize>, QueueError> {
        let mut reader = queue.reader(memory, chain)?;
        let (header, frame) = self.packet.split_at_mut(HEADER_LEN);
        reader
            .read_exact(header)
            .map_err(|_| queue.malformed("it is shorter than a header"))?;
        let len = reader.available_bytes();
        if !(MIN_FRAME..=MAX_FRAME).contains(&len) {
            return Ok(None);
        }
        reader
            .read_exact(&mut frame[..len])
            .map_err(|_| queue.malformed("it can't be read"))?;
        if !self.has_accepted(feature::CSUM) {
            // The driver leaves no work to the device (5.1.6.2).
            self.packet[..HEADER_LEN].fill(0);
        }
        Ok(Some(HEADER_LEN + len))
    }

    /// Gives packets to the guest as long as it has room.
    fn give_packets(&mut self, queue: &mut DeviceQueue) -> Result<Pause, QueueError> {
        let memory = queue.memory();
        queue.mute_doorbell()?;
        for _ in 0..PACKETS {
            if self.received_len == 0
                && let Some(pause) = self.receive()
            {
                queue.notify()?;
                return Ok(pause);
            }
            if !self.place(queue, &memory)? {
                return Ok(Pause::Idle);
            }
        }
        queue.notify()?;
        Ok(Pause::More)
    }

    /// Receives a packet from the back end. Returns why there is none, if that is so.
    fn receive(&mut self) -> Option<Pause> {
        if self.is_lost || !self.may_receive {
            return Some(Pause::Idle);
        }
        if let Some(wait) = self.to_guest.wait(Instant::now()) {
            return Some(Pause::For(wait));
        }
        match self.backend.receive(&mut self.received) {
            Ok(Some(len)) => {
                self.to_guest.take((len - HEADER_LEN) as u64);
                if !self.has_accepted(feature::GUEST_CSUM) {
                    // The header asks for no work, as the back end knows what the driver takes (5.1.6.4.1).
                    self.received[..HEADER_LEN].fill(0);
                }
                self.received_len = len;
                None
            }
            Ok(None) => {
                self.may_receive = false;
                Some(Pause::Idle)
            }
            Err(lost) => {
                self.lose(&lost);
                Some(Pause::Idle)
            }
        }
    }

    /// Puts the received packet into the guest's buffers, or drops it where it fits into none. Returns false if it
    /// waits for more of them.
    fn place(
        &mut self,
        queue: &mut DeviceQueue,
        memory: &GuestMemoryMmap,
    ) -> Result<bool, QueueError> {
        let len = self.received_len;
        while self.room.bytes < len {
            // No buffer comes behind the first one without merging, nor behind as many as there can be.
            let most = match self.has_accepted(feature::MRG_RXBUF) {
                true => queue.size(),
                false => 1,
            };
            if self.room.chains.len() >= most {
                tracing::debug!("a packet of {len} bytes is too long for a guest's buffers");
                self.received_len = 0;
                return Ok(true);
            }
            let Some(chain) = queue.next_or_listen()? else {
                return Ok(false);
            };
            let bytes = queue.writer(memory, &chain)?.available_bytes();
            if bytes < HEADER_LEN {
                return Err(queue.malformed("no room for a header"));
            }
            self.room.bytes += bytes;
            self.room.chains.push_back((chain, bytes));
        }
        self.fill(queue, memory)?;
        self.received_len = 0;
        Ok(true)
    }

    /// Fills buffers, which have enough room, with the received packet.
    fn fill(
        &mut self,
        queue: &mut DeviceQueue,
        memory: &GuestMemoryMmap,
    ) -> Result<(), QueueError> {
        let mut unfilled = self.received_len;
        let mut filled = Vec::new();
        while unfilled > 0
            && let Some((chain, bytes)) = self.room.chains.pop_front()
        {
            self.room.bytes -= bytes;
            let part = bytes.min(unfilled);
            unfilled -= part;
            filled.push((chain, part as u32));
        }
        let count = (filled.len() as u16).to_le_bytes();
        self.received[NUM_BUFFERS..HEADER_LEN].copy_from_slice(&count);
        let mut packet = &self.received[..self.received_len];
        for (chain, part) in &filled {
            let (here, behind) = packet.split_at(*part as usize);
            let mut writer = queue.writer(memory, chain)?;
            writer
                .write_all(here)
                .map_err(|_| queue.malformed("it can't be written"))?;
            packet = behind;
        }
        queue.finish_together(&filled)
    }

    /// Takes the link down, as the back end is gone.
    fn lose(&mut self, lost: &Lost) {
        tracing::warn!("a guest's network is gone: {lost}");
        self.is_lost = true;
        self.config.change(STATUS_AT, &0u16.to_le_bytes());
    }
}

impl VirtioDevice for NetDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Network
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config(&self) -> DeviceConfig {
        self.config.clone()
    }

    fn start(
        &mut self,
        features: u64,
        watch: &mut EventOps<'_>,
        _: &[DeviceQueue],
    ) -> io::Result<()> {
        self.accepted = features;
        self.backend.start(features);
        // The back end tells once of what it has: a packet that waits for room, or for the limit, doesn't keep the
        // thread awake.
        let changes = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
        for events in [
            Events::with_data_raw(self.backend.file(), BACKEND_EVENT, changes),
            Events::with_data(&self.again, AGAIN_EVENT, EventSet::IN),
            Events::with_data(&self.alarm, ALARM_EVENT, EventSet::IN),
        ] {
            watch.add(events).map_err(io::Error::other)?;
        }
        self.may_receive = true;
        self.again.write(1)
    }

    fn queue_ready(&mut self, _: usize, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        self.turn(queues)
    }

    fn own_event(
        &mut self,
        event: Events,
        _: &mut EventOps<'_>,
        queues: &mut [DeviceQueue],
    ) -> Result<(), QueueError> {
        match event.data() {
            BACKEND_EVENT => {
                self.may_receive = true;
                if !self.is_lost
                    && let Err(lost) = self.backend.check(event.event_set())
                {
                    self.lose(&lost);
                    if let Some(queue) = queues.first() {
                        queue.config_changed();
                    }
                }
            }
            AGAIN_EVENT => {
                let _count = self.again.read();
            }
            // The turn sets the alarm anew, or to no time.
            _ => {}
        }
        self.turn(queues)
    }

    fn reset(&mut self) {
        self.backend.reset();
        self.room = Room::default();
        self.received_len = 0;
        self.alarm.set_or_tell(None);
    }
}

/// `struct virtio_net_config` (5.1.4): the address, that the link is up, one pair of queues, and the MTU.
fn config(mac: Mac, mtu: Option<u16>) -> DeviceConfig {
    let [status, pairs, mtu] = [LINK_UP, 1, mtu.unwrap_or(0)].map(u16::to_le_bytes);
    [&mac.0[..], &status, &pairs, &mtu].concat().into()
}
