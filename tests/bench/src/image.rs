//! A kernel's image, read as the monitor reads it.

use std::path::Path;

use guest_kernel::ImageMap;
use guest_kernel::{Kernel, KernelError};
use guest_state::{GuestPhysAddr, GuestVirtAddr, Segment};
use object::LittleEndian;
use object::elf::{PT_LOAD, ProgramHeader64};
use object::read::elf::{ElfFile64, ProgramHeader};
use vmm::boot::bzimage::{KernelFileError, read_kernel};

/// Why there is nothing to measure on.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It can't be read.
    #[error("can't read the kernel")]
    Read(#[from] std::io::Error),
    /// It is no kernel.
    #[error(transparent)]
    File(#[from] KernelFileError),
    /// The ELF file in it is damaged.
    #[error("can't find the kernel's segments")]
    Segments(#[from] object::Error),
    /// The engine can't use it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A kernel's uncompressed image.
#[derive(Debug)]
pub struct Image {
    /// The ELF file.
    pub elf: Vec<u8>,
    parts: Vec<Part>,
}

/// A segment and where it is in the file.
#[derive(Debug)]
struct Part {
    place: Segment,
    offset: usize,
    len: usize,
}

impl Image {
    /// Unpacks a bzImage.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn read(vmlinuz: &Path) -> Result<Self, ImageError> {
        let elf = read_kernel(std::fs::read(vmlinuz)?)?.elf;
        let file = ElfFile64::<LittleEndian>::parse(&*elf)?;
        let header = |header: &ProgramHeader64<LittleEndian>| Part {
            place: Segment {
                virt: GuestVirtAddr(header.p_vaddr(LittleEndian)),
                phys: GuestPhysAddr(header.p_paddr(LittleEndian)),
                len: header.p_memsz(LittleEndian),
            },
            offset: header.p_offset(LittleEndian) as usize,
            len: header.p_filesz(LittleEndian) as usize,
        };
        let parts = file
            .elf_program_headers()
            .iter()
            .filter(|segment| segment.p_type(LittleEndian) == PT_LOAD)
            .map(header)
            .collect();
        Ok(Self { elf, parts })
    }

    /// What the engine knows of it.
    ///
    /// # Errors
    /// The engine can't read it.
    pub fn kernel(&self) -> Result<Kernel, ImageError> {
        Ok(Kernel::from_image(&self.elf)?)
    }

    /// Where it is loaded.
    pub fn map(&self) -> ImageMap {
        ImageMap::new(self.parts.iter().map(|segment| segment.place).collect())
    }

    /// Each segment's place in physical memory and its bytes.
    pub fn contents(&self) -> impl Iterator<Item = (GuestPhysAddr, &[u8])> {
        self.parts.iter().map(|segment| {
            let end = segment.offset.saturating_add(segment.len);
            let bytes = self.elf.get(segment.offset..end).unwrap_or_default();
            (segment.place.phys, bytes)
        })
    }

    /// The image's bytes from an address on, to the end of the segment's file contents.
    pub fn bytes_at(&self, at: GuestVirtAddr) -> Option<&[u8]> {
        self.parts.iter().find_map(|segment| {
            let into = usize::try_from(at.0.checked_sub(segment.place.virt.0)?).ok()?;
            let (start, end) = (segment.offset + into, segment.offset + segment.len);
            self.elf.get(start..end).filter(|_| into < segment.len)
        })
    }
}
