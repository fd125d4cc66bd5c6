//! Events of many servers as lines, each with its time, its host and its VM.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use vmprobe_client::fleet::FleetVm;
use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{Guest, Writer};

use super::fleet::{FleetEvents, of};
use crate::failure::Failure;
use crate::output::note;

/// Writes events to `out`, by a writer that `make` makes for each VM.
pub struct FleetLines<O, M> {
    pub out: O,
    pub make: M,
    pub json: bool,
}

/// What a VM's writer writes to.
#[derive(Clone, Debug, Default)]
pub struct LineBuffer(Arc<Mutex<Vec<u8>>>);

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
pub struct VmLines<W> {
    lines: LineBuffer,
    writer: W,
}

impl<O: Write, M: Fn(LineBuffer, &Guest) -> io::Result<W>, W: Writer> FleetEvents
    for FleetLines<O, M>
{
    type Vm = VmLines<W>;

    fn joins(&mut self, _vm: &FleetVm, guest: &Guest) -> Result<VmLines<W>, Failure> {
        let lines = LineBuffer::default();
        let writer = (self.make)(lines.clone(), guest).map_err(Failure::Output)?;
        Ok(VmLines { lines, writer })
    }

    fn learn(&mut self, known: &mut VmLines<W>, probes: &[Probe]) -> Result<(), Failure> {
        known.writer.begin(probes).map_err(Failure::Output)
    }

    async fn event(
        &mut self,
        vm: &FleetVm,
        known: &mut VmLines<W>,
        unix_ns: u64,
        event: &Event,
    ) -> Result<(), Failure> {
        self.write(vm, known, unix_ns, event)
            .map_err(Failure::Output)
    }

    fn lost(&mut self, vm: &FleetVm, count: u64) -> Result<(), Failure> {
        if !self.json {
            note(format!("{}: {count} events lost", of(vm)));
            return Ok(());
        }
        let (host, name) = (json(&vm.host), json(&vm.name));
        writeln!(
            self.out,
            "{{\"host\":{host},\"vm\":{name},\"lost\":{count}}}"
        )
        .map_err(Failure::Output)
    }

    fn pause(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::Output)
    }
}

impl<O: Write, M> FleetLines<O, M> {
    fn write<W: Writer>(
        &mut self,
        vm: &FleetVm,
        known: &mut VmLines<W>,
        unix_ns: u64,
        event: &Event,
    ) -> io::Result<()> {
        known.writer.event(event)?;
        known.writer.flush()?;
        let text = known.lines.take();
        let time = UNIX_EPOCH + Duration::from_nanos(unix_ns);
        let time = humantime::format_rfc3339_nanos(time);
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            match (self.json, line) {
                (true, [b'{', rest @ ..]) => {
                    let (host, name) = (json(&vm.host), json(&vm.name));
                    write!(
                        self.out,
                        "{{\"time\":\"{time}\",\"host\":{host},\"vm\":{name},"
                    )?;
                    self.out.write_all(rest)?;
                }
                _ => {
                    write!(self.out, "{time} {}", of(vm))?;
                    self.out.write_all(line)?;
                }
            }
        }
        Ok(())
    }
}

fn json(text: &str) -> serde_json::Value {
    text.into()
}
