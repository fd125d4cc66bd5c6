//! Running tests in the labs: which of them where, side by side, each lab on a core of its own.

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lab::{BochsCpu, Emulator, Lab, LabRun};

use crate::files::Files;
use crate::machine::Programs;
use crate::record::{self, Claim, PLACES, Record, Run};
use crate::say;
use crate::test::{self, TestError};

/// Longest time of one machine's tests. Only a net: no test waits for time.
const LIMIT: Duration = Duration::from_secs(55 * 60);
/// The same where all tests run, however long they take.
const LIMIT_ALL: Duration = Duration::from_secs(4 * 60 * 60);
const MONITOR_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Memory of the lab machine: the largest guest, and the files, which it keeps in memory.
const MEMORY_MIB: u32 = 3072;
/// CPUs of the machine whose tests are about what happens at the same time.
const INTERLEAVED_CPUS: u8 = 2;
/// Instructions that each of them runs in turn when they do it all once more, other than by default: other
/// meetings come about.
const FINE_QUANTUM: u8 = 5;

/// What is said of the labs on the command line.
#[derive(Debug, Clone, Args)]
pub struct LabOptions {
    /// Only in this lab; without a filter in both, with one in the AMD lab, unless it is named here.
    #[arg(long = "lab", value_enum, value_name = "NAME")]
    only: Option<Name>,
    /// All tests in both labs, not only those that their time allows every day.
    #[arg(long)]
    all: bool,
    /// Virtual CPUs of the lab machines.
    #[arg(long, value_name = "N")]
    lab_cpus: Option<u8>,
    /// Instructions that each of several CPUs of the Intel lab runs in turn.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32),
          default_value_t = BochsCpu::default().quantum)]
    quantum: u8,
    /// The Intel lab's CPU, as Bochs names it.
    #[arg(long, value_name = "MODEL", default_value_t = BochsCpu::default().model)]
    model: String,
}

/// A lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Upstream kvm-amd.
    Amd,
    /// Upstream kvm-intel.
    Intel,
}

/// Which tests a machine runs, as `e2e run --part` takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All.
    All,
    /// Those that there is time for every day.
    Everyday,
    /// Those about what happens at the same time.
    Interleaved,
}

/// One run of a lab machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Machine {
    name: Name,
    part: Part,
    cpus: u8,
    /// Of the Intel lab.
    quantum: u8,
}

/// What the machines run.
#[derive(Debug)]
pub struct Work<'a> {
    /// The programs.
    pub programs: &'a Programs,
    /// The guests' files.
    pub files: &'a Files,
    /// Only these tests.
    pub filter: Option<&'a str>,
    /// Where their random numbers begin.
    pub seed: Option<u64>,
}

impl Name {
    const ALL: [Self; 2] = [Self::Amd, Self::Intel];

    /// One of [`PLACES`].
    pub fn place(self) -> &'static str {
        match self {
            Self::Amd => PLACES[1],
            Self::Intel => PLACES[2],
        }
    }

    fn emulator(self, options: &LabOptions, quantum: u8) -> Emulator {
        match self {
            Self::Amd => Emulator::Qemu,
            Self::Intel => Emulator::Bochs(BochsCpu {
                model: options.model.clone(),
                quantum,
                ..BochsCpu::default()
            }),
        }
    }
}

impl Part {
    /// Its name on the command line of `e2e`.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Everyday => "everyday",
            Self::Interleaved => "interleaved",
        }
    }
}

impl LabOptions {
    fn names(&self, filtered: bool) -> Vec<Name> {
        match self.only {
            Some(name) => vec![name],
            None if filtered => vec![Name::Amd],
            None => Name::ALL.into(),
        }
    }

    /// The machines of a lab, one after the other.
    fn machines(&self, name: Name, filtered: bool) -> Vec<Machine> {
        let machine = |part, cpus| Machine {
            name,
            part,
            cpus: self.lab_cpus.unwrap_or(cpus),
            quantum: self.quantum,
        };
        let part = match self.all || filtered {
            true => Part::All,
            false => Part::Everyday,
        };
        if filtered || name == Name::Amd {
            return vec![machine(part, Lab::CPUS)];
        }
        let mut machines = vec![
            machine(part, Lab::CPUS),
            machine(Part::Interleaved, INTERLEAVED_CPUS),
        ];
        if self.all {
            machines.push(Machine {
                quantum: FINE_QUANTUM,
                ..machine(Part::Interleaved, INTERLEAVED_CPUS)
            });
        }
        machines
    }
}

/// Runs the end-to-end tests, and without a filter the monitor's own tests, in all labs at once.
///
/// # Errors
/// If a program is missing. A lab that dies is told of in its run.
pub fn run(work: &Work<'_>, options: &LabOptions) -> Result<Vec<Run>, TestError> {
    let filtered = work.filter.is_some();
    let monitor = match work.filter {
        Some(_) => None,
        None => Some(lab::static_test("vmm", "debug")?),
    };
    let mut labs = Vec::new();
    for name in options.names(filtered) {
        let mut machines = Vec::new();
        for machine in options.machines(name, filtered) {
            let claims = test::e2e_claims(work.programs, &machine.arguments(work.filter))?;
            // A filter may leave nothing to do.
            if !claims.is_empty() {
                machines.push((machine, claims));
            }
        }
        labs.push((name, machines));
    }
    let monitor = monitor.as_deref();
    Ok(thread::scope(|scope| {
        let threads: Vec<_> = labs
            .into_iter()
            .map(|(name, machines)| {
                scope.spawn(move || in_lab(name, machines, monitor, work, options))
            })
            .collect();
        let runs = threads.into_iter().map(|thread| {
            // A panic here is one there.
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        runs.flatten().collect()
    }))
}

/// All that one lab has to do.
fn in_lab(
    name: Name,
    machines: Vec<(Machine, Vec<Claim>)>,
    monitor: Option<&Path>,
    work: &Work<'_>,
    options: &LabOptions,
) -> Vec<Run> {
    let place = name.place();
    say(&format!(
        "# {place}: {}",
        name.emulator(options, options.quantum).description()
    ));
    let mut runs = Vec::new();
    for (machine, claims) in machines {
        let (part, cpus) = (machine.part.name(), machine.cpus);
        let turns = match name {
            Name::Intel if cpus > 1 => format!(", {} instructions each in turn", machine.quantum),
            _ => String::new(),
        };
        say(&format!("# {place}: {part} tests, CPUs: {cpus}{turns}"));
        runs.push(test::run_at(place, claims, || machine.tests(work, options)));
    }
    if let Some(program) = monitor {
        say(&format!("# {place}: the monitor's tests"));
        runs.push(test::run_at(place, vec![test::monitor_claim()], || {
            monitor_tests(name, program, options)
        }));
    }
    runs
}

impl Machine {
    fn tests(&self, work: &Work<'_>, options: &LabOptions) -> Result<Vec<Record>, TestError> {
        let mut command = vec!["/bin/e2e".to_owned(), "run".to_owned()];
        command.extend(self.arguments(work.filter));
        command.extend(test::seed_arguments(work.seed));
        let mut lab = Lab::new(command);
        lab.emulator = self.name.emulator(options, self.quantum);
        lab.files = work.files.in_lab("/boot");
        lab.files.extend(work.programs.in_lab());
        lab.env = environment(&[("VMPROBE_FILES", "/boot"), ("VMPROBE_BIN_DIR", "/bin")]);
        lab.smp = self.cpus;
        lab.memory_mib = MEMORY_MIB;
        lab.time_limit = if options.all { LIMIT_ALL } else { LIMIT };
        records(self.name, &lab, work.filter.is_some())
    }

    fn arguments(&self, filter: Option<&str>) -> Vec<String> {
        let mut arguments = test::e2e_arguments(self.name.place(), test::ALL_NEEDS, filter);
        arguments.extend(["--part".to_owned(), self.part.name().to_owned()]);
        arguments
    }
}

/// The monitor's tests of steps and watchpoints, which are unit tests too: this machine's KVM may
/// have none to test.
fn monitor_tests(
    name: Name,
    program: &Path,
    options: &LabOptions,
) -> Result<Vec<Record>, TestError> {
    let mut lab = Lab::new(vec!["/bin/debug".to_owned()]);
    lab.emulator = name.emulator(options, options.quantum);
    lab.files = vec![(program.to_owned(), "/bin/debug".into())];
    lab.env = environment(&[("VMPROBE_PLACE", name.place())]);
    lab.time_limit = MONITOR_LIMIT;
    records(name, &lab, false)
}

fn environment(more: &[(&str, &str)]) -> Vec<(String, String)> {
    let all = more.iter().chain(&[("TMPDIR", "/tmp")]);
    all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Runs a machine to its end, with the lab's name before each of its lines.
fn records(name: Name, lab: &Lab, may_be_empty: bool) -> Result<Vec<Record>, TestError> {
    let mut lines = Lines::new(name.place());
    let run: LabRun = lab.run_to(&mut lines)?;
    lines.end();
    test::account(
        record::read(&String::from_utf8_lossy(&run.results))?,
        run.exit.success(),
        &format!("{:?}", run.exit),
        may_be_empty,
    )
}

/// Shows whole lines, each behind a name, so that those of several labs stay apart.
struct Lines {
    name: &'static str,
    rest: Vec<u8>,
}

impl Lines {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            rest: Vec::new(),
        }
    }

    /// The lines that are whole.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line[..end]);
            lines.push(format!("{:<9} | {text}", self.name));
        }
        lines
    }

    /// Ends the last line, if it isn't whole.
    fn end(&mut self) {
        if !self.rest.is_empty() {
            // It keeps all that it is given.
            let _ = self.write(b"\n");
        }
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for line in self.take(bytes) {
            say(&line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(all: bool, lab_cpus: Option<u8>) -> LabOptions {
        LabOptions {
            only: None,
            all,
            lab_cpus,
            quantum: 16,
            model: "m".into(),
        }
    }

    #[test]
    fn the_intel_lab_runs_all_tests_only_when_told() {
        let parts = |options: &LabOptions, filtered| -> Vec<_> {
            let machines = options.machines(Name::Intel, filtered).into_iter();
            machines.map(|m| (m.part, m.cpus, m.quantum)).collect()
        };
        let interleaved = (Part::Interleaved, 2, 16);
        let everyday = parts(&options(false, None), false);
        assert_eq!(everyday, [(Part::Everyday, 1, 16), interleaved]);
        assert_eq!(
            parts(&options(true, None), false),
            [
                (Part::All, 1, 16),
                interleaved,
                (Part::Interleaved, 2, FINE_QUANTUM)
            ]
        );
        assert_eq!(parts(&options(false, Some(4)), true), [(Part::All, 4, 16)]);
    }

    #[test]
    fn a_filter_alone_stays_in_one_lab() {
        let mut options = options(false, None);
        assert_eq!(options.names(false), [Name::Amd, Name::Intel]);
        assert_eq!(options.names(true), [Name::Amd]);
        options.only = Some(Name::Intel);
        assert_eq!(options.names(true), [Name::Intel]);
    }

    #[test]
    fn the_places_are_those_of_the_labs() {
        let options = options(false, None);
        for name in Name::ALL {
            assert_eq!(name.place(), name.emulator(&options, 16).place());
        }
    }

    #[test]
    fn lines_come_whole_whatever_the_pieces() {
        let mut lines = Lines::new("lab-amd");
        assert!(lines.take(b"pa").is_empty());
        let both = ["lab-amd   | pass", "lab-amd   | "];
        assert_eq!(lines.take(b"ss\n\nx"), both);
    }
}
