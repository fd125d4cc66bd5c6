//! `vmprobe trace`: events on standard output.

use std::io::{self, BufWriter, Write};
use std::time::Duration;

use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{Guest, Header, JsonLines, Writer};

use crate::cli::Trace;
use crate::failure::Failure;
use crate::hosts;
use crate::tracing::{
    Definition, FleetLines, FleetTrace, TraceLines, Wanted, follow, follow_fleet,
};

pub async fn trace(mut trace: Trace) -> Result<(), Failure> {
    let mut wanted = Wanted::read(&trace.traced)?;
    wanted.names.append(&mut trace.names);
    let actions = trace.actions.actions();
    if !actions.is_empty() && wanted.definitions.is_empty() {
        return Err(Failure::NothingToActAt);
    }
    for Definition { spec, .. } in &mut wanted.definitions {
        spec.actions.clone_from(&actions);
    }
    if let Some(hosts) = &trace.hosts {
        let fleet = FleetTrace {
            hosts: hosts::read(hosts)?,
            wanted,
            vms: trace.target.vm.clone().unwrap_or_else(|| "*".to_owned()),
            window: Duration::from_millis(trace.window.into()),
            until: trace.traced.until,
        };
        let mut lines = FleetLines {
            out: BufWriter::new(io::stdout()),
            make: |out, guest: &Guest| Lines::new(out, guest, &trace),
            json: trace.format.is_json(),
        };
        return follow_fleet(fleet, &mut lines).await;
    }
    let make = |guest: &Guest| {
        let out = BufWriter::new(io::stdout());
        Lines::new(out, guest, &trace).map_err(Failure::Output)
    };
    let until = &trace.traced.until;
    let (_, totals) = follow(&trace.target, &wanted, until, false, make, Failure::Output).await?;
    totals.tell();
    Ok(())
}

/// The form of the lines.
enum Lines<W> {
    Text(TraceLines<W>),
    Json(JsonLines<W>),
}

impl<W: Write> Lines<W> {
    fn new(out: W, guest: &Guest, trace: &Trace) -> io::Result<Self> {
        if trace.format.is_json() {
            return Ok(Self::Json(JsonLines::new(out, guest)));
        }
        let header = match trace.header {
            true => Header::Columns,
            false => Header::None,
        };
        TraceLines::new(out, guest, header).map(Self::Text)
    }

    fn writer(&mut self) -> &mut dyn Writer {
        match self {
            Self::Text(lines) => lines,
            Self::Json(lines) => lines,
        }
    }
}

impl<W: Write> Writer for Lines<W> {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.writer().begin(probes)
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.writer().event(event)
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        self.writer().lost(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.writer().finish()
    }
}
