//! Where a vmlinux has its segments, by the physical addresses to which they are linked.

use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

/// What the file holds of one segment.
#[derive(Debug)]
pub(crate) struct FileSegment {
    pub(crate) virt: u64,
    pub(crate) phys: u64,
    /// Where it is in the file, and how much of it, in bytes.
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// The segments to load, as linked.
#[derive(Debug)]
pub(crate) struct FileSegments {
    pub(crate) all: Vec<FileSegment>,
}

impl FileSegments {
    /// Reads the program headers. A segment that goes past the end of the file is left out.
    ///
    /// # Errors
    /// It is no ELF file.
    pub(crate) fn of(file: &[u8]) -> Result<Self, object::read::Error> {
        let header = FileHeader64::<LittleEndian>::parse(file)?;
        let headers = header.program_headers(LittleEndian, file)?;
        let loaded = headers.iter().filter(|h| h.p_type(LittleEndian) == PT_LOAD);
        let all = loaded.filter_map(|header| {
            let (offset, len) = header.file_range(LittleEndian);
            let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
            file.get(offset..offset.checked_add(len)?)?;
            Some(FileSegment {
                virt: header.p_vaddr(LittleEndian),
                phys: header.p_paddr(LittleEndian),
                offset,
                len,
            })
        });
        Ok(Self { all: all.collect() })
    }

    /// Returns the offset in the file of `len` bytes that are linked to be at a physical address.
    pub(crate) fn offset(&self, phys: u64, len: usize) -> Option<usize> {
        self.all.iter().find_map(|segment| {
            let offset = usize::try_from(phys.checked_sub(segment.phys)?).ok()?;
            (offset.checked_add(len)? <= segment.len).then(|| segment.offset + offset)
        })
    }
}
