//! The device: takes requests from its queue and does them on the image.

use std::{
    io::{self, Read, Write},
    path::Path,
    time::Instant,
};

use event_manager::{EventOps, Events};
use virtio_queue::{Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::{
    SECTOR,
    image::{Disk, DiskError, Image, OpenDisk},
    request::{ByteRange, HEADER_LEN, MAX_RANGES, Request, Status},
    ring::Ring,
    transfer::Transfer,
};
use crate::devices::virtio::{
    device::{DeviceId, VirtioDevice, watch_own},
    device_config::DeviceConfig,
    queue::{Chain, DeviceQueue, QueueError},
    rate::{Alarm, Limiter},
};

const QUEUE_SIZE: u16 = 256;
/// Most pieces of data of a request: a chain has a header and a status too.
const MAX_SEGMENTS: u32 = QUEUE_SIZE as u32 - 2;
/// Bytes that go between the guest's memory and the image at a time.
const PIECE: usize = 128 << 10;
/// Bytes of a disk's name (5.2.6: padded with zeros).
const NAME_LEN: usize = 20;
/// Bytes of the disk's blocks, as it tells the driver: what a host's file system writes at once.
const BLOCK: u32 = 4096;

/// Feature bits (5.2.3).
const SEG_MAX: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 5;
const BLK_SIZE: u64 = 1 << 6;
const FLUSH: u64 = 1 << 9;
const TOPOLOGY: u64 = 1 << 10;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;

/// A disk.
pub(crate) struct Block {
    image: Image,
    read_only: bool,
    name: [u8; NAME_LEN],
    limiter: Limiter,
    alarm: Alarm,
    /// Transfers that go on at the same time, where the image is raw and the host can do that.
    ring: Option<Ring>,
    /// Room for a piece, kept from one request to the next.
    piece: Vec<u8>,
}

impl Block {
    /// Opens the disk's file.
    ///
    /// # Errors
    /// See [`DiskError`].
    pub(crate) fn open(disk: &Disk) -> Result<Self, DiskError> {
        let OpenDisk { image, raw } = disk.open()?;
        let ring = raw.and_then(|file| {
            let ring = Ring::new(&file, QUEUE_SIZE);
            // Containers forbid it often (Docker's default profile).
            ring.inspect_err(|error| tracing::debug!("a disk does without io_uring: {error}"))
                .ok()
        });
        Ok(Self {
            image,
            ring,
            read_only: disk.read_only,
            name: name(disk.path.name()),
            limiter: Limiter::new(disk.limit, Instant::now()),
            alarm: Alarm::new().map_err(|cause| DiskError::Open {
                path: disk.path.name().to_owned(),
                cause,
            })?,
            piece: vec![0; PIECE],
        })
    }

    /// The same where the host has no `io_uring`.
    #[cfg(test)]
    pub(super) fn without_ring(mut self) -> Self {
        self.ring = None;
        self
    }

    /// Bytes of whole sectors.
    fn len(&self) -> u64 {
        self.image.size() / SECTOR * SECTOR
    }

    /// Begins or answers requests until there are none, or until the limit is reached, and answers those that are done.
    fn turn(&mut self, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        let Some(queue) = queues.first_mut() else {
            return Ok(());
        };
        let memory = queue.memory();
        queue.mute_doorbell()?;
        loop {
            let wait = self.limiter.wait(Instant::now());
            self.alarm.set_or_tell(wait);
            let may_begin = wait.is_none() && !self.ring.as_ref().is_some_and(Ring::is_full);
            if may_begin && let Some(chain) = queue.next()? {
                self.answer(queue, &memory, &chain)?;
                continue;
            }
            if self.finish_done(queue)? {
                // This makes room in the ring, and the driver may have more.
                continue;
            }
            if !may_begin {
                // The alarm, or the next transfer that is done, is the next event.
                return queue.notify();
            }
            let Some(chain) = queue.next_or_listen()? else {
                return Ok(());
            };
            self.answer(queue, &memory, &chain)?;
        }
    }

    /// Makes the host begin transfers, and tells the driver of those that are done. Returns false if none is.
    fn finish_done(&mut self, queue: &mut DeviceQueue) -> Result<bool, QueueError> {
        let Some(ring) = &mut self.ring else {
            return Ok(false);
        };
        ring.submit().map_err(|error| queue.refused(error))?;
        let mut any = false;
        while let Some((transfer, result)) =
            ring.next_done().map_err(|error| queue.refused(error))?
        {
            any = true;
            let (status, filled) = match result {
                Ok(()) => (Status::Done, transfer.filled() as u32),
                Err(error) => {
                    tracing::debug!("{:?} failed: {error}", transfer.operation);
                    (Status::Failed, 0)
                }
            };
            transfer
                .tell(status)
                .map_err(|_| queue.malformed("its status can't be written"))?;
            queue.finish(&transfer.chain, filled + 1)?;
        }
        Ok(any)
    }

    /// Begins a request that can go on while others do, and is valid. Returns false if it isn't such a request.
    fn begin(&mut self, request: &Request, chain: &Chain) -> io::Result<bool> {
        let is_refused = self.read_only && matches!(request, Request::Write { .. });
        if self.ring.is_none() || is_refused {
            return Ok(false);
        }
        let transfer = Transfer::of(request, chain);
        let transfer = transfer.filter(|it| self.check(it.at, it.len).is_ok());
        let (Some(transfer), Some(ring)) = (transfer, &mut self.ring) else {
            return Ok(false);
        };
        self.limiter.take(HEADER_LEN as u64 + transfer.len);
        ring.begin(transfer)?;
        Ok(true)
    }

    fn answer(
        &mut self,
        queue: &mut DeviceQueue,
        memory: &GuestMemoryMmap,
        chain: &Chain,
    ) -> Result<(), QueueError> {
        let mut reader = queue.reader(memory, chain)?;
        let mut writer = queue.writer(memory, chain)?;
        let room = writer.available_bytes().checked_sub(1);
        let status_at = room.ok_or_else(|| queue.malformed("no room for its status"))?;
        let mut status_writer = writer
            .split_at(status_at)
            .map_err(|_| queue.malformed("no room for its status"))?;
        let request = Request::read(&mut reader);
        if let Ok(request) = &request
            && self
                .begin(request, chain)
                .map_err(|error| queue.refused(error))?
        {
            return Ok(());
        }
        let (status, filled) = self.serve(request, &mut reader, &mut writer);
        self.limiter.take((reader.bytes_read() + filled) as u64);
        status_writer
            .write_all(&[status as u8])
            .map_err(|_| queue.malformed("its status can't be written"))?;
        queue.finish(chain, filled as u32 + 1)
    }

    /// Does what a chain asks for. Returns how many bytes of it were filled.
    fn serve(
        &mut self,
        request: Result<Request, Status>,
        reader: &mut Reader<'_>,
        writer: &mut Writer<'_>,
    ) -> (Status, usize) {
        let done = request.and_then(|request| {
            let done = self.perform(&request, reader, writer);
            done.map_err(|error| self.status_of(&request, &error))
        });
        (done.err().unwrap_or(Status::Done), writer.bytes_written())
    }

    fn status_of(&self, request: &Request, error: &io::Error) -> Status {
        if error.kind() == io::ErrorKind::Unsupported {
            return Status::Unsupported;
        }
        tracing::debug!("{request:?} failed: {error}");
        Status::Failed
    }

    fn perform(
        &mut self,
        request: &Request,
        reader: &mut Reader<'_>,
        writer: &mut Writer<'_>,
    ) -> io::Result<()> {
        let writes = matches!(
            request,
            Request::Write { .. } | Request::Discard(_) | Request::Zero(_)
        );
        if writes && self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        match request {
            Request::Read { at } => self.read(*at, writer),
            Request::Write { at } => self.write(*at, reader),
            Request::Flush => {
                self.image.flush()?;
                self.image.sync()
            }
            Request::Name => writer.write_all(&self.name),
            Request::Discard(ranges) => self.on_each(ranges, |image, range| {
                image.discard_to_any(range.start, range.len)
            }),
            Request::Zero(ranges) => self.on_each(ranges, |image, range| {
                if range.unmap {
                    image.discard_to_zero(range.start, range.len)
                } else {
                    image.write_zeroes(range.start, range.len)
                }
            }),
        }
    }

    fn read(&mut self, mut at: u64, writer: &mut Writer<'_>) -> io::Result<()> {
        self.check(at, writer.available_bytes() as u64)?;
        while writer.available_bytes() > 0 {
            let piece = &mut self.piece[..writer.available_bytes().min(PIECE)];
            self.image.read(&mut *piece, at)?;
            writer.write_all(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn write(&mut self, mut at: u64, reader: &mut Reader<'_>) -> io::Result<()> {
        self.check(at, reader.available_bytes() as u64)?;
        while reader.available_bytes() > 0 {
            let piece = &mut self.piece[..reader.available_bytes().min(PIECE)];
            // Copied once: the guest can't change it between a check and its use.
            reader.read_exact(piece)?;
            self.image.write(&*piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn on_each(
        &mut self,
        ranges: &[ByteRange],
        mut act: impl FnMut(&mut Image, &ByteRange) -> io::Result<()>,
    ) -> io::Result<()> {
        for range in ranges {
            self.check(range.start, range.len)?;
        }
        ranges
            .iter()
            .try_for_each(|range| act(&mut self.image, range))
    }

    /// Fails for what isn't whole sectors of the disk.
    fn check(&self, start: u64, len: u64) -> io::Result<()> {
        let is_inside = start.checked_add(len).is_some_and(|end| end <= self.len());
        if is_inside && len.is_multiple_of(SECTOR) {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }
}

impl VirtioDevice for Block {
    fn id(&self) -> DeviceId {
        DeviceId::Block
    }

    fn features(&self) -> u64 {
        let always = SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY;
        if self.read_only {
            always | READ_ONLY
        } else {
            always | DISCARD | WRITE_ZEROES
        }
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    /// `struct virtio_blk_config` (5.2.4).
    fn config(&self) -> DeviceConfig {
        const BLOCK_SECTORS: u32 = BLOCK / SECTOR as u32;
        // Most sectors of a range: 1 GiB, as ranges are done whole.
        const RANGE_SECTORS: u32 = (1 << 30) / SECTOR as u32;
        let mut config = Vec::new();
        config.extend((self.len() / SECTOR).to_le_bytes());
        config.extend(0u32.to_le_bytes());
        config.extend(MAX_SEGMENTS.to_le_bytes());
        // No cylinders, heads or sectors of a track.
        config.extend([0; 4]);
        config.extend((SECTOR as u32).to_le_bytes());
        // The physical block is 2 to the power of this many sectors, and begins at the disk's first one;
        // what is best to write at least and at most.
        config.extend([BLOCK_SECTORS.ilog2() as u8, 0]);
        config.extend((BLOCK_SECTORS as u16).to_le_bytes());
        config.extend(0u32.to_le_bytes());
        // The disk caches writes, and has one queue.
        config.extend([1, 0]);
        config.extend(1u16.to_le_bytes());
        for word in [
            RANGE_SECTORS,
            MAX_RANGES as u32,
            BLOCK_SECTORS,
            RANGE_SECTORS,
            MAX_RANGES as u32,
        ] {
            config.extend(word.to_le_bytes());
        }
        // Zeros may be written by giving up the place in the file.
        config.extend([1, 0, 0, 0]);
        config.into()
    }

    fn start(&mut self, _: u64, watch: &mut EventOps<'_>, _: &[DeviceQueue]) -> io::Result<()> {
        watch_own(watch, &self.alarm)?;
        match &self.ring {
            Some(ring) => watch_own(watch, ring.file()),
            None => Ok(()),
        }
    }

    fn queue_ready(&mut self, _: usize, queues: &mut [DeviceQueue]) -> Result<(), QueueError> {
        self.turn(queues)
    }

    /// The limit lets it go on, or a transfer is done. The turn sets the alarm anew, or to no time.
    fn own_event(
        &mut self,
        _: Events,
        _: &mut EventOps<'_>,
        queues: &mut [DeviceQueue],
    ) -> Result<(), QueueError> {
        if let Some(ring) = &self.ring {
            ring.woken();
        }
        self.turn(queues)
    }

    fn reset(&mut self) {
        self.alarm.set_or_tell(None);
        if let Some(ring) = &mut self.ring {
            ring.wait_for_all();
        }
    }
}

/// The end of the path's last part, as far as there is room.
fn name(path: &Path) -> [u8; NAME_LEN] {
    let mut name = [0; NAME_LEN];
    let file = path.file_name().unwrap_or_default().as_encoded_bytes();
    let end = &file[file.len().saturating_sub(NAME_LEN)..];
    name[..end.len()].copy_from_slice(end);
    name
}
