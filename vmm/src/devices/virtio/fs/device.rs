//! The device: hands requests of the guest's to the share's file system.
//!
//! fuse-backend-rs reads and writes chains of an older release of rust-vmm's crates than the rest of the
//! monitor has. So the queues are mirrored in that release, over the same memory.

use std::{io, sync::Arc};

use event_manager::EventOps;
use fuse_backend_rs::transport::{Reader, VirtioFsWriter};
use virtio_queue_0_17::{self as old_queue, QueueOwnedT as _, QueueT as _};
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress};
use vm_memory_0_17 as old;

use super::{
    served::Served,
    share::{Share, ShareError, TAG_LEN},
};
use crate::devices::virtio::{
    device::{DeviceId, VirtioDevice},
    device_config::DeviceConfig,
    queue::{DeviceQueue, QueueError},
};

/// Elements of a queue, and that there are two of them: one for what must not wait behind other requests
/// (5.11.2), and one for all requests.
const QUEUE_SIZES: [u16; 2] = [128, 512];
const REQUEST_QUEUES: u32 = 1;

/// A share as a device.
pub(crate) struct FileSystemDevice {
    tag: [u8; TAG_LEN],
    share: Share,
    /// Opened for the next start.
    opened: Option<Served>,
    serving: Option<Serving>,
}

/// What there is while the device is started.
struct Serving {
    files: Served,
    /// The guest's memory, and what keeps it there.
    memory: Arc<old::GuestMemoryMmap>,
    _kept: Arc<GuestMemoryMmap>,
    queues: Vec<old_queue::Queue>,
}

impl FileSystemDevice {
    /// Opens the share's folder.
    ///
    /// # Errors
    /// See [`ShareError`].
    pub(crate) fn open(share: &Share) -> Result<Self, ShareError> {
        let opened = Served::open(share)?;
        let mut tag = [0; TAG_LEN];
        tag[..share.tag.len()].copy_from_slice(share.tag.as_bytes());
        Ok(Self {
            tag,
            opened: Some(opened),
            share: share.clone(),
            serving: None,
        })
    }

    fn begin(&mut self, queues: &[DeviceQueue]) -> io::Result<Serving> {
        let memory = queues.first().ok_or(io::ErrorKind::NotFound)?.memory();
        let files = match self.opened.take() {
            Some(opened) => opened,
            // All that the driver had open before its reset is gone.
            None => Served::open(&self.share).map_err(io::Error::other)?,
        };
        Ok(Serving {
            files,
            queues: queues.iter().map(mirror).collect::<io::Result<_>>()?,
            memory: Arc::new(mirror_memory(&memory)?),
            _kept: memory,
        })
    }
}

impl VirtioDevice for FileSystemDevice {
    fn id(&self) -> DeviceId {
        DeviceId::FileSystem
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    /// `struct virtio_fs_config` (5.11.4).
    fn config(&self) -> DeviceConfig {
        [&self.tag[..], &REQUEST_QUEUES.to_le_bytes()]
            .concat()
            .into()
    }

    fn start(
        &mut self,
        _features: u64,
        _watch: &mut EventOps<'_>,
        queues: &[DeviceQueue],
    ) -> io::Result<()> {
        self.serving = Some(self.begin(queues)?);
        Ok(())
    }

    fn queue_ready(&mut self, index: usize, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        let Some(place) = queues.iter().position(|queue| queue.index() == index) else {
            return Ok(());
        };
        let Some(serving) = &mut self.serving else {
            return Ok(());
        };
        serving.drain(place, &queues[place])
    }

    fn reset(&mut self) {
        self.serving = None;
    }
}

impl Serving {
    /// Answers all requests in the queue at `place`.
    fn drain(&mut self, place: usize, queue: &DeviceQueue) -> Result<(), QueueError> {
        let broken = |cause: old_queue::Error| queue.mirror_broken(cause.to_string());
        let Some(mirror) = self.queues.get_mut(place) else {
            return Ok(());
        };
        loop {
            mirror.disable_notification(&*self.memory).map_err(broken)?;
            loop {
                let mut available = mirror.iter(Arc::clone(&self.memory)).map_err(broken)?;
                let Some(chain) = available.next() else {
                    break;
                };
                let head = chain.head_index();
                let reader = Reader::from_descriptor_chain(&*self.memory, chain.clone());
                let writer = VirtioFsWriter::new(&*self.memory, chain);
                let filled = match (reader, writer) {
                    (Ok(reader), Ok(writer)) => {
                        let answered = self.files.answer(reader, writer.into());
                        // What can't be answered is given back empty; Linux takes that for an error.
                        answered.unwrap_or_else(|error| {
                            tracing::debug!("a request of a share was not answered: {error}");
                            0
                        })
                    }
                    _ => return Err(queue.malformed("a buffer is not in the guest's memory")),
                };
                mirror
                    .add_used(&*self.memory, head, filled as u32)
                    .map_err(broken)?;
            }
            if mirror.needs_notification(&*self.memory).map_err(broken)? {
                queue.interrupt();
            }
            if !mirror.enable_notification(&*self.memory).map_err(broken)? {
                return Ok(());
            }
        }
    }
}

/// A queue as the older release has it.
fn mirror(queue: &DeviceQueue) -> io::Result<old_queue::Queue> {
    let state = queue.state();
    let state = old_queue::QueueState {
        max_size: state.max_size,
        next_avail: state.next_avail,
        next_used: state.next_used,
        event_idx_enabled: state.event_idx_enabled,
        size: state.size,
        ready: state.ready,
        desc_table: state.desc_table,
        avail_ring: state.avail_ring,
        used_ring: state.used_ring,
    };
    old_queue::Queue::try_from(state).map_err(io::Error::other)
}

/// The guest's memory as the older release has it. It must not outlive `memory`.
fn mirror_memory(memory: &GuestMemoryMmap) -> io::Result<old::GuestMemoryMmap> {
    let regions = memory.iter().map(|region| {
        let host = region
            .get_host_address(MemoryRegionAddress(0))
            .map_err(io::Error::other)?;
        let (len, protection) = (region.len() as usize, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: `host` and `len` are the whole of a mapping that is there as long as `memory`, and the caller
        // keeps that.
        let mapping =
            unsafe { old::MmapRegion::build_raw(host, len, protection, libc::MAP_SHARED) };
        let mapping = mapping.map_err(io::Error::other)?;
        let start = old::GuestAddress(region.start_addr().0);
        old::GuestRegionMmap::new(mapping, start).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    });
    let regions = regions.collect::<io::Result<Vec<_>>>()?;
    old::GuestMemoryMmap::from_regions(regions).map_err(io::Error::other)
}
