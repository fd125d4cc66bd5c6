//! A kernel that has moved itself while it unpacked (KASLR).
//!
//! Source: Linux `arch/x86/boot/compressed/misc.c` (`extract_kernel`, `handle_relocations`). The decompressor chooses a
//! physical and a virtual address, each for itself. It puts the segments there and adds the virtual move to all words
//! with absolute addresses. A list behind the ELF file tells which words those are.

use guest_state::x86_64::paging::UPPER_HALF;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, Segment};
use object::elf::{FileHeader64, ProgramHeader64, SHT_SYMTAB, Sym64};
use object::pod;
use object::read::elf::{FileHeader, SectionHeader};
use object::{LittleEndian, U64};
use thiserror::Error;

use crate::file_segments::FileSegments;
use crate::relocations::Relocations;

/// By how much a kernel has moved itself from where it is linked to be. Both may wrap around.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Move {
    /// In virtual addresses, bytes.
    pub virt: u64,
    /// In physical addresses, bytes.
    pub phys: u64,
}

/// Why the kernel isn't where it was expected to be.
#[derive(Debug, Error)]
pub enum MoveError {
    /// Its file can't be read.
    #[error("the kernel's ELF file can't be read: {0}")]
    Elf(#[from] object::read::Error),
    /// Memory ends before the kernel does.
    #[error(
        "the kernel's decompressor has jumped to {entry}, and there is no room for the kernel: {cause}"
    )]
    Memory {
        /// Where its entry should be.
        entry: GuestPhysAddr,
        /// What can't be read.
        cause: MemoryError,
    },
    /// Another byte is in memory.
    #[error(
        "the kernel's decompressor has jumped to {entry}, but the kernel of the file isn't there: {at} differs"
    )]
    Differs {
        /// Where its entry should be.
        entry: GuestPhysAddr,
        /// The address, as linked, around which they differ.
        at: GuestVirtAddr,
    },
}

/// Bytes that are compared at a time.
const PIECE: usize = 1 << 16;

impl Move {
    /// Finds by how much a kernel has moved. It has unpacked itself into this memory, is about to execute its first
    /// instruction at `entry`, and hasn't changed itself yet. Changes its file into that of a kernel that is linked to
    /// be there, and compares all of it with memory.
    ///
    /// `file` is a vmlinux, with its list of relocations behind it if it has one.
    ///
    /// # Errors
    /// See [`MoveError`]; the file may have been changed.
    pub fn relocate(
        file: &mut [u8],
        entry: GuestPhysAddr,
        memory: &dyn GuestMemory,
    ) -> Result<Self, MoveError> {
        let header = FileHeader64::<LittleEndian>::parse(&*file)?;
        let linked = header.e_entry(LittleEndian);
        let phys = entry.0.wrapping_sub(linked);
        let segments = FileSegments::of(file)?;
        let relocations = Relocations::behind(file);
        let in_memory = |linked: u64| {
            let mut word = [0; 4];
            let read = memory.read(GuestPhysAddr(linked.wrapping_add(phys)), &mut word);
            read.ok().map(|()| u32::from_le_bytes(word))
        };
        let virt = relocations.find_move(file, &segments, in_memory);
        let found = Self { virt, phys };
        relocations.apply(file, &segments, virt);
        found.compare(file, &segments, entry, memory)?;
        found.move_symbols(file)?;
        found.move_headers(file)?;
        Ok(found)
    }

    /// Returns where a segment is after the move. Per-CPU variables of older kernels are linked at 0, outside the
    /// kernel's half, and stay there.
    pub fn segment(&self, linked: Segment) -> Segment {
        Segment {
            virt: GuestVirtAddr(self.virt_of(linked.virt.0)),
            phys: GuestPhysAddr(linked.phys.0.wrapping_add(self.phys)),
            len: linked.len,
        }
    }

    fn virt_of(&self, linked: u64) -> u64 {
        match linked >= UPPER_HALF.0 {
            true => linked.wrapping_add(self.virt),
            false => linked,
        }
    }

    fn compare(
        &self,
        file: &[u8],
        segments: &FileSegments,
        entry: GuestPhysAddr,
        memory: &dyn GuestMemory,
    ) -> Result<(), MoveError> {
        let mut found = vec![0; PIECE];
        for segment in &segments.all {
            let bytes = &file[segment.offset..segment.offset + segment.len];
            for (index, expected) in bytes.chunks(PIECE).enumerate() {
                let offset = (index * PIECE) as u64;
                let at = segment.phys.wrapping_add(self.phys).wrapping_add(offset);
                let found = &mut found[..expected.len()];
                let read = memory.read(GuestPhysAddr(at), found);
                read.map_err(|cause| MoveError::Memory { entry, cause })?;
                if found != expected {
                    let at = GuestVirtAddr(segment.virt.wrapping_add(offset));
                    return Err(MoveError::Differs { entry, at });
                }
            }
        }
        Ok(())
    }

    /// Moves the symbols of a file that isn't stripped. The file in a bzImage is stripped, as the kernel's own build
    /// makes it.
    fn move_symbols(&self, file: &mut [u8]) -> Result<(), MoveError> {
        let header = FileHeader64::<LittleEndian>::parse(&*file)?;
        let sections = header.section_headers(LittleEndian, &*file)?;
        let tables: Vec<_> = sections
            .iter()
            .filter(|section| section.sh_type(LittleEndian) == SHT_SYMTAB)
            .filter_map(|section| {
                let start = usize::try_from(section.sh_offset(LittleEndian)).ok()?;
                let len = usize::try_from(section.sh_size(LittleEndian)).ok()?;
                Some((start, len / size_of::<Sym64<LittleEndian>>()))
            })
            .collect();
        for (start, count) in tables {
            let table = file.get_mut(start..).unwrap_or_default();
            let symbols = pod::slice_from_bytes_mut::<Sym64<LittleEndian>>(table, count);
            for symbol in symbols.map(|(symbols, _)| symbols).unwrap_or_default() {
                let moved = self.virt_of(symbol.st_value.get(LittleEndian));
                symbol.st_value.set(LittleEndian, moved);
            }
        }
        Ok(())
    }

    /// Moves the addresses in the headers.
    fn move_headers(&self, file: &mut [u8]) -> Result<(), MoveError> {
        let header = FileHeader64::<LittleEndian>::parse(&*file)?;
        let (start, count) = (
            header.e_phoff(LittleEndian),
            header.program_headers(LittleEndian, &*file)?.len(),
        );
        let entry = header.e_entry(LittleEndian).wrapping_add(self.phys);
        let moved = U64::new(LittleEndian, entry);
        if let Ok((header, _)) = pod::from_bytes_mut::<FileHeader64<LittleEndian>>(file) {
            header.e_entry = moved;
        }
        let headers = file.get_mut(start as usize..).unwrap_or_default();
        let headers = pod::slice_from_bytes_mut::<ProgramHeader64<LittleEndian>>(headers, count);
        let Ok((headers, _)) = headers else {
            return Ok(());
        };
        for header in headers {
            let virt = self.virt_of(header.p_vaddr.get(LittleEndian));
            header.p_vaddr.set(LittleEndian, virt);
            let phys = header.p_paddr.get(LittleEndian).wrapping_add(self.phys);
            header.p_paddr.set(LittleEndian, phys);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
