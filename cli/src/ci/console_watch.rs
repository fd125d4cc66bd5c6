//! What a guest's console tells.

use vmprobe_client::{Client, ConsoleOutput};
use vmprobe_kernel_log::ktap::{self, Results};
use vmprobe_kernel_log::{Frame, Kind, Lines, Place, Report, Reports};

use super::artifacts::Artifact;
use super::progress::JobProgress;
use super::standing::place_of;
use crate::failure::Failure;
use crate::tail::Tail;

/// Lines of the console that a report shows.
const TAIL: usize = 100;
/// Reports of the kernel that are kept.
const REPORTS: usize = 100;

/// A report of the kernel, with its stack in symbols.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelReport {
    pub report: Report,
    /// The stack, innermost frame first.
    pub stack: Vec<String>,
}

impl KernelReport {
    pub fn kind(&self) -> Kind {
        self.report.kind
    }

    /// Returns true if it makes a job fail.
    pub fn is_failure(&self, allowed: &[Kind]) -> bool {
        self.kind().is_failure() && !allowed.contains(&self.kind())
    }
}

/// What a console has told.
pub struct Told {
    pub reports: Vec<Report>,
    pub tests: Results,
    pub tail: Vec<String>,
}

/// Reads a console to its end.
///
/// # Errors
/// The server has gone.
pub async fn watch(
    mut output: ConsoleOutput,
    progress: JobProgress,
    mut file: Artifact,
) -> Result<Told, Failure> {
    let mut lines = Lines::new();
    let mut reports = Reports::new();
    let mut parser = ktap::Parser::new();
    let (mut found, mut tail) = (Vec::new(), Tail::new(TAIL));
    let mut take = |line: String| {
        if let Some(report) = reports.line(&line)
            && found.len() < REPORTS
        {
            found.push(report);
        }
        parser.line(&line);
        progress.console(&line);
        tail.push(line);
    };
    while let Some(chunk) = output.next().await? {
        file.write_all(&chunk.output)?;
        lines.push(&chunk.output).into_iter().for_each(&mut take);
    }
    lines.finish().into_iter().for_each(take);
    found.extend(std::iter::from_fn(|| reports.finish()));
    Ok(Told {
        reports: found,
        tests: parser.finish(),
        tail: tail.into_lines(),
    })
}

/// Adds symbols to a report, for the addresses that the guest's kernel has no names for.
pub async fn symbolised(client: &Client, vm: &str, report: Report) -> KernelReport {
    let mut stack = Vec::new();
    for Frame { place, reliable } in &report.stack {
        let text = match place {
            Place::Symbol {
                name,
                offset,
                size,
                module,
            } => vmprobe_trace_formats::Place {
                name: name.clone(),
                offset: *offset,
                size: *size,
                module: module.clone().unwrap_or_default(),
            }
            .to_string(),
            Place::Address(address) => place_of(client, vm, *address).await,
        };
        stack.push(match reliable {
            true => text,
            false => format!("? {text}"),
        });
    }
    KernelReport { report, stack }
}
