//! Running tests in the labs: which of them in which machine.

use std::fmt;
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lab::{BochsCpu, Emulator, Lab, LabRun};

use crate::files::Files;
use crate::jobs::Job;
use crate::lines::Lines;
use crate::machine::Programs;
use crate::record::{self, PLACES, Record};
use crate::say;
use crate::test::{self, TestError};

/// Longest time of one machine's tests. It only ends hanging ones: no test waits for time.
const LIMIT: Duration = Duration::from_secs(80 * 60);
/// The same where all tests run, however long they take.
const LIMIT_ALL: Duration = Duration::from_secs(4 * 60 * 60);
/// Memory of the lab machine: the largest guest, and the files, which it keeps in memory.
const MEMORY_MIB: u32 = 3072;
/// Memory of this machine that a lab machine takes, including the emulator's own.
pub const TAKES_MIB: u32 = MEMORY_MIB + 1024;
/// CPUs of the machine for tests of concurrency.
const INTERLEAVED_CPUS: u8 = 2;
/// Instructions that each of these CPUs runs in turn when all tests are run once more with another value: other
/// interleavings come about.
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
    /// Only what there isn't time for every day: with a run without this before it, all tests have run. Leaves the
    /// conformance report as it is.
    #[arg(long, conflicts_with_all = ["all", "filter"])]
    rest: bool,
    /// Only these of the machines that divide a lab's tests between them, such as 6-10: for a run that was cut
    /// off there. Leaves the conformance report as it is.
    #[arg(long, value_name = "FIRST-LAST", value_parser = shards, conflicts_with = "filter")]
    shards: Option<RangeInclusive<u8>>,
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

/// Parses a range of shards' numbers: `6-10`, or `6` alone.
fn shards(text: &str) -> Result<RangeInclusive<u8>, ParseIntError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok(first.parse()?..=last.parse()?)
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
    /// The others.
    Rest,
    /// Those about what happens at the same time.
    Interleaved,
    /// Those of them that there is time for every day.
    EverydayInterleaved,
}

/// One run of a lab machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LabMachine {
    name: Name,
    part: Part,
    shard: Shard,
    cpus: u8,
    /// Instructions that each CPU runs in turn, in the Intel lab.
    quantum: u8,
    /// True if it first runs the monitor's own tests.
    monitor: bool,
}

/// One of the machines that divide a part of the tests between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shard {
    /// From 1 on.
    number: u8,
    of: u8,
}

/// What the machines run.
#[derive(Debug, Clone, Copy)]
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
            Self::Rest => "rest",
            Self::Interleaved => "interleaved",
            Self::EverydayInterleaved => "everyday-interleaved",
        }
    }

    /// Returns how many machines divide it between them in a lab. They are few, as each boots first, but enough to fill
    /// the CPUs of this machine evenly.
    fn shards(self, name: Name) -> u8 {
        match (self, name) {
            (Self::All, Name::Amd) => 7,
            (Self::All, Name::Intel) => 10,
            (Self::Everyday, Name::Amd) => 4,
            (Self::Rest, Name::Amd) => 3,
            (Self::Rest, Name::Intel) => 7,
            (Self::Everyday, Name::Intel) | (Self::Interleaved | Self::EverydayInterleaved, _) => 1,
        }
    }
}

impl Shard {
    const WHOLE: Self = Self { number: 1, of: 1 };

    fn all(of: u8) -> impl Iterator<Item = Self> {
        (1..=of).map(move |number| Self { number, of })
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl LabOptions {
    /// Returns true if some of the tests of every day are left out.
    pub fn is_partial(&self) -> bool {
        self.rest || self.shards.is_some()
    }

    /// Returns true if all of the tests of every day are left out.
    pub fn leaves_everyday_out(&self) -> bool {
        self.rest
    }

    fn names(&self, filtered: bool) -> Vec<Name> {
        match self.only {
            Some(name) => vec![name],
            None if filtered => vec![Name::Amd],
            None => Name::ALL.into(),
        }
    }

    /// Returns the machines of a lab, those that take longest first.
    fn machines(&self, name: Name, filtered: bool) -> Vec<LabMachine> {
        let machine = |part, cpus, shard| LabMachine {
            name,
            part,
            shard,
            cpus: self.lab_cpus.unwrap_or(cpus),
            quantum: self.quantum,
            monitor: false,
        };
        if filtered {
            return vec![machine(Part::All, Lab::CPUS, Shard::WHOLE)];
        }
        let part = match (self.all, self.rest) {
            (true, _) => Part::All,
            (false, true) => Part::Rest,
            (false, false) => Part::Everyday,
        };
        let only = self.shards.as_ref();
        let shards = Shard::all(part.shards(name));
        let mut machines: Vec<_> = shards
            .filter(|shard| only.is_none_or(|only| only.contains(&shard.number)))
            .map(|shard| machine(part, Lab::CPUS, shard))
            .collect();
        if name == Name::Intel && only.is_none() {
            let fine = (Part::Interleaved, FINE_QUANTUM);
            let interleaved = match part {
                Part::Everyday => vec![(Part::EverydayInterleaved, self.quantum)],
                Part::All => vec![(Part::Interleaved, self.quantum), fine],
                _ => vec![fine],
            };
            machines.extend(interleaved.into_iter().map(|(part, quantum)| LabMachine {
                quantum,
                ..machine(part, INTERLEAVED_CPUS, Shard::WHOLE)
            }));
        }
        if let (Some(first), false) = (machines.first_mut(), self.rest) {
            first.monitor = true;
        }
        machines
    }
}

/// Returns the jobs of the end-to-end tests in the labs and, without a filter, of the monitor's own tests there: one
/// job for each machine, in the order in which they should begin.
///
/// # Errors
/// If it isn't known what a machine will run. If a machine dies, its run says so.
pub fn jobs<'a>(work: Work<'a>, options: &'a LabOptions) -> Result<Vec<Job<'a>>, TestError> {
    let filtered = work.filter.is_some();
    let mut machines = Vec::new();
    for name in options.names(filtered) {
        say(&format!(
            "# {}: {}",
            name.place(),
            name.emulator(options, options.quantum).description()
        ));
        machines.extend(options.machines(name, filtered));
    }
    machines.sort_by_key(LabMachine::place_in_line);
    let mut jobs: Vec<Job<'a>> = Vec::new();
    for machine in machines {
        let mut claims = test::e2e_claims(work.programs, &machine.arguments(work.filter))?;
        if machine.monitor {
            claims.push(test::monitor_claim());
        }
        // A filter may leave nothing to do.
        if !claims.is_empty() {
            jobs.push(Box::new(move || {
                say(&format!("# {}", machine.description()));
                test::timed(&machine.label(), || {
                    test::run_at(machine.name.place(), claims, || {
                        machine.tests(work, options)
                    })
                })
            }));
        }
    }
    Ok(jobs)
}

impl LabMachine {
    /// Returns its place in the order of beginning, smallest first. Those that take longest begin first, so that the
    /// CPUs of this machine finish at about the same time. Those are all tests on several CPUs, then the slower of the
    /// emulators. The few tests on several CPUs that run every day take least. Machines of the same place keep their
    /// order.
    fn place_in_line(&self) -> u8 {
        match (self.part, self.name) {
            (Part::Interleaved, _) => 0,
            (Part::EverydayInterleaved, _) => 3,
            (_, Name::Intel) => 1,
            (_, Name::Amd) => 2,
        }
    }

    fn tests(&self, work: Work<'_>, options: &LabOptions) -> Result<Vec<Record>, TestError> {
        let mut command = vec!["/bin/e2e".to_owned(), "run".to_owned()];
        command.extend(self.arguments(work.filter));
        command.extend(test::seed_arguments(work.seed));
        let mut lab = Lab::new(command);
        if self.monitor {
            lab.before.push(vec![Programs::MONITOR_TESTS.to_owned()]);
        }
        lab.emulator = self.name.emulator(options, self.quantum);
        lab.files = work.files.in_lab("/boot");
        lab.files.extend(work.programs.in_lab());
        if self.name == Name::Amd {
            lab.files.extend(work.files.others().iter().cloned());
        }
        let env = [
            ("TMPDIR", "/tmp"),
            ("VMPROBE_FILES", "/boot"),
            ("VMPROBE_BIN_DIR", "/bin"),
            ("VMPROBE_PLACE", self.name.place()),
        ];
        lab.env = env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        lab.smp = self.cpus;
        lab.memory_mib = MEMORY_MIB;
        lab.time_limit = match options.all || options.rest {
            true => LIMIT_ALL,
            false => LIMIT,
        };
        records(&self.label(), &lab, work.filter.is_some())
    }

    /// Describes what it runs, for people.
    fn description(&self) -> String {
        let turns = match self.name {
            Name::Intel if self.cpus > 1 => {
                format!(", {} instructions each in turn", self.quantum)
            }
            _ => String::new(),
        };
        let monitor = if self.monitor {
            "the monitor's and "
        } else {
            ""
        };
        let (label, part) = (self.label(), self.part.name());
        format!("{label}: {monitor}{part} tests, CPUs: {}{turns}", self.cpus)
    }

    /// The label before its lines.
    fn label(&self) -> String {
        match self.shard {
            Shard::WHOLE => self.name.place().to_owned(),
            shard => format!("{} {shard}", self.name.place()),
        }
    }

    fn arguments(&self, filter: Option<&str>) -> Vec<String> {
        let mut arguments = test::e2e_arguments(self.name.place(), test::LAB_NEEDS, filter);
        arguments.extend(["--part".to_owned(), self.part.name().to_owned()]);
        arguments.extend(["--shard".to_owned(), self.shard.to_string()]);
        arguments
    }
}

/// Runs a machine to its end, with a label before each of its lines.
fn records(label: &str, lab: &Lab, may_be_empty: bool) -> Result<Vec<Record>, TestError> {
    let mut lines = Lines::new(label);
    let run: LabRun = lab.run_to(&mut lines)?;
    lines.end();
    test::account(
        record::read(&String::from_utf8_lossy(&run.results))?,
        run.exit.success(),
        &format!("{:?}", run.exit),
        may_be_empty,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(all: bool, lab_cpus: Option<u8>) -> LabOptions {
        LabOptions {
            only: None,
            all,
            rest: false,
            shards: None,
            lab_cpus,
            quantum: 16,
            model: "m".into(),
        }
    }

    #[test]
    fn machines_that_take_longest_begin_first() {
        let line = |options: &LabOptions| {
            let mut machines: Vec<_> = Name::ALL
                .into_iter()
                .flat_map(|name| options.machines(name, false))
                .collect();
            machines.sort_by_key(LabMachine::place_in_line);
            let labels = machines
                .iter()
                .map(|it| format!("{} {:?}", it.label(), it.part));
            labels.collect::<Vec<_>>()
        };
        assert_eq!(
            line(&options(false, None)),
            [
                "lab-intel Everyday",
                "lab-amd 1/4 Everyday",
                "lab-amd 2/4 Everyday",
                "lab-amd 3/4 Everyday",
                "lab-amd 4/4 Everyday",
                "lab-intel EverydayInterleaved",
            ]
        );
        let all = line(&options(true, None));
        assert_eq!(all[..2], ["lab-intel Interleaved", "lab-intel Interleaved"]);
        assert_eq!(all[2], "lab-intel 1/10 All");
        assert_eq!(all.last().map(String::as_str), Some("lab-amd 7/7 All"));
    }

    #[test]
    fn the_intel_lab_runs_all_tests_only_when_told() {
        let machines = |options: &LabOptions, filtered| -> Vec<_> {
            let machines = options.machines(Name::Intel, filtered).into_iter();
            machines
                .map(|m| (m.part, m.shard.to_string(), m.cpus, m.quantum))
                .collect()
        };
        let machine = |part, shard: &str, cpus, quantum| (part, shard.to_owned(), cpus, quantum);
        let everyday = machines(&options(false, None), false);
        let expected = [
            machine(Part::Everyday, "1/1", 1, 16),
            machine(Part::EverydayInterleaved, "1/1", 2, 16),
        ];
        assert_eq!(everyday, expected);
        let all = machines(&options(true, None), false);
        assert_eq!(all[0], machine(Part::All, "1/10", 1, 16));
        assert_eq!(all[9], machine(Part::All, "10/10", 1, 16));
        let interleaved = [
            machine(Part::Interleaved, "1/1", 2, 16),
            machine(Part::Interleaved, "1/1", 2, FINE_QUANTUM),
        ];
        assert_eq!(all[10..], interleaved);
        // Together with what runs every day, these are all.
        let mut rest = options(false, None);
        rest.rest = true;
        let rest = machines(&rest, false);
        assert_eq!(rest[0], machine(Part::Rest, "1/7", 1, 16));
        assert_eq!(
            rest[7..],
            [machine(Part::Interleaved, "1/1", 2, FINE_QUANTUM)]
        );
        assert_eq!(
            machines(&options(false, Some(4)), true),
            [machine(Part::All, "1/1", 4, 16)]
        );
    }

    #[test]
    fn a_run_that_was_cut_off_goes_on_with_the_machines_that_are_left() {
        let mut options = options(true, None);
        options.shards = Some(shards("9-10").unwrap());
        let machines = options.machines(Name::Intel, false);
        let left: Vec<_> = machines.iter().map(|m| m.shard.to_string()).collect();
        assert_eq!(left, ["9/10", "10/10"]);
        assert_eq!(shards("6"), Ok(6..=6));
        assert!(shards("6-").is_err() && shards("").is_err());
    }

    #[test]
    fn the_first_machine_of_each_lab_runs_the_monitor_s_tests_unless_tests_are_left_out() {
        let with = |options: &LabOptions, name, filtered| -> Vec<bool> {
            let machines = options.machines(name, filtered).into_iter();
            machines.map(|machine| machine.monitor).collect()
        };
        let mut options = options(false, None);
        assert_eq!(
            with(&options, Name::Amd, false),
            [true, false, false, false]
        );
        assert_eq!(with(&options, Name::Intel, false), [true, false]);
        assert_eq!(with(&options, Name::Amd, true), [false]);
        options.rest = true;
        assert_eq!(with(&options, Name::Amd, false), [false; 3]);
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
}
