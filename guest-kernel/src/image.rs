//! A vmlinux: the loadable segments of an ELF file. Distributions strip the rest.

use std::ops::Range;

use guest_state::x86_64::paging::UPPER_HALF;
use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

use thiserror::Error;

/// Why a file is no kernel image.
#[derive(Debug, Error)]
#[error("the kernel is no readable x86-64 ELF file ({reason}); give a vmlinux")]
pub struct ImageError {
    /// What is wrong with it.
    pub reason: String,
}

/// One `PT_LOAD` segment.
#[derive(Debug)]
pub(crate) struct LoadSegment<'a> {
    /// Virtual address of its first byte.
    pub(crate) address: u64,
    /// What the file holds of it.
    pub(crate) data: &'a [u8],
    /// Length in memory, in bytes.
    memory_len: u64,
    /// Code may run in it.
    executable: bool,
}

impl LoadSegment<'_> {
    /// The virtual addresses that it takes.
    fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.memory_len)
    }
}

/// A vmlinux, uncompressed, stripped or not.
#[derive(Debug)]
pub struct Image<'a> {
    pub(crate) file: &'a [u8],
    pub(crate) header: &'a FileHeader64<LittleEndian>,
    /// In the file's order.
    pub(crate) segments: Vec<LoadSegment<'a>>,
}

impl<'a> Image<'a> {
    /// Reads the ELF and program headers. A segment that goes past the end of the file is cut there.
    ///
    /// # Errors
    /// It is no ELF file for x86-64.
    pub fn parse(file: &'a [u8]) -> Result<Self, ImageError> {
        let not_elf = |e: object::Error| ImageError {
            reason: e.to_string(),
        };
        let header = FileHeader64::<LittleEndian>::parse(file).map_err(not_elf)?;
        if header.e_machine(LittleEndian) != elf::EM_X86_64 {
            return Err(ImageError {
                reason: "it is not for x86-64".to_owned(),
            });
        }
        let headers = header
            .program_headers(LittleEndian, file)
            .map_err(not_elf)?;
        let segments = headers
            .iter()
            .filter(|h| h.p_type(LittleEndian) == elf::PT_LOAD)
            .map(|h| {
                let (offset, len) = h.file_range(LittleEndian);
                let start = offset.min(file.len() as u64) as usize;
                let end = offset.saturating_add(len).min(file.len() as u64) as usize;
                LoadSegment {
                    address: h.p_vaddr(LittleEndian),
                    data: &file[start..end],
                    memory_len: h.p_memsz(LittleEndian),
                    executable: h.p_flags(LittleEndian).contains(elf::PF_X),
                }
            })
            .collect();
        Ok(Self {
            file,
            header,
            segments,
        })
    }

    /// Returns the addresses from the first kernel segment to the end of the last. Per-CPU variables of older kernels
    /// are linked at 0, outside the kernel's half.
    pub(crate) fn range(&self) -> Range<u64> {
        let kernel = || {
            self.segments
                .iter()
                .map(LoadSegment::range)
                .filter(|r| r.start >= UPPER_HALF.0)
        };
        let start = kernel().map(|r| r.start).min().unwrap_or(0);
        start..kernel().map(|r| r.end).max().unwrap_or(start)
    }

    /// Returns true if a range of addresses lies in one segment with code.
    pub(crate) fn is_code(&self, range: &Range<u64>) -> bool {
        range.start < range.end
            && self
                .segments
                .iter()
                .filter(|s| s.executable)
                .map(LoadSegment::range)
                .any(|segment| segment.start <= range.start && range.end <= segment.end)
    }

    /// Returns what the file holds of a range of addresses; `None` unless all of it is there.
    pub(crate) fn bytes(&self, range: &Range<u64>) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|segment| {
            let start = usize::try_from(range.start.checked_sub(segment.address)?).ok()?;
            let end = usize::try_from(range.end.checked_sub(segment.address)?).ok()?;
            segment.data.get(start..end)
        })
    }

    /// Returns what the file holds from an address to the end of its segment; `None` where it holds nothing.
    pub(crate) fn from(&self, address: u64) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|segment| {
            let start = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            let rest = segment.data.get(start..)?;
            (!rest.is_empty()).then_some(rest)
        })
    }
}
