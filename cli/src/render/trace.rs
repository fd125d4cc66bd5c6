//! Events as lines of a trace.

use std::collections::HashMap;

use serde_json::Value;
use vmprobe_client::spec::register_names;
use vmprobe_client::v1::event::Detail;
use vmprobe_client::v1::{Capture, Event, EventKind, Probe, Registers, Return};

use super::event::{fault_text, kind_name, returned_text};
use super::event_json;
use super::text::named_registers;

/// Addresses whose symbols are kept. A guest that makes up more only loses their names.
const SYMBOLS_MAX: usize = 1 << 16;

/// Turns events into lines. Knows the probes' names, the symbols of the addresses it was told, and
/// the time of the first event, from which the times of the others count.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    probes: HashMap<u64, KnownProbe>,
    symbols: HashMap<u64, String>,
    tsc_hz: u64,
    first: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct KnownProbe {
    name: String,
    /// The probed function; empty where it isn't known.
    symbol: String,
    /// The registers that its events have, if those aren't all.
    registers: Option<Vec<&'static str>>,
}

impl Tracer {
    /// A tracer for a guest whose time stamp counter has `tsc_hz` hertz; 0 leaves times out.
    #[must_use]
    pub fn new(tsc_hz: u64) -> Self {
        Self {
            tsc_hz,
            ..Self::default()
        }
    }

    /// Learns the names of probes; those learned before stay, so that late events of a removed probe
    /// keep their name.
    pub fn learn(&mut self, probes: &[Probe]) {
        for probe in probes {
            let known = KnownProbe {
                name: probe.name.clone(),
                symbol: probe.symbol.clone(),
                registers: chosen_registers(probe),
            };
            self.probes.insert(probe.id, known);
        }
    }

    /// Whether the name of the event's probe is known.
    #[must_use]
    pub fn knows(&self, event: &Event) -> bool {
        self.probes.contains_key(&event.probe_id)
    }

    /// Gives the event's probe a name made from its id, unless it has one: it was removed before its
    /// name could be learnt.
    pub fn settle(&mut self, event: &Event) {
        let id = event.probe_id;
        let known = || KnownProbe {
            name: format!("#{id}"),
            ..KnownProbe::default()
        };
        self.probes.entry(id).or_insert_with(known);
    }

    /// The name of the event's probe; empty where it isn't known.
    #[must_use]
    pub fn name(&self, event: &Event) -> &str {
        self.probes
            .get(&event.probe_id)
            .map_or("", |known| &known.name)
    }

    /// The address that the event's line would show as a symbol, if that is not known yet: where a
    /// function returned to, or where data was accessed.
    #[must_use]
    pub fn wants_symbol(&self, event: &Event) -> Option<u64> {
        let address = match (&event.detail, event.kind()) {
            (Some(Detail::Return(returned)), _) => returned.caller,
            (_, EventKind::Access) => event.registers?.rip,
            _ => return None,
        };
        let room = self.symbols.len() < SYMBOLS_MAX;
        (room && !self.symbols.contains_key(&address)).then_some(address)
    }

    /// Learns what an address is called, such as `vfs_read+0x5`.
    pub fn learn_symbol(&mut self, address: u64, symbol: String) {
        if self.symbols.len() < SYMBOLS_MAX {
            self.symbols.insert(address, symbol);
        }
    }

    /// One event: seconds since the first one (where the counter's frequency is known), probe, vCPU,
    /// time stamp, what happened unless that is a plain hit, and registers: those that the probe
    /// chooses, or those of the first three arguments of a C function, of a return those it was called
    /// with.
    pub fn line(&mut self, event: &Event) -> String {
        let first = *self.first.get_or_insert(event.tsc);
        let time = if self.tsc_hz == 0 {
            String::new()
        } else {
            format!("{:>12}  ", seconds(event.tsc, first, self.tsc_hz))
        };
        let name = match self.probes.get(&event.probe_id) {
            Some(known) => known.name.clone(),
            None => format!("#{}", event.probe_id),
        };
        let happened = self.happened(event);
        format!(
            "{time}{name}  vcpu {}  tsc {}  {happened}",
            event.vcpu, event.tsc
        )
    }

    fn happened(&self, event: &Event) -> String {
        let registers = event.registers.unwrap_or_default();
        match (kind_name(event), &event.detail) {
            ("fault", Some(Detail::Fault(fault))) => {
                format!(
                    "fault  {}  {}",
                    fault_text(fault),
                    self.shown(event, &registers)
                )
            }
            ("return", Some(Detail::Return(returned))) => {
                self.return_line(event, returned, registers.rax)
            }
            ("access", _) => format!("access  before {}", self.place(registers.rip)),
            ("post", _) => self.post_line(event, &registers),
            ("pre", _) => self.shown(event, &registers),
            // A server that leaves the details out.
            (kind, _) => format!("{kind}  {}", self.shown(event, &registers)),
        }
    }

    fn post_line(&self, event: &Event, registers: &Registers) -> String {
        let shown = self.shown(event, registers);
        match self.chosen(event) {
            None => format!("post  rax={:#x} {shown}", registers.rax),
            Some(_) => format!("post  {shown}"),
        }
    }

    /// The names of the registers that the event has, if those aren't all.
    fn chosen(&self, event: &Event) -> Option<&[&'static str]> {
        self.probes.get(&event.probe_id)?.registers.as_deref()
    }

    fn shown(&self, event: &Event, registers: &Registers) -> String {
        let Some(chosen) = self.chosen(event) else {
            return arguments(registers);
        };
        let all = named_registers(registers).into_iter();
        let shown = all.filter(|(name, _)| chosen.contains(name));
        let shown: Vec<String> = shown
            .map(|(name, value)| format!("{name}={value:#x}"))
            .collect();
        shown.join(" ")
    }

    /// In ftrace's manner: `r: caller <- function`, value, duration, the registers at the entry.
    fn return_line(&self, event: &Event, returned: &Return, value: u64) -> String {
        let known = self.probes.get(&event.probe_id);
        let function = match known.map_or("", |known| &*known.symbol) {
            "" => "?",
            symbol => symbol,
        };
        let duration = match self.duration_ns(event, returned) {
            Some(ns) => format!("  {}.{:03} us", ns / 1000, ns % 1000),
            None => String::new(),
        };
        let entry = match &returned.entry {
            Some(entry) => format!("  {}", self.shown(event, entry)),
            None => String::new(),
        };
        format!(
            "r: {} <- {function}  ret={}{duration}{entry}",
            self.place(returned.caller),
            match self.chosen(event) {
                _ if returned.tail_call => "? (tail call)".to_owned(),
                Some(chosen) if !has_result(chosen) => "?".to_owned(),
                _ => returned_text(value),
            }
        )
    }

    /// Between the function's entry and its return; none where the counter's frequency isn't known.
    fn duration_ns(&self, event: &Event, returned: &Return) -> Option<u128> {
        let ticks = u128::from(event.tsc.saturating_sub(returned.entry_tsc));
        (self.tsc_hz > 0).then(|| ticks * 1_000_000_000 / u128::from(self.tsc_hz))
    }

    fn place(&self, address: u64) -> String {
        match self.symbols.get(&address) {
            Some(symbol) => symbol.clone(),
            None => format!("{address:#x}"),
        }
    }

    /// One event as JSON, with the symbol of its address and its duration where they are known, and
    /// without the registers that its probe doesn't choose.
    #[must_use]
    pub fn json(&self, event: &Event) -> Value {
        let mut value = event_json(event, self.name(event));
        if let Some(chosen) = self.chosen(event) {
            for registers in ["/registers", "/return/entry_registers"] {
                if let Some(registers) = value.pointer_mut(registers) {
                    keep_registers(registers, chosen);
                }
            }
            if let Some(returned) = value.pointer_mut("/return/value")
                && !has_result(chosen)
            {
                *returned = Value::Null;
            }
        }
        match &event.detail {
            Some(Detail::Return(returned)) => {
                let value = &mut value["return"];
                value["caller_symbol"] = self.symbols.get(&returned.caller).cloned().into();
                let duration = self.duration_ns(event, returned);
                value["duration_ns"] = duration.and_then(|ns| u64::try_from(ns).ok()).into();
            }
            _ if event.kind() == EventKind::Access => {
                let rip = event.registers.unwrap_or_default().rip;
                value["before_symbol"] = self.symbols.get(&rip).cloned().into();
            }
            _ => {}
        }
        value
    }

    /// The line for hits lost at this point.
    #[must_use]
    pub fn lost_line(lost: u64) -> String {
        format!("[{lost} events lost here: this client reads too slowly]")
    }
}

fn arguments(registers: &Registers) -> String {
    let Registers { rdi, rsi, rdx, .. } = registers;
    format!("rdi={rdi:#x} rsi={rsi:#x} rdx={rdx:#x}")
}

/// The names of the registers that a probe's events have, if those aren't all.
fn chosen_registers(probe: &Probe) -> Option<Vec<&'static str>> {
    let options = probe.options.as_ref()?;
    (options.capture() == Capture::Registers).then(|| register_names(options))
}

/// Whether a function's result is among these registers.
fn has_result(chosen: &[&str]) -> bool {
    chosen.contains(&"rax")
}

/// Takes away from registers what an event doesn't have; RIP is always there.
fn keep_registers(registers: &mut Value, chosen: &[&str]) {
    if let Some(registers) = registers.as_object_mut() {
        registers.retain(|name, _| name == "rip" || chosen.contains(&&**name));
    }
}

/// `tsc - first` in seconds with microseconds. Negative where the vCPUs' events came out of order.
fn seconds(tsc: u64, first: u64, hz: u64) -> String {
    let (sign, ticks) = if tsc >= first {
        ("", tsc - first)
    } else {
        ("-", first - tsc)
    };
    let micros = u128::from(ticks) * 1_000_000 / u128::from(hz);
    format!("{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

#[cfg(test)]
mod tests {
    use vmprobe_client::v1::Fault;

    use super::super::samples;
    use super::*;

    #[test]
    fn a_line_has_probe_vcpu_tsc_and_three_argument_registers() {
        let mut tracer = Tracer::new(0);
        tracer.learn(&[samples::probe()]);
        assert_eq!(
            tracer.line(&samples::event(123_456_789)),
            "vfs_read+0x5  vcpu 1  tsc 123456789  rdi=0xffff888001234567 rsi=0x7ffc0000 rdx=0x1"
        );
    }

    fn returned(caller: u64) -> Event {
        let mut event = samples::event(5_000_003_141);
        event.set_kind(EventKind::Return);
        event.registers = Some(Registers {
            rax: (-2i64).cast_unsigned(),
            ..Default::default()
        });
        event.detail = Some(Detail::Return(Return {
            caller,
            entry_tsc: 5_000_000_000,
            entry: Some(Registers {
                rdi: 1,
                rsi: 2,
                rdx: 3,
                ..Default::default()
            }),
            tail_call: false,
        }));
        event
    }

    #[test]
    fn a_return_shows_caller_value_duration_and_arguments() {
        let mut tracer = Tracer::new(1_000_000_000);
        tracer.learn(&[samples::probe()]);
        let event = returned(0x1000);
        assert_eq!(tracer.wants_symbol(&event), Some(0x1000));
        let start = "    0.000000  vfs_read+0x5  vcpu 1  tsc 5000003141  r: ";
        let end = " <- vfs_read  ret=0xfffffffffffffffe (-2)  3.141 us  rdi=0x1 rsi=0x2 rdx=0x3";
        assert_eq!(tracer.line(&event), format!("{start}0x1000{end}"));
        tracer.learn_symbol(0x1000, "ksys_read+0x5f".into());
        assert_eq!(tracer.wants_symbol(&event), None);
        assert_eq!(tracer.line(&event), format!("{start}ksys_read+0x5f{end}"));
        let json = tracer.json(&event);
        assert_eq!(json["return"]["caller_symbol"], "ksys_read+0x5f");
        assert_eq!(json["return"]["duration_ns"], 3141);
        assert_eq!(json["return"]["value"], "0xfffffffffffffffe");
        assert_eq!(json["return"]["entry_registers"]["rdi"], "0x1");
    }

    #[test]
    fn a_tail_call_has_no_value_yet() {
        let mut tracer = Tracer::new(1_000_000_000);
        tracer.learn(&[samples::probe()]);
        let mut event = returned(0x1000);
        if let Some(Detail::Return(returned)) = &mut event.detail {
            returned.tail_call = true;
        }
        let line = tracer.line(&event);
        assert!(line.contains("  ret=? (tail call)  3.141 us"), "{line}");
        let json = tracer.json(&event);
        assert_eq!(json["return"]["tail_call"], true);
        assert!(json["return"]["value"].is_null(), "{json}");
    }

    #[test]
    fn only_the_registers_that_a_probe_chooses_are_shown() {
        let mut tracer = Tracer::new(0);
        let mut probe = samples::probe();
        probe.options = vmprobe_client::spec::parse("f regs=rsi+rdi")
            .unwrap()
            .options;
        tracer.learn(std::slice::from_ref(&probe));
        let mut event = samples::event(1);
        let line = tracer.line(&event);
        let registers = "tsc 1  rsi=0x7ffc0000 rdi=0xffff888001234567";
        assert!(line.ends_with(registers), "{line}");
        event.set_kind(EventKind::Post);
        assert!(!tracer.line(&event).contains("rax"));
        let json = tracer.json(&event);
        let names: Vec<&String> = json["registers"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["rip", "rsi", "rdi"]);
        assert!(json.get("return").is_none());

        let event = returned(0x1000);
        assert!(
            tracer.line(&event).contains("ret=?  "),
            "{}",
            tracer.line(&event)
        );
        let json = tracer.json(&event);
        assert!(json["return"]["value"].is_null());
        assert!(json["return"]["entry_registers"].get("rdx").is_none());

        probe.options = vmprobe_client::spec::parse("f regs=none").unwrap().options;
        tracer.learn(&[probe]);
        assert!(tracer.line(&samples::event(1)).ends_with("tsc 1  "));
    }

    #[test]
    fn other_kinds_are_marked() {
        let mut tracer = Tracer::new(0);
        let mut event = samples::event(1);
        event.set_kind(EventKind::Post);
        assert!(tracer.line(&event).contains("tsc 1  post  rax=0x0 rdi="));
        assert_eq!(tracer.json(&event)["kind"], "post");

        event.set_kind(EventKind::Fault);
        event.detail = Some(Detail::Fault(Fault {
            vector: 14,
            error_code: Some(0),
            address: Some(8),
        }));
        assert!(
            tracer
                .line(&event)
                .contains("fault  #PF error 0x0 at 0x8  rdi=")
        );
        let json = tracer.json(&event);
        assert_eq!(json["fault"]["name"], "#PF");
        assert_eq!(json["fault"]["address"], "0x8");

        event.set_kind(EventKind::Access);
        event.detail = None;
        assert_eq!(tracer.wants_symbol(&event), Some(0xffff_ffff_812f_0c15));
        assert!(
            tracer
                .line(&event)
                .ends_with("access  before 0xffffffff812f0c15")
        );
        tracer.learn_symbol(0xffff_ffff_812f_0c15, "do_timer+0x1a".into());
        assert!(
            tracer
                .line(&event)
                .ends_with("access  before do_timer+0x1a")
        );
        assert_eq!(tracer.json(&event)["before_symbol"], "do_timer+0x1a");
    }

    #[test]
    fn an_odd_event_makes_a_line_all_the_same() {
        let mut tracer = Tracer::new(1);
        for kind in 0..8 {
            let event = Event {
                kind,
                ..Default::default()
            };
            assert!(tracer.line(&event).contains("#0  vcpu 0"));
            assert!(tracer.json(&event).is_object());
        }
        let mut event = returned(u64::MAX);
        event.tsc = 0;
        event.kind = 0;
        assert!(tracer.line(&event).contains("0.000 us"));
    }

    #[test]
    fn symbols_are_kept_for_a_bounded_number_of_addresses() {
        let mut tracer = Tracer::new(0);
        for address in 0..SYMBOLS_MAX as u64 + 10 {
            tracer.learn_symbol(address, String::new());
        }
        assert_eq!(tracer.symbols.len(), SYMBOLS_MAX);
        assert_eq!(tracer.wants_symbol(&returned(u64::MAX)), None);
    }

    #[test]
    fn an_unknown_probe_shows_its_id() {
        assert!(
            Tracer::new(0)
                .line(&samples::event(1))
                .starts_with("#7  vcpu 1")
        );
    }

    #[test]
    fn times_count_from_the_first_event_and_may_be_negative() {
        let mut tracer = Tracer::new(2_000_000_000);
        let times: Vec<String> = [10_000, 3_000_010_000, 4_000]
            .iter()
            .map(|&tsc| tracer.line(&samples::event(tsc)))
            .map(|line| {
                line.split_whitespace()
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect();
        assert_eq!(times, ["0.000000", "1.500000", "-0.000003"]);
    }

    #[test]
    fn a_time_of_decades_does_not_overflow() {
        assert_eq!(seconds(u64::MAX, 0, 1_000_000_000), "18446744073.709551");
    }
}
