//! Events of many servers as lines, each with its time, its host and its VM.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use vmprobe_client::fleet::FleetVm;
use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{Guest, Header, Writer};

use super::fleet::{FleetEvents, of};
use super::lines::TraceLines;
use crate::failure::Failure;
use crate::output::note;

/// Writes events to `out` as a trace has them, with a `header` for each VM.
pub struct FleetLines<O> {
    pub out: O,
    pub header: Header,
}

/// What a VM's writer writes to.
#[derive(Clone, Debug, Default)]
struct LineBuffer(Arc<Mutex<Vec<u8>>>);

impl LineBuffer {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for LineBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A VM's writer.
pub struct VmLines {
    lines: LineBuffer,
    writer: TraceLines<LineBuffer>,
}

impl<O: Write> FleetEvents for FleetLines<O> {
    type Vm = VmLines;

    fn joins(&mut self, _vm: &FleetVm, guest: &Guest) -> Result<VmLines, Failure> {
        let lines = LineBuffer::default();
        let writer = TraceLines::new(lines.clone(), guest, self.header);
        let writer = writer.map_err(Failure::Output)?;
        Ok(VmLines { lines, writer })
    }

    fn learn(&mut self, known: &mut VmLines, probes: &[Probe]) -> Result<(), Failure> {
        known.writer.begin(probes).map_err(Failure::Output)
    }

    async fn event(
        &mut self,
        vm: &FleetVm,
        known: &mut VmLines,
        unix_ns: u64,
        event: &Event,
    ) -> Result<(), Failure> {
        self.write(vm, known, unix_ns, event)
            .map_err(Failure::Output)
    }

    fn lost(&mut self, vm: &FleetVm, count: u64) -> Result<(), Failure> {
        note(format!("{}: {count} events lost", of(vm)));
        Ok(())
    }

    fn pause(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::Output)
    }
}

impl<O: Write> FleetLines<O> {
    fn write(
        &mut self,
        vm: &FleetVm,
        known: &mut VmLines,
        unix_ns: u64,
        event: &Event,
    ) -> io::Result<()> {
        known.writer.event(event)?;
        known.writer.flush()?;
        let time = UNIX_EPOCH + Duration::from_nanos(unix_ns);
        let time = humantime::format_rfc3339_nanos(time);
        for line in known.lines.take().split_inclusive(|byte| *byte == b'\n') {
            write!(self.out, "{time} {}", of(vm))?;
            self.out.write_all(line)?;
        }
        Ok(())
    }
}
