//! Measures the engine on Debian's kernels; `make bench` runs it after criterion.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::image::Image;
use bench::report::{self, Entry};
use bench::shares::{self, Moment};
use bench::{
    clock, exits, fleet, hits, jump, jump_shares, pause, rings, start, stops, stream, watch,
};
use clap::{Parser, ValueEnum};

/// What probes cost, measured without a guest that runs.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Cli {
    /// File for the figures, one line of JSON each.
    #[arg(long)]
    out: PathBuf,
    /// Criterion's folder, for its means.
    #[arg(long)]
    criterion: Option<PathBuf>,
    /// For the shares of all instructions, take one function of so many.
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,
    /// The server's program, whose starts are measured.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// What is measured, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Hits of jump probes, and their records.
    Jumps,
    /// Which share of the kernels' code costs what.
    Shares,
    /// Hits of breakpoint probes, and batches.
    Hits,
    /// The service: events on their way to clients, looks at a server, probes on many servers.
    Service,
    /// From a process's start to its guest's first instruction.
    Start,
}

fn main() -> ExitCode {
    let result = match exits::thread_to_trace() {
        Some(thread) => exits::trace(thread).map_err(Into::into),
        None => measure(&Cli::parse()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("bench: {}", chain(&*error)));
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let mut out = File::create(&cli.out)?;
    let mut add = |entries: Vec<Entry>| report::write(&entries, &mut out);
    let timed = |entries: Vec<Entry>| {
        let machine = clock::processor();
        let entries = entries.into_iter();
        entries.map(|entry| entry.on(&machine)).collect()
    };
    let is_wanted = |part| cli.only.is_none_or(|only| only == part);
    if is_wanted(Part::Jumps) {
        say("records from ring to host");
        add(timed(rings::measure()?))?;
        say("hits of jump probes");
        add(timed(jump::measure()?))?;
    }
    let has_kvm = Path::new("/dev/kvm").exists();
    if is_wanted(Part::Service) {
        if has_kvm {
            say("events from the server to a client");
            add(timed(stream::measure()?))?;
            say("looks at a server");
            add(timed(watch::measure()?))?;
            if let Some(server) = &cli.server {
                say("probes on many servers");
                add(timed(fleet::measure(server)?))?;
            }
        } else {
            say("there is no /dev/kvm: the service is left out");
        }
    }
    let kernels = lab::ensure_kernels()?;
    if let (true, true, Some(server)) = (is_wanted(Part::Start), has_kvm, &cli.server) {
        say("starts of guests");
        let kernels = [&kernels.v6_1, &kernels.v6_12];
        let kernels = kernels.map(|kernel| (&*kernel.release, &*kernel.vmlinuz));
        add(timed(start::measure(server, &kernels)?))?;
    }
    if is_wanted(Part::Shares) {
        for kernel in [&kernels.v6_1, &kernels.v6_12] {
            let (release, image) = (&kernel.release, Image::read(&kernel.vmlinuz)?);
            for moment in Moment::ALL {
                say(&format!("function entries of {release}, {moment:?}"));
                add(shares::of_entries(&image, release, moment)?)?;
            }
            say(&format!("all instructions of {release}"));
            let instructions =
                shares::of_instructions(&image, release, Moment::Started, cli.every)?;
            add(instructions)?;
            say(&format!("jumps in {release}"));
            add(jump_shares::measure(&image, release, cli.every)?)?;
        }
    }
    if is_wanted(Part::Hits) {
        let (release, image) = (&kernels.v6_1.release, Image::read(&kernels.v6_1.vmlinuz)?);
        if has_kvm {
            say("hits from exit to entry");
            add(timed(exits::measure()?))?;
            say("stops for batches");
            add(timed(stops::measure()?))?;
        } else {
            say("there is no /dev/kvm: hits from exit to entry and stops are left out");
        }
        say("hits in the engine");
        let means = cli.criterion.as_deref();
        add(timed(hits::measure(&image, release, means)?))?;
        say("batches in the engine");
        add(timed(pause::measure(&image, release)?))?;
    }
    Ok(())
}

/// The error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Shows a line at once.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // If standard output is closed, the measurement goes on.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}
