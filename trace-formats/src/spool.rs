//! Data that has to wait for what comes before it in a file.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

/// A temporary file without a name. It takes no memory beyond a buffer.
pub(crate) struct Spool {
    file: BufWriter<File>,
}

impl Spool {
    /// Makes an empty one.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::new(tempfile::tempfile()?),
        })
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Copies everything to `out`.
    pub(crate) fn copy_to(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        io::copy(self.file.get_mut(), out)?;
        self.file.seek(SeekFrom::End(0))?;
        Ok(())
    }

    /// Reads what stands at an offset. Bytes can't be appended any more.
    pub(crate) fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.get_mut().read_exact(bytes)
    }
}
