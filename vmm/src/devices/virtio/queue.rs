//! A queue, as a device's thread has it.

use std::{io, sync::Arc};

use thiserror::Error;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueState, QueueT, Reader, Writer};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

use super::interrupts::Interrupts;

/// Buffers that the driver has made available in one piece: first those to read, then those to write.
pub(crate) type Chain = DescriptorChain<Arc<GuestMemoryMmap>>;

/// The queue or a chain in it isn't valid: the driver broke the protocol.
#[derive(Debug, Error)]
pub(crate) enum QueueError {
    #[error("a ring of queue {index} can't be used: {cause}")]
    Ring {
        index: usize,
        cause: virtio_queue::Error,
    },
    #[error("a chain of queue {index} can't be used: {cause}")]
    Chain {
        index: usize,
        cause: virtio_queue::Error,
    },
    #[error("a ring of queue {index} can't be used: {why}")]
    Mirror { index: usize, why: String },
    #[error("a request in queue {index} is malformed: {reason}")]
    Request { index: usize, reason: &'static str },
    #[error("the host doesn't do what queue {index} asks for: {cause}")]
    Host { index: usize, cause: io::Error },
}

/// A queue that the driver has enabled.
pub(crate) struct DeviceQueue {
    index: usize,
    queue: Queue,
    memory: Arc<GuestMemoryMmap>,
    interrupts: Arc<Interrupts>,
    /// Chains were given back in a way by which it can't be known whether the driver wants to be told of them.
    must_notify: bool,
}

impl DeviceQueue {
    /// Queue `index` of its device. Returns None where its rings aren't in the guest's memory.
    pub(crate) fn new(
        index: usize,
        queue: Queue,
        memory: &Arc<GuestMemoryMmap>,
        interrupts: &Arc<Interrupts>,
    ) -> Option<Self> {
        let is_valid = queue.is_valid(&**memory);
        is_valid.then(|| Self {
            index,
            queue,
            memory: Arc::clone(memory),
            interrupts: Arc::clone(interrupts),
            must_notify: false,
        })
    }

    /// Its number in the device. Its place in the slice of queues may be another one, as queues that the driver hasn't
    /// enabled aren't there.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Where its rings are, and how far it is in them.
    pub(crate) fn state(&self) -> QueueState {
        self.queue.state()
    }

    /// The next chain that the driver has made available.
    ///
    /// # Errors
    /// The ring can't be read, or claims more chains than it has room for.
    pub(crate) fn next(&mut self) -> Result<Option<Chain>, QueueError> {
        let ring = ring_error(self.index);
        let mut available = self.queue.iter(Arc::clone(&self.memory)).map_err(ring)?;
        Ok(available.next())
    }

    /// The next chain. If there is none, returns None, and the driver rings the doorbell for the next one: it was told
    /// of those that were given back. For a device that has [muted the doorbell](Self::mute_doorbell).
    ///
    /// # Errors
    /// As [`next`](Self::next), or the ring can't be written.
    pub(crate) fn next_or_listen(&mut self) -> Result<Option<Chain>, QueueError> {
        if let Some(chain) = self.next()? {
            return Ok(Some(chain));
        }
        self.notify()?;
        if !self.unmute_doorbell()? {
            return Ok(None);
        }
        // A chain came meanwhile. Only a hostile driver takes it back.
        self.mute_doorbell()?;
        let chain = self.next()?;
        if chain.is_none() {
            self.unmute_doorbell()?;
        }
        Ok(chain)
    }

    /// How many elements it has: a driver can make as many chains available at a time.
    pub(crate) fn size(&self) -> usize {
        self.queue.size().into()
    }

    /// Takes back the last [`next`](Self::next): the chain is the next one again. For a device that has nothing
    /// to fill it with after all.
    pub(crate) fn put_back(&mut self) {
        self.queue.go_to_previous_position();
    }

    /// The bytes of a chain that the driver has filled.
    ///
    /// # Errors
    /// A buffer isn't in the guest's memory, or the chain is too long.
    pub(crate) fn reader<'m>(
        &self,
        memory: &'m GuestMemoryMmap,
        chain: &Chain,
    ) -> Result<Reader<'m>, QueueError> {
        let reader = chain.clone().reader(memory);
        reader.map_err(|cause| self.chain_error(cause))
    }

    /// The room of a chain that the device is to fill.
    ///
    /// # Errors
    /// As [`reader`](Self::reader).
    pub(crate) fn writer<'m>(
        &self,
        memory: &'m GuestMemoryMmap,
        chain: &Chain,
    ) -> Result<Writer<'m>, QueueError> {
        let writer = chain.clone().writer(memory);
        writer.map_err(|cause| self.chain_error(cause))
    }

    /// The memory that chains are in.
    pub(crate) fn memory(&self) -> Arc<GuestMemoryMmap> {
        Arc::clone(&self.memory)
    }

    /// Gives a chain back, `written` bytes of it filled.
    ///
    /// # Errors
    /// The ring can't be written.
    pub(crate) fn finish(&mut self, chain: &Chain, written: u32) -> Result<(), QueueError> {
        let head = chain.head_index();
        let added = self.queue.add_used(&*self.memory, head, written);
        added.map_err(ring_error(self.index))
    }

    /// Gives chains back all at once, with how many bytes of each are filled: the driver sees all of them or none
    /// (as 5.1.6.4.2 has it for the buffers of a packet).
    ///
    /// # Errors
    /// The ring can't be written.
    pub(crate) fn finish_together(&mut self, chains: &[(Chain, u32)]) -> Result<(), QueueError> {
        let Some(((last, last_filled), first)) = chains.split_last() else {
            return Ok(());
        };
        let index = self.index;
        let ring = ring_error(index);
        let used_ring = GuestAddress(self.queue.used_ring());
        let mut next = self.queue.next_used();
        for (chain, filled) in first {
            let head = chain.head_index();
            if head >= self.queue.size() {
                return Err(ring(virtio_queue::Error::InvalidDescriptorIndex));
            }
            // `struct virtq_used_elem` (2.7.8), behind the flags and the index.
            let element = [u32::from(head).to_le(), filled.to_le()];
            let at = 4 + u64::from(next % self.queue.size()) * 8;
            let place = used_ring.checked_add(at);
            let place = place.ok_or(ring(virtio_queue::Error::AddressOverflow))?;
            self.memory
                .write_obj(element, place)
                .map_err(|cause| ring(virtio_queue::Error::GuestMemory(cause)))?;
            next = next.wrapping_add(1);
        }
        if !first.is_empty() {
            self.queue.set_next_used(next);
            self.must_notify = true;
        }
        // This one stores the index, which the driver looks at.
        self.finish(last, *last_filled)
    }

    /// Tells the driver to read the device's configuration again.
    pub(crate) fn config_changed(&self) {
        self.interrupts.config_changed();
    }

    /// Interrupts the driver if it wants to know of chains that were given back since the last time.
    ///
    /// # Errors
    /// The ring can't be read.
    pub(crate) fn notify(&mut self) -> Result<(), QueueError> {
        let wanted = self.queue.needs_notification(&*self.memory);
        let wanted = wanted.map_err(ring_error(self.index))?;
        if std::mem::take(&mut self.must_notify) || wanted {
            self.interrupt();
        }
        Ok(())
    }

    /// Lets the driver leave the doorbell alone: chains are taken without it.
    ///
    /// # Errors
    /// The ring can't be written.
    pub(crate) fn mute_doorbell(&mut self) -> Result<(), QueueError> {
        let muted = self.queue.disable_notification(&*self.memory);
        muted.map_err(ring_error(self.index))
    }

    /// Makes the driver ring the doorbell for the next chain. Returns true if there are chains already, for which it
    /// may not have done so.
    ///
    /// # Errors
    /// The ring can't be read or written.
    pub(crate) fn unmute_doorbell(&mut self) -> Result<bool, QueueError> {
        let more = self.queue.enable_notification(&*self.memory);
        more.map_err(ring_error(self.index))
    }

    /// Gives each chain to `serve` until there are none, then interrupts the driver. While chains are taken, the
    /// driver need not ring the doorbell.
    ///
    /// # Errors
    /// The queue is broken, or `serve` says that a request is.
    pub(crate) fn drain(
        &mut self,
        mut serve: impl FnMut(&mut Self, Chain) -> Result<(), QueueError>,
    ) -> Result<(), QueueError> {
        loop {
            self.mute_doorbell()?;
            while let Some(chain) = self.next()? {
                serve(self, chain)?;
            }
            self.notify()?;
            if !self.unmute_doorbell()? {
                return Ok(());
            }
        }
    }

    /// Interrupts the driver.
    pub(crate) fn interrupt(&self) {
        self.interrupts.queue_used(self.index);
    }

    /// The error for a ring that can't be used, in the words of its user.
    pub(crate) fn mirror_broken(&self, why: String) -> QueueError {
        let index = self.index;
        QueueError::Mirror { index, why }
    }

    /// The error for a request that makes no sense.
    pub(crate) fn malformed(&self, reason: &'static str) -> QueueError {
        let index = self.index;
        QueueError::Request { index, reason }
    }

    /// The error for what the host refuses, although the driver may ask for it.
    pub(crate) fn refused(&self, cause: io::Error) -> QueueError {
        let index = self.index;
        QueueError::Host { index, cause }
    }

    fn chain_error(&self, cause: virtio_queue::Error) -> QueueError {
        let index = self.index;
        QueueError::Chain { index, cause }
    }
}

fn ring_error(index: usize) -> impl FnOnce(virtio_queue::Error) -> QueueError + Copy {
    move |cause| QueueError::Ring { index, cause }
}
