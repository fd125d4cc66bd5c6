//! The jobs: each test on each kernel.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use vmprobe_kernel_log::Kind;

use super::error::CiError;
use super::expectation::{self, Expectation};
use super::matrix::Matrix;
use super::settings::Settings;
use crate::cli::{Ci, DiskArg, NetworkArg};
use crate::host_root;

/// How long a job may take by default.
const TIMEOUT: Duration = Duration::from_secs(600);
/// MiB of a guest's memory by default.
const MEMORY: u64 = 512;

/// One test on one kernel.
#[derive(Clone, Debug)]
pub struct Job {
    /// Unique among the jobs; the kernel's name, a slash and the test's, where there are several tests.
    pub name: String,
    pub kernel: PathBuf,
    pub settings: Settings,
    pub expectations: Vec<Expectation>,
    /// Reports of the kernel that fail no job.
    pub allowed: Vec<Kind>,
    pub disks: Vec<DiskArg>,
    pub networks: Vec<NetworkArg>,
}

impl Job {
    pub fn timeout(&self) -> Duration {
        self.settings.timeout.unwrap_or(TIMEOUT)
    }

    pub fn memory(&self) -> u64 {
        self.settings.memory.unwrap_or(MEMORY)
    }

    pub fn vcpus(&self) -> u32 {
        self.settings.vcpus.unwrap_or(1)
    }

    pub fn retries(&self) -> u32 {
        self.settings.retries.unwrap_or(0)
    }

    fn new(name: String, settings: Settings) -> Result<Self, CiError> {
        let kernel = settings.kernel.clone();
        let kernel = kernel.ok_or_else(|| CiError::NoFile { name: name.clone() })?;
        match (&settings.root, &settings.run) {
            (None, Some(_)) => return Err(CiError::NoRoot { job: name }),
            (Some(_), None) => return Err(CiError::NoRun { job: name }),
            _ => {}
        }
        let expectations = expectation::all(&settings);
        let expectations = expectations.map_err(|(what, text, reason)| CiError::Word {
            job: name.clone(),
            what,
            text,
            reason,
        })?;
        let kinds = settings.allow.iter().map(|word| kind(word, &name));
        let allowed = kinds.collect::<Result<_, _>>()?;
        Ok(Self {
            disks: parsed(&name, "--disk", &settings.disk)?,
            networks: parsed(&name, "--net", &settings.net)?,
            name,
            kernel,
            expectations,
            allowed,
            settings,
        })
    }
}

/// Reads the devices that an option of a job asks for.
fn parsed<T: FromStr<Err: Display>>(
    job: &str,
    what: &'static str,
    texts: &[String],
) -> Result<Vec<T>, CiError> {
    let parse = |text: &String| {
        text.parse().map_err(|error: T::Err| CiError::Word {
            job: job.to_owned(),
            what,
            text: text.clone(),
            reason: error.to_string(),
        })
    };
    texts.iter().map(parse).collect()
}

fn kind(word: &str, job: &str) -> Result<Kind, CiError> {
    let found = Kind::ALL.into_iter().find(|kind| kind.word() == word);
    found.ok_or_else(|| CiError::Word {
        job: job.to_owned(),
        what: "--allow",
        text: word.to_owned(),
        reason: format!(
            "kinds of reports are {}",
            Kind::ALL.map(Kind::word).join(", ")
        ),
    })
}

/// Makes the jobs that are asked for.
///
/// # Errors
/// See [`CiError`].
pub fn jobs(asked: &Ci) -> Result<Vec<Job>, CiError> {
    let jobs = of_matrix(
        asked.matrix.as_deref(),
        asked.paths_from.as_deref(),
        &asked.kernels,
        &Settings::from(&asked.test),
    )?;
    let Some(index) = asked.job_index else {
        return Ok(jobs);
    };
    let count = jobs.len();
    let found = jobs.into_iter().nth(index);
    Ok(vec![found.ok_or(CiError::NoJob { index, count })?])
}

/// Makes the jobs of a matrix, whose paths count from `base`, or from its folder: with other kernels, where `kernels`
/// has some, and with what is `given` on top. They are in the same order each time.
///
/// # Errors
/// See [`CiError`].
pub fn of_matrix(
    matrix: Option<&Path>,
    base: Option<&Path>,
    others: &[String],
    given: &Settings,
) -> Result<Vec<Job>, CiError> {
    let matrix = matrix.map(|file| {
        let folder = file.parent().unwrap_or(Path::new(""));
        Matrix::read(file, base.unwrap_or(folder))
    });
    let matrix = matrix.transpose()?;
    let Matrix {
        defaults,
        kernels,
        mut tests,
    } = matrix.unwrap_or_default();
    let mut kernels: Vec<(String, Settings)> = kernels.into_iter().collect();
    if !others.is_empty() {
        kernels = named(others);
    }
    if kernels.is_empty() {
        return Err(CiError::NoKernel);
    }
    if tests.is_empty() {
        tests.insert(String::new(), Settings::default());
    }
    let mut jobs = Vec::new();
    for (test, settings) in &tests {
        let is_there = |wanted: &&String| kernels.iter().any(|(name, _)| name == *wanted);
        if let Some(lacking) = settings.only.iter().find(|wanted| !is_there(wanted)) {
            let there = kernels.iter().map(|(name, _)| name.as_str());
            return Err(CiError::Only {
                test: test.clone(),
                kernel: lacking.clone(),
                there: there.collect::<Vec<_>>().join(", "),
            });
        }
    }
    for (kernel, of_kernel) in &kernels {
        for (test, of_test) in &tests {
            if !of_test.only.is_empty() && !of_test.only.contains(kernel) {
                continue;
            }
            let name = match test.as_str() {
                "" => kernel.clone(),
                test => format!("{kernel}/{test}"),
            };
            let settings = defaults.with(of_kernel).with(of_test).with(given);
            jobs.push(Job::new(name, settings)?);
        }
    }
    Ok(jobs)
}

/// Returns the kernels of the command line, each with a name of its own.
fn named(asked: &[String]) -> Vec<(String, Settings)> {
    let mut kernels: Vec<(String, Settings)> = Vec::new();
    for text in asked {
        let (name, file) = match text.split_once('=') {
            // A file may have that character in its name.
            Some((name, file)) if !name.is_empty() && !Path::new(text).exists() => {
                (name.to_owned(), PathBuf::from(file))
            }
            _ => (name_of(Path::new(text)), PathBuf::from(text)),
        };
        let mut unique = name.clone();
        let mut number = 2;
        while kernels.iter().any(|(name, _)| *name == unique) {
            unique = format!("{name}#{number}");
            number += 1;
        }
        let kernel = Some(file);
        kernels.push((
            unique,
            Settings {
                kernel,
                ..Settings::default()
            },
        ));
    }
    kernels
}

/// Returns a kernel's release, or the name of its file. A file that can't be read is reported when it is booted.
fn name_of(file: &Path) -> String {
    let release = host_root::release_of(file).ok().flatten();
    let name = || {
        file.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    release.or_else(name).unwrap_or_else(|| "kernel".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        ci: Ci,
    }

    fn plan(words: &[&str]) -> Result<Vec<Job>, CiError> {
        jobs(&Line::try_parse_from([&["ci"], words].concat()).unwrap().ci)
    }

    #[test]
    fn each_test_is_for_each_kernel_unless_it_says_for_which() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("matrix.toml");
        let text = "
            defaults = { root = \"r\", memory = 64 }
            kernels.a.kernel = \"ka\"
            kernels.b = { kernel = \"kb\", memory = 128 }
            tests.one.run = \"x\"
            tests.two = { run = \"y\", only = [\"b\"] }
        ";
        fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let jobs = plan(&[file, "--vcpus", "3"]).unwrap();
        let seen: Vec<_> = jobs
            .iter()
            .map(|job| (job.name.as_str(), job.memory(), job.vcpus()))
            .collect();
        let expected = [("a/one", 64, 3), ("b/one", 128, 3), ("b/two", 128, 3)];
        assert_eq!(seen, expected);
        assert_eq!(jobs[0].kernel, folder.path().join("ka"));
    }

    #[test]
    fn kernels_of_the_command_line_have_names_of_their_own() {
        let words = [
            "--kernel", "old=/x/a", "--kernel", "/x/b", "--kernel", "/y/b",
        ];
        let jobs = plan(&words).unwrap();
        let seen: Vec<_> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(seen, ["old", "b", "b#2"]);
        assert_eq!(jobs[0].kernel, PathBuf::from("/x/a"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_booted() {
        for (words, part) in [
            (&["--root", "/", "--allow", "warning"][..], "no `run`"),
            (&["--allow", "wanting"], "kinds of reports are oops"),
            (&["--expect", "p x+"], "--expect `p x+`"),
            (
                &["--max-latency", "r f", "soon"],
                "--max-latency `r f soon`",
            ),
            (&["--coverage", "f=3"], "such as 60%"),
            (&["--disk", "x,rate=0"], "--disk `x,rate=0`"),
            (&["--net", "user"], "--net `user`"),
        ] {
            let words = [&["--kernel", "k"], words].concat();
            let text = plan(&words).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
    }
}
