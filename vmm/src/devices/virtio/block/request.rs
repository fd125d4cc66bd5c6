//! A driver's request, and what the device answers (5.2.6).

use std::io::{self, Read};

use virtio_queue::Reader;

use super::SECTOR;

/// Kinds of requests.
pub(super) const IN: u32 = 0;
pub(super) const OUT: u32 = 1;
pub(super) const FLUSH: u32 = 4;
pub(super) const GET_ID: u32 = 8;
pub(super) const DISCARD: u32 = 11;
pub(super) const WRITE_ZEROES: u32 = 13;

/// Bytes of a request's header.
pub(super) const HEADER_LEN: usize = 16;

/// Most ranges of a request that discards or writes zeros.
pub(super) const MAX_RANGES: usize = 16;
/// Flag of a range to be zeros: its place in the file may be given up.
const UNMAP: u32 = 1 << 0;

/// What a driver wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Reads from byte `at` of the disk on, as much as there is room for.
    Read { at: u64 },
    /// Writes from byte `at` on.
    Write { at: u64 },
    /// All that was written before is to survive a loss of power.
    Flush,
    /// The disk's name.
    Name,
    /// The content of ranges doesn't matter any more.
    Discard(Vec<ByteRange>),
    /// Ranges are to be zeros.
    Zero(Vec<ByteRange>),
}

/// Some bytes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    pub(super) start: u64,
    pub(super) len: u64,
    /// The bytes need not keep their place in the file.
    pub(super) unmap: bool,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Done = 0,
    Failed = 1,
    Unsupported = 2,
}

impl Request {
    /// Reads a request's header, and its ranges where it has some; what a request writes stays in `reader`.
    ///
    /// # Errors
    /// What to answer to a request that makes no sense or isn't known.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Status> {
        let kind = u32::from_le_bytes(array(reader)?);
        let _reserved: [u8; 4] = array(reader)?;
        let sector = u64::from_le_bytes(array(reader)?);
        let at = sector.checked_mul(SECTOR).ok_or(Status::Failed)?;
        match kind {
            IN => Ok(Self::Read { at }),
            OUT => Ok(Self::Write { at }),
            FLUSH => Ok(Self::Flush),
            GET_ID => Ok(Self::Name),
            DISCARD => Ok(Self::Discard(ranges(reader, 0)?)),
            WRITE_ZEROES => Ok(Self::Zero(ranges(reader, UNMAP)?)),
            _ => Err(Status::Unsupported),
        }
    }
}

fn array<const N: usize>(reader: &mut Reader<'_>) -> Result<[u8; N], Status> {
    let mut bytes = [0; N];
    let read: io::Result<()> = reader.read_exact(&mut bytes);
    read.map_err(|_| Status::Failed)?;
    Ok(bytes)
}

/// The ranges of a request whose flags may be those in `allowed`.
fn ranges(reader: &mut Reader<'_>, allowed: u32) -> Result<Vec<ByteRange>, Status> {
    let mut ranges = Vec::new();
    while reader.available_bytes() > 0 {
        if ranges.len() == MAX_RANGES {
            return Err(Status::Failed);
        }
        let sector = u64::from_le_bytes(array(reader)?);
        let sectors = u32::from_le_bytes(array(reader)?);
        let flags = u32::from_le_bytes(array(reader)?);
        if flags & !allowed != 0 {
            // 5.2.6.2: unknown flags are refused so.
            return Err(Status::Unsupported);
        }
        ranges.push(ByteRange {
            start: sector.checked_mul(SECTOR).ok_or(Status::Failed)?,
            len: u64::from(sectors) * SECTOR,
            unmap: flags & UNMAP != 0,
        });
    }
    Ok(ranges)
}
