//! The number that a linker gives each build of a program (`NT_GNU_BUILD_ID`, `ld --build-id`).

use std::fmt;

use object::LittleEndian;
use object::elf::{ELF_NOTE_GNU, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::image::Image;

/// Length of the longest build ID, a SHA-1, in bytes.
const MAX: usize = 20;

/// A build's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildId {
    bytes: [u8; MAX],
    len: usize,
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.bytes[..self.len].iter();
        bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns the build ID of an image; `None` if its notes have none.
pub(crate) fn of(image: &Image<'_>) -> Option<BuildId> {
    let headers = image
        .header
        .program_headers(LittleEndian, image.file)
        .ok()?;
    headers.iter().find_map(|header| {
        let mut notes = header.notes(LittleEndian, image.file).ok()??;
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(LittleEndian) == NT_GNU_BUILD_ID {
                let (len, mut bytes) = (note.desc().len(), [0; MAX]);
                bytes.get_mut(..len)?.copy_from_slice(note.desc());
                return Some(BuildId { bytes, len });
            }
        }
        None
    })
}
