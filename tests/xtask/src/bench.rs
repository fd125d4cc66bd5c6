//! `xtask bench`: measures and writes `target/bench/report.json`. The engine alone is measured on this machine; Linux
//! guests are measured where they run, here or in the lab.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lab::{BuildError, Lab, LabError};
use serde::{Deserialize, Serialize};

use crate::command::{self, CommandError};
use crate::files::{Files, FilesError};
use crate::machine::{DoctorError, Host, Programs};
use crate::microvm::{self, MicrovmError};
use crate::{root, say};

/// Longest time of each part, with the builds that it needs first. They only end hanging parts.
const LIMIT: Duration = Duration::from_secs(30 * 60);
const LAB_MEMORY_MIB: u32 = 3072;
/// Virtual CPUs of the lab machine: one of them for the threads of the host, which would otherwise take the guest's
/// time.
const LAB_CPUS: u8 = 2;

/// Why not all was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A program doesn't build.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A file is missing.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// There is no QEMU to compare with.
    #[error(transparent)]
    Microvm(#[from] MicrovmError),
    /// It isn't known what this machine can do.
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    /// A program did not run to its end.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The lab failed.
    #[error("the guests were not measured to the end in the lab")]
    Lab(#[from] LabError),
    /// Figures aren't understood.
    #[error("can't read the figures of {0}")]
    Figures(&'static str, #[source] serde_json::Error),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
    /// A program says that it failed.
    #[error("{0} failed ({1}); see its messages above")]
    Failed(&'static str, String),
}

/// One figure of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Figure {
    /// Row of docs/requirements.md.
    id: String,
    value: f64,
    unit: String,
    /// `native`, `host` or `lab`.
    #[serde(rename = "where")]
    place: String,
    /// What was measured.
    how: String,
    /// Its limit, whether it is kept, and why not.
    note: String,
}

/// What to measure.
#[derive(Debug, Args)]
pub struct Options {
    /// Only this part. Leaves the report as it is.
    #[arg(long, value_enum)]
    only: Option<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The engine alone.
    Engine,
    /// Linux guests.
    Guests,
    /// Of those, exits of hits.
    Exits,
    /// Stops for batches.
    Batches,
    /// Jumps beside the guest's own probes.
    Jumps,
    /// A workload with files and processes.
    Workload,
    /// Boots beside QEMU's.
    Boot,
}

impl Part {
    /// Returns the arguments of `e2e bench` for it.
    fn of_guests(self) -> Option<[String; 2]> {
        let name = match self {
            Self::Engine | Self::Guests => return None,
            Self::Exits => "exits",
            Self::Batches => "batches",
            Self::Jumps => "jumps",
            Self::Workload => "workload",
            Self::Boot => "boot",
        };
        Some(["--only", name].map(str::to_owned))
    }
}

/// Measures everything, shows it, and writes the report. Returns true if everything could be measured. A figure that
/// misses its limit stays in.
///
/// # Errors
/// If something can't be measured.
pub fn run(options: &Options) -> Result<bool, BenchError> {
    let folder = root().join("target").join("bench");
    fs::create_dir_all(&folder).map_err(|e| BenchError::Io("make", folder.clone(), e))?;
    let report = folder.join("report.json");
    if options.only.is_none() {
        // If this run doesn't get to its end, an older report must not be taken for its own.
        let _there_may_be_none = fs::remove_file(&report);
    }
    let mut figures = Vec::new();
    if options.only.is_none_or(|part| part == Part::Engine) {
        figures.extend(engine(&folder)?);
    }
    if options.only != Some(Part::Engine) {
        let only = options.only.and_then(Part::of_guests);
        figures.extend(guests(&folder, only.into_iter().flatten())?);
    }
    figures.sort_by(|a, b| (&a.id, &a.place).cmp(&(&b.id, &b.place)));
    show(&figures);
    if options.only.is_some() {
        return Ok(!figures.is_empty());
    }
    let json = serde_json::to_string_pretty(&figures);
    let json = json.map_err(|error| BenchError::Figures("this run", error))?;
    fs::write(&report, json + "\n").map_err(|e| BenchError::Io("write", report.clone(), e))?;
    say(&format!(
        "{} figures in {}",
        figures.len(),
        report.display()
    ));
    Ok(!figures.is_empty())
}

/// The engine alone: criterion, then single hits, batches and shares.
fn engine(folder: &Path) -> Result<Vec<Figure>, BenchError> {
    let (criterion, out) = (folder.join("criterion"), folder.join("engine.jsonl"));
    say("# criterion: the engine's mean time for a hit");
    let mut bench = cargo();
    bench
        .args(["bench", "--package", "bench", "--quiet"])
        .env("CRITERION_HOME", &criterion);
    succeed("criterion", &mut bench)?;
    say("# the engine: shares of strategies, single hits, batches");
    let mut build = cargo();
    build.args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "vmprobe-server",
    ]);
    succeed("the server's build", &mut build)?;
    let mut measure = cargo();
    measure
        .args(["run", "--release", "--quiet", "--package", "bench", "--"])
        .arg("--server")
        .arg(root().join("target/release/vmprobed"))
        .arg("--out")
        .arg(&out)
        .arg("--criterion")
        .arg(&criterion);
    succeed("the engine's part", &mut measure)?;
    let lines = fs::read_to_string(&out).map_err(|e| BenchError::Io("read", out.clone(), e))?;
    read("the engine's part", &lines)
}

/// Linux guests, with these arguments for `e2e bench`.
fn guests(folder: &Path, only: impl Iterator<Item = String>) -> Result<Vec<Figure>, BenchError> {
    let programs = Programs::build()?;
    let mut files = Files::for_tests(&programs)?;
    let host = Host::examine(&programs)?;
    say(&format!("# guests: {}", host.verdict));
    let lines = if host.runs_linux {
        files.link(microvm::NAME, &microvm::program()?)?;
        let results = folder.join("guests.jsonl");
        let io = |what| {
            let path = results.clone();
            move |error| BenchError::Io(what, path, error)
        };
        fs::write(&results, "").map_err(io("write"))?;
        let mut e2e = Command::new(&programs.e2e);
        e2e.args(["bench", "--where", "host"])
            .args(only)
            .env("VMPROBE_RESULTS", &results)
            .env("VMPROBE_FILES", &files.folder)
            .env("VMPROBE_BIN_DIR", &programs.folder);
        succeed("the guests' part", &mut e2e)?;
        fs::read_to_string(&results).map_err(io("read"))?
    } else {
        say("# in the lab: upstream kvm-amd in an emulated CPU");
        let command = ["/bin/e2e", "bench", "--where", "lab-amd"];
        let mut lab = Lab::new(command.map(str::to_owned).into_iter().chain(only).collect());
        lab.files = files.in_lab("/boot");
        lab.files.extend(programs.in_lab());
        lab.files.extend(microvm::in_lab("/boot")?);
        lab.env = [
            ("VMPROBE_FILES", "/boot"),
            ("VMPROBE_BIN_DIR", "/bin"),
            ("TMPDIR", "/tmp"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        lab.smp = LAB_CPUS;
        lab.memory_mib = LAB_MEMORY_MIB;
        lab.time_limit = LIMIT;
        let run = lab.run()?;
        if !run.exit.success() {
            let ended = format!("{:?}", run.exit);
            return Err(BenchError::Failed("the guests' part", ended));
        }
        String::from_utf8_lossy(&run.results).into_owned()
    };
    read("the guests' part", &lines)
}

fn read(part: &'static str, lines: &str) -> Result<Vec<Figure>, BenchError> {
    let lines = lines.lines().filter(|line| !line.is_empty());
    let figures = lines.map(serde_json::from_str);
    figures
        .collect::<Result<_, _>>()
        .map_err(|error| BenchError::Figures(part, error))
}

fn show(figures: &[Figure]) {
    for figure in figures {
        let Figure {
            id,
            value,
            unit,
            place,
            how,
            note,
        } = figure;
        say(&format!("{id} {value:>10} {unit:<9} {place:<6} {how}"));
        if !note.is_empty() {
            say(&format!("{:34}{note}", ""));
        }
    }
}

fn succeed(part: &'static str, program: &mut Command) -> Result<(), BenchError> {
    let status = command::run(program, LIMIT, say)?;
    if status.success() {
        Ok(())
    } else {
        Err(BenchError::Failed(part, status.to_string()))
    }
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn figures_are_read_line_by_line_and_a_cut_one_is_an_error() {
        let line = r#"{"id":"BN01","value":99.5,"unit":"%","where":"lab","how":"h","note":""}"#;
        let figures = read("x", &format!("{line}\n\n{line}\n")).unwrap();
        assert_eq!((figures.len(), &*figures[0].place), (2, "lab"));
        assert!(read("x", &line[..20]).is_err());
    }
}
