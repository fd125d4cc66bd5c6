//! Symbols from a file beside the kernel: its unstripped vmlinux, or its `System.map`.

use super::belongs;
use super::given_error::GivenError;
use super::symtab;
use super::system_map;
use super::table::SymbolTable;
use super::{Source, Symbols};
use crate::build_id::{self, BuildId};
use crate::image::Image;
use guest_state::x86_64::paging::UPPER_HALF;

/// Symbols that were given with a kernel, at the addresses to which the kernel is linked.
#[derive(Debug)]
pub struct GivenSymbols {
    table: SymbolTable,
    source: Source,
    build_id: Option<BuildId>,
}

impl GivenSymbols {
    /// Reads a file: an ELF file with `.symtab`, or lines of an address, a letter and a name, as `System.map` and
    /// `/proc/kallsyms` have them.
    ///
    /// # Errors
    /// See [`GivenError`].
    pub fn parse(file: &[u8]) -> Result<Self, GivenError> {
        if !file.starts_with(&object::elf::ELFMAG) {
            return Ok(Self {
                table: system_map::read(file)?,
                source: Source::SystemMap,
                build_id: None,
            });
        }
        let image = Image::parse(file)?;
        Ok(Self {
            table: symtab::read(&image).ok_or(GivenError::Stripped)?,
            source: Source::ElfSymtab,
            build_id: build_id::of(&image),
        })
    }

    /// Moves the symbols as a kernel moves by `bytes` bytes: those in the kernel's half of the addresses move.
    #[must_use]
    pub fn moved_by(mut self, bytes: u64) -> Self {
        for entry in &mut self.table.entries {
            if entry.address >= UPPER_HALF.0 {
                entry.address = entry.address.wrapping_add(bytes);
            }
        }
        // Some may have wrapped around.
        self.table.entries.sort_by_key(|entry| entry.address);
        self
    }

    /// Returns the symbols, if they are this image's.
    pub(crate) fn of_image(self, image: &Image<'_>) -> Result<Symbols, GivenError> {
        if let (Some(given), Some(kernel)) = (self.build_id, build_id::of(image))
            && given != kernel
        {
            return Err(GivenError::OtherBuild { given, kernel });
        }
        let symbols = Symbols::new(self.table, self.source, image)?;
        belongs::check(&symbols, image).map_err(|why| GivenError::Foreign { why })?;
        Ok(symbols)
    }
}

#[cfg(test)]
mod tests;
