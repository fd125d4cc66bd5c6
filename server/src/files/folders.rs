//! The folders whose files clients may name.

use std::io;
use std::path::{Path, PathBuf, absolute};

/// Folders that the server's owner has named, as absolute paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// Guests read what is below them.
    pub read: Vec<PathBuf>,
    /// Guests read and change what is below them.
    pub write: Vec<PathBuf>,
}

impl Folders {
    /// Returns true if the owner has named no folders.
    pub fn is_empty(&self) -> bool {
        self.read.is_empty() && self.write.is_empty()
    }

    /// Returns the same folders, with absolute paths.
    ///
    /// # Errors
    /// The path that isn't a folder, and the reason.
    pub fn found(self) -> Result<Self, (PathBuf, io::Error)> {
        let found = |folder: PathBuf| {
            let found = absolute(&folder).and_then(|absolute| {
                absolute.read_dir()?;
                Ok(absolute)
            });
            found.map_err(|error| (folder, error))
        };
        let all = |folders: Vec<PathBuf>| folders.into_iter().map(found).collect::<Result<_, _>>();
        Ok(Self {
            read: all(self.read)?,
            write: all(self.write)?,
        })
    }

    /// Returns the innermost folder that `path` is below by its text, and the rest of the path. With `to_write`, only
    /// considers folders whose files guests may change.
    pub(super) fn above<'a>(
        &'a self,
        path: &'a Path,
        to_write: bool,
    ) -> Option<(&'a Path, &'a Path)> {
        let read = self.read.iter().filter(|_| !to_write);
        let below = self.write.iter().chain(read).filter_map(|folder| {
            let rest = path.strip_prefix(folder).ok()?;
            Some((folder.as_path(), rest))
        });
        below.max_by_key(|(folder, _)| folder.components().count())
    }

    /// Lists the folders, for a refusal.
    pub(super) fn describe(&self, to_write: bool) -> String {
        let mut folders: Vec<_> = self.write.iter().collect();
        if !to_write {
            folders.extend(&self.read);
        }
        let folders: Vec<_> = folders.iter().map(|it| it.display().to_string()).collect();
        folders.join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(read: &[&str], write: &[&str]) -> Folders {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        Folders {
            read: paths(read),
            write: paths(write),
        }
    }

    #[test]
    fn a_path_is_below_the_innermost_folder_that_allows_its_use() {
        let folders = folders(&["/a", "/a/b/c"], &["/a/b"]);
        for (path, to_write, expected) in [
            ("/a/f", false, Some(("/a", "f"))),
            ("/a/b/f", false, Some(("/a/b", "f"))),
            ("/a/b/c/f", false, Some(("/a/b/c", "f"))),
            ("/a/b/c/f", true, Some(("/a/b", "c/f"))),
            ("/a/f", true, None),
            ("/ab/f", false, None),
            ("a/f", false, None),
            ("/a/../etc/f", false, Some(("/a", "../etc/f"))),
            ("/a", false, Some(("/a", ""))),
        ] {
            let found = folders.above(Path::new(path), to_write);
            let expected = expected.map(|(folder, rest)| (Path::new(folder), Path::new(rest)));
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn a_folder_that_is_none_is_named() {
        let file = std::env::current_exe().unwrap();
        for path in [PathBuf::from("/nowhere"), file] {
            let folders = Folders {
                read: vec![path.clone()],
                write: vec![],
            };
            assert_eq!(folders.found().unwrap_err().0, path);
        }
        let relative = folders(&["."], &[]).found().unwrap();
        assert!(relative.read[0].is_absolute());
    }
}
