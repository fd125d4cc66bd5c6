//! Writing events to Parquet files, in a folder for each hour of each host.

mod columns;
mod file;
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::block_in_place;
use tokio::time::{Instant, sleep_until};

pub use file::{FileError, FileLimits};

use crate::{Record, Sink, SinkError};
use file::OpenFile;
use place::place;

/// Files that are open at once. If there would be more, the oldest is closed early.
const OPEN: usize = 256;

/// A folder of Parquet files. It needs a runtime with several threads, as it blocks one of them while it writes.
pub struct Parquet(Files);

/// The files of a folder, without a runtime.
struct Files {
    folder: PathBuf,
    limits: FileLimits,
    /// The open files, by their folders.
    open: BTreeMap<PathBuf, OpenFile>,
    /// Events in closed files.
    exported: u64,
}

impl Parquet {
    /// Makes files below a folder, which is made if it doesn't exist.
    ///
    /// # Errors
    /// The folder can't be made.
    pub fn new(folder: PathBuf, limits: FileLimits) -> Result<Self, SinkError> {
        fs::create_dir_all(&folder)
            .map_err(|error| SinkError(format!("can't make {}: {error}", folder.display())))?;
        Ok(Self(Files {
            folder,
            limits,
            open: BTreeMap::new(),
            exported: 0,
        }))
    }
}

impl Sink for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    async fn take(&mut self, record: Arc<Record>) -> Result<(), SinkError> {
        block_in_place(|| self.0.take(&record, Instant::now()))
    }

    async fn idle(&mut self) -> SinkError {
        loop {
            let Some(due) = self.0.due() else {
                return std::future::pending().await;
            };
            sleep_until(due).await;
            if let Err(error) = block_in_place(|| self.0.close_old(due)) {
                return error;
            }
        }
    }

    async fn finish(mut self, _deadline: Instant) -> (u64, Result<(), SinkError>) {
        block_in_place(|| {
            let closed = self.0.close_all();
            (self.0.exported, closed)
        })
    }
}

impl Files {
    fn take(&mut self, record: &Record, now: Instant) -> Result<(), SinkError> {
        let place = place(record);
        let file = match self.open.remove(&place) {
            Some(file) => Ok(file),
            None => {
                if self.open.len() >= OPEN {
                    self.close_oldest()?;
                }
                OpenFile::create(self.folder.join(&place), record, now)
            }
        };
        let pushed = file.and_then(|mut file| {
            file.push(record)?;
            Ok(file)
        });
        let file = pushed.map_err(|error| self.failure(&error))?;
        match file.is_full(self.limits) {
            true => self.close(file),
            false => {
                self.open.insert(place, file);
                Ok(())
            }
        }
    }

    /// Returns the time when the next file has to be closed.
    fn due(&self) -> Option<Instant> {
        self.open.values().map(|file| file.due(self.limits)).min()
    }

    /// Closes the files that are too old.
    fn close_old(&mut self, now: Instant) -> Result<(), SinkError> {
        let limits = self.limits;
        let old = self.open.extract_if(.., |_, file| file.due(limits) <= now);
        for (_, file) in old.collect::<Vec<_>>() {
            self.close(file)?;
        }
        Ok(())
    }

    fn close_oldest(&mut self) -> Result<(), SinkError> {
        match self.due() {
            Some(due) => self.close_old(due),
            None => Ok(()),
        }
    }

    /// Closes all files, even if closing some of them fails.
    fn close_all(&mut self) -> Result<(), SinkError> {
        let mut result = Ok(());
        while let Some((_, file)) = self.open.pop_first() {
            result = result.and(self.close(file));
        }
        result
    }

    fn close(&mut self, file: OpenFile) -> Result<(), SinkError> {
        self.exported += file.close().map_err(|error| self.failure(&error))?;
        Ok(())
    }

    fn failure(&self, error: &FileError) -> SinkError {
        SinkError(format!(
            "can't write Parquet files below {}: {error}; files that are there are whole, and what was to go into \
             others counts as failed",
            self.folder.display()
        ))
    }
}

#[cfg(test)]
mod tests;
