//! A file that is being written.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow_schema::ArrowError;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use tempfile::{Builder, NamedTempFile};
use thiserror::Error;
use tokio::time::Instant;

use super::columns::Columns;
use crate::Record;

/// Rows that are encoded together.
const BATCH: usize = 1024;
/// Bytes of a row group. All of it is in memory until it is written.
const ROW_GROUP: usize = 8 << 20;

/// The limits at which a file is closed, and another one begun.
#[derive(Clone, Copy, Debug)]
pub struct FileLimits {
    /// Its approximate bytes.
    pub bytes: u64,
    /// The time since its first event.
    pub age: Duration,
}

/// Why a file can't be written.
#[derive(Debug, Error)]
pub enum FileError {
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Rows can't be encoded.
    #[error(transparent)]
    Parquet(ParquetError),
    /// Rows can't be written.
    #[error("{0}")]
    Write(Box<dyn Error + Send + Sync>),
    /// Values can't be put into columns.
    #[error(transparent)]
    Columns(#[from] ArrowError),
}

impl From<ParquetError> for FileError {
    fn from(error: ParquetError) -> Self {
        match error {
            ParquetError::External(cause) => Self::Write(cause),
            other => Self::Parquet(other),
        }
    }
}

/// A file that has another name until it is complete, so that no program reads half of it. It is deleted if it isn't
/// closed.
pub(super) struct OpenFile {
    temporary: NamedTempFile,
    folder: PathBuf,
    /// The name that it will have.
    name: String,
    writer: ArrowWriter<File>,
    columns: Columns,
    waiting: usize,
    rows: u64,
    opened: Instant,
}

impl OpenFile {
    /// Makes a file in a folder for events from this one on. The name has no meaning: it consists of the time of the
    /// first event, and a part that makes it unique.
    pub fn create(folder: PathBuf, first: &Record, now: Instant) -> Result<Self, FileError> {
        fs::create_dir_all(&folder)?;
        // Readers ignore names that begin with a dot, and names that don't end in `.parquet`.
        let temporary = Builder::new()
            .prefix(&format!(".{}-", first.unix_ns))
            .rand_bytes(12)
            .suffix(".unfinished")
            .permissions(permissions())
            .tempfile_in(&folder)?;
        let name = temporary.path().file_stem().unwrap_or_default();
        let name = name.to_string_lossy();
        let name = format!("{}.parquet", name.trim_start_matches('.'));
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_coerce_types(true)
            .set_created_by("vmprobe".into())
            .build();
        let mut columns = Columns::new();
        let schema = columns.take()?.schema();
        let file = temporary.as_file().try_clone()?;
        Ok(Self {
            writer: ArrowWriter::try_new(file, schema, Some(properties))?,
            temporary,
            folder,
            name,
            columns,
            waiting: 0,
            rows: 0,
            opened: now,
        })
    }

    /// Returns the time when the file reaches its greatest age.
    pub fn due(&self, limits: FileLimits) -> Instant {
        self.opened + limits.age
    }

    /// Adds an event.
    pub fn push(&mut self, record: &Record) -> Result<(), FileError> {
        self.columns.push(record)?;
        self.waiting += 1;
        self.rows += 1;
        match self.waiting >= BATCH {
            true => self.write(),
            false => Ok(()),
        }
    }

    fn write(&mut self) -> Result<(), FileError> {
        self.waiting = 0;
        self.writer.write(&self.columns.take()?)?;
        if self.writer.in_progress_size() > ROW_GROUP {
            self.writer.flush()?;
        }
        Ok(())
    }

    /// Returns true if the file has reached its greatest size.
    pub fn is_full(&self, limits: FileLimits) -> bool {
        let bytes = self.writer.bytes_written() + self.writer.in_progress_size();
        bytes as u64 >= limits.bytes
    }

    /// Ends the file, writes it to the disk, and gives it its name. Returns how many events it has.
    pub fn close(mut self) -> Result<u64, FileError> {
        self.write()?;
        self.writer.finish()?;
        self.temporary.as_file().sync_all()?;
        let named = self
            .temporary
            .persist_noclobber(self.folder.join(&self.name));
        named.map_err(|error| error.error)?;
        sync_folder(&self.folder)?;
        Ok(self.rows)
    }
}

/// Makes sure that the names in a folder are on the disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns the permissions of any new file, which the process' mask restricts.
fn permissions() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o666)
}
