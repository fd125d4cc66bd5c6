//! What is known of one detour, and what a record of it means for each of its probes.

use std::sync::Arc;

use guest_state::{GuestVirtAddr, Registers};

use crate::detour::{Full, Purpose};
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Probes;
use crate::event::{Detail, Event, Stack};
use crate::fetch::Fetches;
use crate::filter::Subject;
use crate::probe::ProbeKind;
use crate::ring::{Record, Returned, Shape};
use crate::value::{self, Bases, Encoder, Recorded, Value};

/// A detour.
#[derive(Debug)]
pub(crate) struct KnownDetour {
    /// The probed instruction.
    pub(super) at: GuestVirtAddr,
    pub(super) purpose: Arc<Purpose>,
    /// What is in its records of hits.
    pub(super) shape: Option<Shape>,
    /// What is in its records of returns.
    pub(super) records_returns: Option<Shape>,
    pub(super) code: GuestVirtAddr,
    pub(super) full: Option<Full>,
    /// What its counter had come to when it was last read.
    pub(super) counted: u64,
    /// The probes that are enabled while its jump is in the text, or were when it last was.
    pub(super) probes: Probes,
}

impl KnownDetour {
    /// Returns true if any of its probes is still there.
    pub(super) fn counts(&self) -> bool {
        self.probes.iter().any(|probe| !probe.is_removed())
    }

    /// Returns the values of a record that a probe asks for.
    pub(super) fn values_of(&self, probe: &Probe, record: &Record<'_>) -> Recorded {
        let wanted = &probe.options.values;
        match &record.call {
            None => record.values.choose(&self.purpose.values, wanted),
            Some(call) => at_return(wanted, record, call, &self.purpose.at_return),
        }
    }

    /// What records of hits, or of returns, have besides registers.
    pub(super) fn recorded_values(&self, returns: bool) -> &[Value] {
        match returns {
            true => &self.purpose.at_return,
            false => &self.purpose.values,
        }
    }

    /// The probed instruction.
    pub(crate) fn at(&self) -> GuestVirtAddr {
        self.at
    }

    /// The probes that its hits belong to.
    pub(crate) fn probes(&self) -> &[Arc<Probe>] {
        &self.probes
    }

    /// Its code, and where that comes to when a ring is full.
    pub(crate) fn waits_at(&self) -> Option<(GuestVirtAddr, Full)> {
        Some((self.code, self.full?))
    }

    /// What is in its records of hits, or of returns, if it leaves such records.
    pub(super) fn shape(&self, returns: bool) -> Option<&Shape> {
        match returns {
            true => self.records_returns.as_ref(),
            false => self.shape.as_ref(),
        }
    }
}

/// Returns true if a probe is a return probe.
pub(super) fn is_return(probe: &Probe) -> bool {
    matches!(probe.kind, ProbeKind::Return { .. })
}

/// Returns the values of a return: those of memory are `recorded`, the others are taken from
/// registers.
fn at_return(
    wanted: &[Value],
    record: &Record<'_>,
    call: &Returned<'_>,
    recorded: &[Value],
) -> Recorded {
    let registers = Registers {
        rip: call.caller,
        ..record.registers()
    };
    let entry = call.entry();
    let bases = Bases {
        registers: &registers,
        entry: Some(&entry),
        task: Some(record.task),
        cpu: record.vcpu.0,
        interrupt_stack: None,
    };
    let mut encoder = Encoder::default();
    for value in wanted {
        if value.is_in_registers() {
            encoder.push(value::take(value, &bases, &mut |_, _| false).as_deref());
        } else {
            encoder.push(record.values.bytes_of(recorded, value));
        }
    }
    encoder.end()
}

/// Returns true if a return meets the filter of its probe.
pub(super) fn is_met(probe: &Probe, record: &Record<'_>, values: &Recorded) -> bool {
    let Some(filter) = &probe.options.filter else {
        return true;
    };
    filter.holds(&Subject {
        values: &values.iter().collect::<Vec<_>>(),
        context: record.context().as_ref(),
        cpu: record.vcpu.0,
    })
}

/// Makes a probe's event of a record, but without its values.
pub(super) fn event(
    probe: &Probe,
    at: GuestVirtAddr,
    record: &Record<'_>,
    wanted: Fetches,
) -> Event {
    let with_rip = |registers: &Registers, rip| Registers {
        rip,
        ..wanted.take(registers)
    };
    let (rip, detail) = match &record.call {
        None => (at.0, Detail::Pre),
        Some(call) => {
            let detail = Detail::Return {
                caller: GuestVirtAddr(call.caller),
                entry_tsc: call.entry_tsc,
                entry: Box::new(with_rip(&call.entry(), at.0)),
                tail_call: false,
            };
            (call.caller, detail)
        }
    };
    let (registers, context) = (record.registers(), record.context());
    Event {
        probe: probe.id,
        values: Recorded::default(),
        stack: Stack::default(),
        time_ns: 0,
        flags: context.as_ref().map(|_| registers.rflags),
        context: context.filter(|_| probe.options.context).map(Box::new),
        vcpu: record.vcpu,
        tsc: record.tsc,
        registers: with_rip(&registers, rip),
        task: record.task,
        detail,
    }
}
