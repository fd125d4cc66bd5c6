//! Why there is nothing to run, or no report.

use std::io;
use std::path::PathBuf;

use quick_junit::SerializeError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum CiError {
    /// The matrix can't be read.
    #[error("can't read the matrix {}: {cause}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The matrix isn't one.
    #[error("the matrix {} makes no sense: {cause}", .file.display())]
    Matrix {
        /// The file.
        file: PathBuf,
        /// What is wrong, and where.
        cause: Box<toml::de::Error>,
    },
    /// A job without a kernel.
    #[error("the kernel {name} of the matrix has no file: give one as `kernel = \"bzImage\"`")]
    NoFile {
        /// Its name.
        name: String,
    },
    /// No kernels.
    #[error("there is no kernel to test: give one by --kernel, or as [kernels.NAME] in the matrix")]
    NoKernel,
    /// A test that names a kernel that isn't there.
    #[error(
        "the test {test} is only for the kernel {kernel}, which isn't there: there are {there}"
    )]
    Only {
        /// The test.
        test: String,
        /// What it names.
        kernel: String,
        /// The kernels.
        there: String,
    },
    /// There is no such job.
    #[error("there is no job {index}: there are {count}, and the first one is 0")]
    NoJob {
        /// The number that was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A matrix that no object of Kubernetes can hold.
    #[error("the matrix {} is larger than an object of Kubernetes can be: divide it", .file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
    /// Objects of Kubernetes can't be written as YAML.
    #[error("can't write the objects as YAML: {0}")]
    Manifest(#[source] serde_saphyr::ser::Error),
    /// A test without anything to do.
    #[error("{job} has `run` and no `root`: a command needs a root file system")]
    NoRoot {
        /// The job.
        job: String,
    },
    /// A root without anything to do.
    #[error("{job} has `root` and no `run`: say which command is to run there")]
    NoRun {
        /// The job.
        job: String,
    },
    /// A word that isn't understood.
    #[error("{job}: {what} `{text}` makes no sense: {reason}")]
    Word {
        /// The job.
        job: String,
        /// The option.
        what: &'static str,
        /// What it was given.
        text: String,
        /// Why.
        reason: String,
    },
    /// A report can't be written.
    #[error("can't write {}: {cause}", .file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A report in JUnit's form can't be made.
    #[error("can't write {}: {cause}", .file.display())]
    Junit {
        /// The file.
        file: PathBuf,
        /// Why.
        cause: SerializeError,
    },
}

impl CiError {
    /// Returns true if the arguments or the matrix are to blame.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Junit { .. })
    }
}
