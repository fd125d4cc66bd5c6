//! Values that are made from files, and made again when the files change.

use std::fmt::{Debug, Display, Formatter};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The least time between two looks at the files.
const PAUSE: Duration = Duration::from_secs(1);

/// Identifies a version of a file: its device, number, length, and the nanoseconds of its last change.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// A value that is made from files.
pub struct Reloaded<T> {
    files: Vec<PathBuf>,
    make: Box<Make<T>>,
    state: Mutex<State<T>>,
}

type Make<T> = dyn Fn() -> Result<T, String> + Send + Sync;

struct State<T> {
    made: Arc<T>,
    stamps: Vec<Stamp>,
    looked: Instant,
}

impl<T> Reloaded<T> {
    /// Makes a value from these files with `make`, now and after each change.
    ///
    /// # Errors
    /// The first error of `make`. Later ones are logged, and the former value stays.
    pub fn new<E: Display>(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // The stamps are taken before the files are read, so that a change meanwhile is noticed.
        let stamps = stamps(&files);
        let made = Arc::new(make()?);
        Ok(Self {
            files,
            make: Box::new(move || make().map_err(|error| error.to_string())),
            state: Mutex::new(State {
                made,
                stamps,
                looked: Instant::now(),
            }),
        })
    }

    /// Returns the newest value that could be made.
    pub fn get(&self) -> Arc<T> {
        self.get_at(Instant::now())
    }

    fn get_at(&self, now: Instant) -> Arc<T> {
        let mut state = self.state.lock();
        if now.saturating_duration_since(state.looked) >= PAUSE {
            state.looked = now;
            let stamps = stamps(&self.files);
            if stamps != state.stamps {
                state.stamps = stamps;
                match (self.make)() {
                    Ok(made) => {
                        state.made = Arc::new(made);
                        tracing::info!("read anew: {:?}", self.files);
                    }
                    Err(error) => tracing::error!("what was there before is kept: {error}"),
                }
            }
        }
        Arc::clone(&state.made)
    }
}

impl<T> Debug for Reloaded<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloaded")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let found = fs::metadata(file).ok()?;
        let (seconds, nanoseconds) = (found.mtime(), found.mtime_nsec());
        Some((found.dev(), found.ino(), found.size(), seconds, nanoseconds))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_after_a_while_and_one_that_makes_nothing_changes_nothing() {
        let folder = std::env::temp_dir().join(format!("reloaded-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("file");
        fs::write(&file, "1").unwrap();
        let read = {
            let file = file.clone();
            move || fs::read_to_string(&file).unwrap().parse::<u32>()
        };
        let reloaded = Reloaded::new(vec![file.clone()], read).unwrap();
        let begin = Instant::now();
        assert_eq!(*reloaded.get_at(begin), 1);
        fs::write(&file, "23").unwrap();
        assert_eq!(*reloaded.get_at(begin), 1);
        assert_eq!(*reloaded.get_at(begin + 2 * PAUSE), 23);
        fs::write(&file, "none").unwrap();
        assert_eq!(*reloaded.get_at(begin + 4 * PAUSE), 23);
        fs::write(&file, "4").unwrap();
        assert_eq!(*reloaded.get_at(begin + 6 * PAUSE), 4);
        fs::remove_dir_all(folder).unwrap();
    }
}
