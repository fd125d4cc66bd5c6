//! Why symbols that are given can't be used.

use thiserror::Error;

use super::SymbolsError;
use crate::build_id::BuildId;
use crate::image::ImageError;

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
    /// Neither ELF nor a list of symbols. The line's text isn't told: the file may be another one of the host's.
    #[error(
        "line {line} of the symbol file isn't an address, a letter and a name, as in a System.map; give the vmlinux of \
         the kernel's build, or its System.map"
    )]
    Line {
        /// The line's number, from 1 on.
        line: usize,
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
    /// The kernel has something elsewhere than the symbols say.
    #[error(
        "the symbol file doesn't belong to the kernel: {why}; give the vmlinux or the System.map of this very build"
    )]
    Foreign {
        /// What differs.
        why: String,
    },
}
