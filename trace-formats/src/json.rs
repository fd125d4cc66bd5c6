//! Events as JSON lines.

use std::io::{self, Write};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use vmprobe_proto::v1::event::Detail;
use vmprobe_proto::v1::{Capture, Context, Event, Probe, Register, Registers, Value};

use crate::clock::{Clock, Time};
use crate::kinds::{kind_name, named_registers, vector_name};
use crate::names::Names;
use crate::text::printable;
use crate::values::{self, Meaning, meaning};
use crate::writer::{Guest, Writer};

/// Writes one JSON value a line, `docs/trace-event.schema.json` tells of which form: an event, or
/// `{"lost":5}` where events were lost.
///
/// Addresses and registers are strings such as `"0xffffffff812f0c10"`, so that no reader loses their low
/// bits. What isn't known is null. An argument whose pointer led nowhere is null. Text of the guest that
/// isn't UTF-8 has `\xNN` for its odd bytes, and ends at a NUL.
pub struct JsonLines<W> {
    out: W,
    names: Names,
    clock: Clock,
}

impl<W: Write> JsonLines<W> {
    /// A writer to `out`. Each line is written at once.
    pub fn new(out: W, guest: &Guest) -> Self {
        Self {
            out,
            names: Names::new(guest),
            clock: Clock::new(guest.tsc_hz),
        }
    }

    fn write(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }
}

impl<W: Write> Writer for JsonLines<W> {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.names.learn(probes);
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let time = self.clock.time(event);
        let names = &self.names;
        let probe = names.probe(event);
        let chosen = probe.and_then(|probe| chosen_registers(probe));
        let chosen = chosen.as_deref();
        let registers = event.registers.unwrap_or_default();
        let line = Line {
            probe: probe.map_or("", |probe| &probe.name),
            probe_id: event.probe_id,
            kind: kind_name(event),
            vcpu: event.vcpu,
            tsc: event.tsc,
            time_ns: match time {
                Time::Nanoseconds(time) => Some(time),
                Time::Ticks(_) => None,
            },
            task: hex(event.task),
            place: Address::of(names, names.event_address(event)),
            context: event.context.as_ref().map(Task),
            arguments: Arguments { names, event },
            registers: Named {
                registers: &registers,
                chosen,
            },
            fault: match &event.detail {
                Some(Detail::Fault(fault)) => Some(FaultDetail {
                    vector: fault.vector,
                    name: vector_name(fault.vector),
                    error_code: fault.error_code,
                    address: fault.address.map(hex),
                }),
                _ => None,
            },
            returned: match &event.detail {
                Some(Detail::Return(returned)) => {
                    let known =
                        !returned.tail_call && chosen.is_none_or(|chosen| has(chosen, "rax"));
                    let entry = returned.entry.as_ref();
                    Some(ReturnDetail {
                        value: known.then(|| hex(registers.rax)),
                        tail_call: returned.tail_call,
                        caller: hex(returned.caller),
                        caller_symbol: symbol(names, returned.caller),
                        entry_tsc: returned.entry_tsc,
                        duration_ns: self.clock.duration(returned.entry_tsc, event.tsc),
                        entry_registers: entry.map(|registers| Named { registers, chosen }),
                    })
                }
                _ => None,
            },
            before_symbol: (kind_name(event) == "access").then(|| symbol(names, registers.rip)),
            stack: event
                .stack
                .iter()
                .map(|address| Address::of(names, *address))
                .collect(),
            stack_incomplete: event.stack_incomplete,
        };
        serde_json::to_writer(&mut self.out, &line)?;
        self.out.write_all(b"\n")
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        self.write(&Lost { lost: count })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[derive(Serialize)]
struct Lost {
    lost: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    probe: &'a str,
    probe_id: u64,
    kind: &'static str,
    vcpu: u32,
    tsc: u64,
    time_ns: Option<u64>,
    task: String,
    place: Address,
    context: Option<Task<'a>>,
    arguments: Arguments<'a>,
    registers: Named<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<FaultDetail>,
    #[serde(rename = "return", skip_serializing_if = "Option::is_none")]
    returned: Option<ReturnDetail<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before_symbol: Option<Option<String>>,
    stack: Vec<Address>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stack_incomplete: bool,
}

#[derive(Serialize)]
struct FaultDetail {
    vector: u32,
    name: &'static str,
    error_code: Option<u32>,
    address: Option<String>,
}

#[derive(Serialize)]
struct ReturnDetail<'a> {
    value: Option<String>,
    tail_call: bool,
    caller: String,
    caller_symbol: Option<String>,
    entry_tsc: u64,
    duration_ns: Option<u64>,
    entry_registers: Option<Named<'a>>,
}

#[derive(Serialize)]
struct Address {
    address: String,
    symbol: Option<String>,
}

impl Address {
    fn of(names: &Names, address: u64) -> Self {
        Self {
            address: hex(address),
            symbol: symbol(names, address),
        }
    }
}

/// Such as `vfs_read+0x5`: without the size, as in the rest of vmprobe's JSON.
fn symbol(names: &Names, address: u64) -> Option<String> {
    let symbol = names.symbol(address)?;
    let name = printable(symbol.name.as_bytes());
    Some(format!("{name}+{:#x}", symbol.offset))
}

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

struct Task<'a>(&'a Context);

impl Serialize for Task<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let context = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("pid", &context.pid)?;
        map.serialize_entry("tgid", &context.tgid)?;
        map.serialize_entry("comm", &printable(&context.comm))?;
        map.serialize_entry("interrupts_off", &context.interrupts_off)?;
        map.serialize_entry("need_resched", &context.need_resched)?;
        map.serialize_entry("in_nmi", &context.in_nmi)?;
        map.serialize_entry("in_interrupt", &context.in_interrupt)?;
        map.serialize_entry("in_soft_interrupt", &context.in_soft_interrupt)?;
        map.serialize_entry("preempt_disabled", &context.preempt_disabled)?;
        map.serialize_entry("migrate_disabled", &context.migrate_disabled)?;
        map.serialize_entry("soft_interrupts_off", &context.soft_interrupts_off)?;
        map.serialize_entry("preempt_need_resched", &context.preempt_need_resched)?;
        map.serialize_entry("need_resched_lazy", &context.need_resched_lazy)?;
        map.end()
    }
}

struct Named<'a> {
    registers: &'a Registers,
    chosen: Option<&'a [String]>,
}

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = named_registers(self.registers).into_iter();
        let shown = all.filter(|(name, _)| {
            *name == "rip" || self.chosen.is_none_or(|chosen| has(chosen, name))
        });
        serializer.collect_map(shown.map(|(name, value)| (name, hex(value))))
    }
}

fn has(chosen: &[String], name: &str) -> bool {
    chosen.iter().any(|chosen| chosen == name)
}

/// The names of the registers that a probe's events have, if those aren't all.
fn chosen_registers(probe: &Probe) -> Option<Vec<String>> {
    let options = probe.options.as_ref()?;
    let name = |register: Register| {
        let name = register.as_str_name();
        name.strip_prefix("REGISTER_")
            .unwrap_or(name)
            .to_ascii_lowercase()
    };
    (options.capture() == Capture::Registers).then(|| options.registers().map(name).collect())
}

struct Arguments<'a> {
    names: &'a Names,
    event: &'a Event,
}

impl Serialize for Arguments<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = self.event.values.iter().enumerate();
        serializer.collect_map(values.map(|(at, value)| {
            let argument = self.names.argument(self.event, at);
            (
                values::name(argument, at),
                json(argument, value, values::DEPTH),
            )
        }))
    }
}

/// Numbers that are written in hexadecimal are strings, as addresses are.
fn json(
    argument: Option<&vmprobe_proto::v1::Argument>,
    value: &Value,
    depth: usize,
) -> serde_json::Value {
    match meaning(argument, value) {
        Meaning::Unsigned(number) => number.into(),
        Meaning::Signed(number) => number.into(),
        Meaning::Hex(number) => hex(number).into(),
        Meaning::Char(byte) => {
            let mut text = String::new();
            values::push_char(&mut text, byte);
            text.into()
        }
        Meaning::String(bytes) | Meaning::Text(bytes) => printable(bytes).into(),
        Meaning::List(_) if depth == 0 => serde_json::Value::Null,
        Meaning::List(values) => values
            .iter()
            .map(|value| json(argument, value, depth - 1))
            .collect::<Vec<_>>()
            .into(),
        Meaning::Fault | Meaning::Missing => serde_json::Value::Null,
    }
}

#[cfg(test)]
mod tests;
