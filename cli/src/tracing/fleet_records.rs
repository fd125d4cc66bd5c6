//! Events of many servers as records, each with its time, its host and its VM.

use std::io::Write;
use std::sync::Arc;

use serde_json::json;
use vmprobe_client::fleet::FleetVm;
use vmprobe_client::v1::{Event, Probe};
use vmprobe_exports::Record;
use vmprobe_trace_formats::{Guest, Recorder};

use super::fleet::FleetEvents;
use crate::failure::Failure;

/// Makes records of a VM's events.
pub struct VmRecorder {
    host: Arc<str>,
    vm: Arc<str>,
    recorder: Recorder,
}

impl VmRecorder {
    pub fn new(vm: &FleetVm, guest: &Guest) -> Self {
        Self {
            host: Arc::clone(&vm.host),
            vm: vm.name.as_str().into(),
            recorder: Recorder::new(guest),
        }
    }

    /// Takes notice of probes, before their events.
    pub fn learn(&mut self, probes: &[Probe]) {
        self.recorder.learn(probes);
    }

    pub fn record(&mut self, unix_ns: u64, event: &Event) -> Record {
        Record {
            unix_ns,
            host: Arc::clone(&self.host),
            vm: Arc::clone(&self.vm),
            event: self.recorder.record(event),
        }
    }
}

/// Writes each record as a line of JSON.
pub struct FleetJson<O>(pub O);

impl<O: Write> FleetJson<O> {
    fn line(&mut self, value: &impl serde::Serialize) -> Result<(), Failure> {
        let written = serde_json::to_writer(&mut self.0, value).map_err(std::io::Error::from);
        written
            .and_then(|()| self.0.write_all(b"\n"))
            .map_err(Failure::Output)
    }
}

impl<O: Write> FleetEvents for FleetJson<O> {
    type Vm = VmRecorder;

    fn joins(&mut self, vm: &FleetVm, guest: &Guest) -> Result<VmRecorder, Failure> {
        Ok(VmRecorder::new(vm, guest))
    }

    fn learn(&mut self, known: &mut VmRecorder, probes: &[Probe]) -> Result<(), Failure> {
        known.learn(probes);
        Ok(())
    }

    async fn event(
        &mut self,
        _vm: &FleetVm,
        known: &mut VmRecorder,
        unix_ns: u64,
        event: &Event,
    ) -> Result<(), Failure> {
        self.line(&known.record(unix_ns, event))
    }

    fn lost(&mut self, vm: &FleetVm, count: u64) -> Result<(), Failure> {
        self.line(&json!({"host": &*vm.host, "vm": vm.name, "lost": count}))
    }

    fn pause(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(Failure::Output)
    }
}
