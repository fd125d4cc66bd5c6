//! Files of a job that are kept for people to look at.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::error::CiError;

/// A folder for the files of one run of a job; none where they aren't wanted.
#[derive(Clone, Debug, Default)]
pub struct Artifacts(Option<PathBuf>);

impl Artifacts {
    /// Makes the folder of a job's run, of which there may be several.
    ///
    /// # Errors
    /// It can't be made.
    pub fn of(base: Option<&Path>, job: &str, attempt: u32) -> Result<Self, CiError> {
        let Some(base) = base else {
            return Ok(Self(None));
        };
        let mut name = file_name(job);
        if attempt > 0 {
            name += &format!("-again-{attempt}");
        }
        let folder = base.join(name);
        let made = fs::create_dir_all(&folder);
        made.map_err(|cause| CiError::Write {
            file: folder.clone(),
            cause,
        })?;
        Ok(Self(Some(folder)))
    }

    /// Makes a file in it.
    ///
    /// # Errors
    /// It can't be made.
    pub fn file(&self, name: &str) -> Result<Artifact, CiError> {
        let Some(path) = self.path(name) else {
            return Ok(Artifact(None));
        };
        match File::create(&path) {
            Ok(file) => Ok(Artifact(Some((path, BufWriter::new(file))))),
            Err(cause) => Err(CiError::Write { file: path, cause }),
        }
    }

    /// Returns where a file in it would be.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(name))
    }
}

/// Makes a file name of a job's name: the separators of folders become hyphens.
fn file_name(job: &str) -> String {
    let name = job.replace(['/', '\0'], "-");
    match name.as_str() {
        "" | "." | ".." => "job".to_owned(),
        _ => name,
    }
}

/// A file that is kept, or none.
#[derive(Debug)]
pub struct Artifact(Option<(PathBuf, BufWriter<File>)>);

impl Artifact {
    /// Appends bytes.
    ///
    /// # Errors
    /// They can't be written.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), CiError> {
        self.with(|to| to.write_all(bytes))
    }

    /// Appends a line.
    ///
    /// # Errors
    /// It can't be written.
    pub fn line(&mut self, line: &str) -> Result<(), CiError> {
        self.with(|to| writeln!(to, "{line}"))
    }

    /// Writes what is left. Without this it is written when the file is dropped, and errors go unnoticed.
    ///
    /// # Errors
    /// It can't be written.
    pub fn finish(mut self) -> Result<(), CiError> {
        self.with(Write::flush)
    }

    fn with(
        &mut self,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), CiError> {
        let Some((path, to)) = &mut self.0 else {
            return Ok(());
        };
        write(to).map_err(|cause| CiError::Write {
            file: path.clone(),
            cause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_of_a_job_has_a_folder_below_the_one_that_is_given() {
        let base = tempfile::tempdir().unwrap();
        for (job, attempt, folder) in [
            ("6.12/boot", 0, "6.12-boot"),
            ("6.12/boot", 1, "6.12-boot-again-1"),
            ("../x", 0, "..-x"),
            ("..", 0, "job"),
        ] {
            let artifacts = Artifacts::of(Some(base.path()), job, attempt).unwrap();
            let mut file = artifacts.file("a.txt").unwrap();
            file.line("text").unwrap();
            file.finish().unwrap();
            let path = base.path().join(folder).join("a.txt");
            assert_eq!(fs::read_to_string(path).unwrap(), "text\n", "{job}");
        }
    }

    #[test]
    fn nothing_is_written_where_nobody_wants_it() {
        let artifacts = Artifacts::of(None, "job", 0).unwrap();
        let mut file = artifacts.file("a.txt").unwrap();
        file.write_all(b"text").unwrap();
        assert_eq!(artifacts.path("a.txt"), None);
    }
}
