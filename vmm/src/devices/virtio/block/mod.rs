//! A block device (5.2): a disk whose bytes are in an image file or on a block device of the host's.

mod device;
mod image;
mod request;
mod ring;
#[cfg(test)]
mod tests;
mod transfer;

pub(crate) use device::Block;
pub use image::{Disk, DiskError, DiskFormat};

/// Bytes of a sector, the unit of addresses and lengths, whatever the disk's own blocks are (5.2.4).
const SECTOR: u64 = 512;
