//! Symbols from a file beside the kernel: its unstripped vmlinux, or its `System.map`.

use guest_state::x86_64::paging::UPPER_HALF;
use thiserror::Error;

use super::belongs;
use super::symtab;
use super::system_map;
use super::table::SymbolTable;
use super::{Source, Symbols, SymbolsError};
use crate::build_id::{self, BuildId};
use crate::image::{Image, ImageError};

/// Symbols that were given with a kernel, at the addresses to which the kernel is linked.
#[derive(Debug)]
pub struct GivenSymbols {
    table: SymbolTable,
    source: Source,
    build_id: Option<BuildId>,
}

/// Why given symbols can't be used.
#[derive(Debug, Error)]
pub enum GivenError {
    /// An ELF file that can't be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An ELF file without symbols.
    #[error(
        "the symbol file is an ELF file without a symbol table (.symtab): give the vmlinux of the kernel's build as \
         it was before it was stripped, or its System.map"
    )]
    Stripped,
    /// Neither ELF nor a list of symbols.
    #[error(
        "line {line} of the symbol file isn't an address, a letter and a name, as in a System.map: {text:?}; give the \
         vmlinux of the kernel's build, or its System.map"
    )]
    Line {
        /// The line's number, from 1 on.
        line: usize,
        /// How it begins.
        text: String,
    },
    /// No symbol says where the text is.
    #[error("the symbol file can't be used: {0}")]
    Symbols(#[from] SymbolsError),
    /// Other numbers of the builds.
    #[error(
        "the symbol file is of another build than the kernel: its build ID is {given}, the kernel's is {kernel}; give \
         the vmlinux of this very build"
    )]
    OtherBuild {
        /// The file's.
        given: BuildId,
        /// The kernel's.
        kernel: BuildId,
    },
    /// What the kernel has elsewhere than the symbols say.
    #[error(
        "the symbol file doesn't belong to the kernel: {why}; give the vmlinux or the System.map of this very build"
    )]
    Foreign {
        /// What differs.
        why: String,
    },
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

    /// The symbols of a kernel that has moved by so many bytes: those in the kernel's half of the addresses move.
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

    /// The symbols, if they are this image's.
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
