//! What an event tells, with names in the place of numbers.

use serde::Serialize;
use serde::ser::Serializer;
use vmprobe_proto::v1::event::Detail;
use vmprobe_proto::v1::{Capture, Context, Event, Probe, Register, Registers};

use crate::clock::{Clock, Time};
use crate::kinds::{kind_name, named_registers, vector_name};
use crate::names::Names;
use crate::text::printable;
use crate::values::{self, Meaning, meaning};
use crate::writer::Guest;

/// All that an event tells. `docs/trace-event.schema.json` describes its JSON.
///
/// Addresses and registers are strings there, such as `"0xffffffff812f0c10"`, so that no reader loses their low bits.
/// What isn't known is null. Text of the guest that isn't UTF-8 has `\xNN` for its odd bytes, and ends at a NUL.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// The name of the probe; empty if the recorder doesn't know the probe.
    pub probe: String,
    /// The number of the probe in its VM.
    pub probe_id: u64,
    /// `pre`, `post`, `fault`, `return` or `access`.
    pub kind: &'static str,
    /// The vCPU that hit the probe.
    pub vcpu: u32,
    /// The guest's time stamp counter at the hit.
    pub tsc: u64,
    /// Nanoseconds of the guest's own clock; none if the counter's frequency isn't known.
    pub time_ns: Option<u64>,
    /// The address of the `task_struct`; 0 if it isn't known.
    #[serde(serialize_with = "hex")]
    pub task: u64,
    /// Where the event happened.
    pub place: Address,
    /// The task that was on the vCPU, if the kernel's types tell.
    pub context: Option<Task>,
    /// The probe's arguments by name, in their order.
    #[serde(serialize_with = "map")]
    pub arguments: Vec<(String, Value)>,
    /// The registers by name: those that the probe captures.
    #[serde(serialize_with = "registers")]
    pub registers: Vec<(&'static str, u64)>,
    /// The exception, of a `fault` event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The call that has ended, of a `return` event.
    #[serde(rename = "return", skip_serializing_if = "Option::is_none")]
    pub returned: Option<Return>,
    /// The symbol of the instruction behind the access, of an `access` event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_symbol: Option<Option<String>>,
    /// The return addresses on the stack, the innermost first.
    pub stack: Vec<Address>,
    /// Callers are missing behind the last address of the stack.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stack_incomplete: bool,
}

/// An address of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Address {
    /// The address; 0 if it isn't known.
    #[serde(serialize_with = "hex")]
    pub address: u64,
    /// Symbol and offset, such as `vfs_read+0x5`.
    pub symbol: Option<String>,
}

/// The task that a vCPU executed, and what it could have been interrupted by. The fields are those of the protocol's
/// `Context`.
#[expect(missing_docs, reason = "the protocol describes them")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Task {
    pub pid: u32,
    pub tgid: u32,
    pub comm: String,
    pub interrupts_off: bool,
    pub need_resched: bool,
    pub in_nmi: bool,
    pub in_interrupt: bool,
    pub in_soft_interrupt: bool,
    pub preempt_disabled: u32,
    pub migrate_disabled: u32,
    pub soft_interrupts_off: bool,
    pub preempt_need_resched: bool,
    pub need_resched_lazy: bool,
}

/// The value of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number without a sign.
    Unsigned(u64),
    /// A number with a sign.
    Signed(i64),
    /// A number that is written in hexadecimal; a string in JSON.
    Hex(u64),
    /// A string, a character, a symbol, a structure, an enumerator.
    Text(String),
    /// The elements of an array.
    List(Vec<Self>),
    /// A pointer led nowhere, or the value wasn't sent; null in JSON.
    Missing,
}

/// An exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Its number.
    pub vector: u32,
    /// Its mnemonic, such as `#PF`; empty if it has none.
    pub name: &'static str,
    /// The error code, of exceptions that have one.
    pub error_code: Option<u32>,
    /// CR2 of a page fault.
    #[serde(serialize_with = "hex_if_known")]
    pub address: Option<u64>,
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Return {
    /// What the function has returned (RAX); none after a tail call, and if RAX isn't captured.
    #[serde(serialize_with = "hex_if_known")]
    pub value: Option<u64>,
    /// The function has jumped to another one, which will return in its place.
    pub tail_call: bool,
    /// The address that the function returned to.
    #[serde(serialize_with = "hex")]
    pub caller: u64,
    /// Symbol and offset of that address.
    pub caller_symbol: Option<String>,
    /// The time stamp counter at the function's entry.
    pub entry_tsc: u64,
    /// Nanoseconds from entry to return; none if the counter's frequency isn't known.
    pub duration_ns: Option<u64>,
    /// The registers at the entry: those that the probe captures.
    #[serde(serialize_with = "registers_if_known")]
    pub entry_registers: Option<Vec<(&'static str, u64)>>,
}

/// Makes records of a guest's events.
pub struct Recorder {
    names: Names,
    clock: Clock,
}

impl Recorder {
    /// Makes a recorder of a guest's events, which knows no probe yet.
    #[must_use]
    pub fn new(guest: &Guest) -> Self {
        Self {
            names: Names::new(guest),
            clock: Clock::new(guest.tsc_hz),
        }
    }

    /// Learns probes, before their first events.
    pub fn learn(&mut self, probes: &[Probe]) {
        self.names.learn(probes);
    }

    /// Makes the record of an event. An event without a time gets the right one only if events come in their order.
    pub fn record(&mut self, event: &Event) -> Record {
        let time = self.clock.time(event);
        let names = &self.names;
        let probe = names.probe(event);
        let chosen = probe.and_then(|probe| chosen_registers(probe));
        let chosen = chosen.as_deref();
        let registers = event.registers.unwrap_or_default();
        let kind = kind_name(event);
        let values = event.values.iter().enumerate();
        Record {
            probe: probe.map_or_else(String::new, |probe| probe.name.clone()),
            probe_id: event.probe_id,
            kind,
            vcpu: event.vcpu,
            tsc: event.tsc,
            time_ns: match time {
                Time::Nanoseconds(time) => Some(time),
                Time::Ticks(_) => None,
            },
            task: event.task,
            place: Address::of(names, names.event_address(event)),
            context: event.context.as_ref().map(Task::of),
            arguments: values
                .map(|(at, value)| {
                    let argument = names.argument(event, at);
                    let value = Value::of(argument, value, values::DEPTH);
                    (values::name(argument, at), value)
                })
                .collect(),
            registers: named(&registers, chosen),
            fault: match &event.detail {
                Some(Detail::Fault(fault)) => Some(Fault {
                    vector: fault.vector,
                    name: vector_name(fault.vector),
                    error_code: fault.error_code,
                    address: fault.address,
                }),
                _ => None,
            },
            returned: match &event.detail {
                Some(Detail::Return(returned)) => {
                    let known =
                        !returned.tail_call && chosen.is_none_or(|chosen| has(chosen, "rax"));
                    let entry = returned.entry.as_ref();
                    Some(Return {
                        value: known.then_some(registers.rax),
                        tail_call: returned.tail_call,
                        caller: returned.caller,
                        caller_symbol: symbol(names, returned.caller),
                        entry_tsc: returned.entry_tsc,
                        duration_ns: self.clock.duration(returned.entry_tsc, event.tsc),
                        entry_registers: entry.map(|registers| named(registers, chosen)),
                    })
                }
                _ => None,
            },
            before_symbol: (kind == "access").then(|| symbol(names, registers.rip)),
            stack: event
                .stack
                .iter()
                .map(|address| Address::of(names, *address))
                .collect(),
            stack_incomplete: event.stack_incomplete,
        }
    }
}

impl Address {
    fn of(names: &Names, address: u64) -> Self {
        Self {
            address,
            symbol: symbol(names, address),
        }
    }
}

/// Returns a symbol and an offset such as `vfs_read+0x5`: without the size, as in the rest of vmprobe's JSON.
fn symbol(names: &Names, address: u64) -> Option<String> {
    let symbol = names.symbol(address)?;
    let name = printable(symbol.name.as_bytes());
    Some(format!("{name}+{:#x}", symbol.offset))
}

impl Task {
    fn of(context: &Context) -> Self {
        Self {
            pid: context.pid,
            tgid: context.tgid,
            comm: printable(&context.comm),
            interrupts_off: context.interrupts_off,
            need_resched: context.need_resched,
            in_nmi: context.in_nmi,
            in_interrupt: context.in_interrupt,
            in_soft_interrupt: context.in_soft_interrupt,
            preempt_disabled: context.preempt_disabled,
            migrate_disabled: context.migrate_disabled,
            soft_interrupts_off: context.soft_interrupts_off,
            preempt_need_resched: context.preempt_need_resched,
            need_resched_lazy: context.need_resched_lazy,
        }
    }
}

impl Value {
    fn of(
        argument: Option<&vmprobe_proto::v1::Argument>,
        value: &vmprobe_proto::v1::Value,
        depth: usize,
    ) -> Self {
        match meaning(argument, value) {
            Meaning::Unsigned(number) => Self::Unsigned(number),
            Meaning::Signed(number) => Self::Signed(number),
            Meaning::Hex(number) => Self::Hex(number),
            Meaning::Char(byte) => {
                let mut text = String::new();
                values::push_char(&mut text, byte);
                Self::Text(text)
            }
            Meaning::String(bytes) | Meaning::Text(bytes) => Self::Text(printable(bytes)),
            Meaning::List(_) if depth == 0 => Self::Missing,
            Meaning::List(values) => {
                let values = values.iter();
                Self::List(
                    values
                        .map(|value| Self::of(argument, value, depth - 1))
                        .collect(),
                )
            }
            Meaning::Fault | Meaning::Missing => Self::Missing,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unsigned(number) => serializer.serialize_u64(*number),
            Self::Signed(number) => serializer.serialize_i64(*number),
            Self::Hex(number) => hex(number, serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(values) => serializer.collect_seq(values),
            Self::Missing => serializer.serialize_none(),
        }
    }
}

fn named(registers: &Registers, chosen: Option<&[String]>) -> Vec<(&'static str, u64)> {
    let shown = |name: &str| name == "rip" || chosen.is_none_or(|chosen| has(chosen, name));
    let all = named_registers(registers).into_iter();
    all.filter(|(name, _)| shown(name)).collect()
}

fn has(chosen: &[String], name: &str) -> bool {
    chosen.iter().any(|chosen| chosen == name)
}

/// Returns the names of the registers that a probe's events have; `None` if those are all.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn hex<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:#x}"))
}

fn hex_if_known<S: Serializer>(number: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => hex(number, serializer),
        None => serializer.serialize_none(),
    }
}

fn map<S: Serializer>(entries: &[(String, Value)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(name, value)| (name, value)))
}

fn registers<S: Serializer>(
    entries: &[(&'static str, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let entries = entries.iter();
    serializer.collect_map(entries.map(|(name, value)| (name, Value::Hex(*value))))
}

fn registers_if_known<S: Serializer>(
    entries: &Option<Vec<(&'static str, u64)>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match entries {
        Some(entries) => registers(entries, serializer),
        None => serializer.serialize_none(),
    }
}
