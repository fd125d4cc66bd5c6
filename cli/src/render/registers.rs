//! What is shown of an event whose probe has no arguments.

use std::collections::HashMap;

use vmprobe_client::spec::register_names;
use vmprobe_client::v1::event::Detail;
use vmprobe_client::v1::{Capture, Event, EventKind, Probe, Registers, Return};
use vmprobe_trace_formats::named_registers;

/// Turns the registers of events into text. Knows which registers the probes choose.
#[derive(Clone, Debug, Default)]
pub struct RegisterText {
    probes: HashMap<u64, KnownProbe>,
    tsc_hz: u64,
}

#[derive(Clone, Debug, Default)]
struct KnownProbe {
    has_arguments: bool,
    /// The registers that its events have, if those aren't all.
    registers: Option<Vec<&'static str>>,
}

impl RegisterText {
    /// Makes one for a guest whose time stamp counter has `tsc_hz` hertz; 0 leaves durations out.
    #[must_use]
    pub fn new(tsc_hz: u64) -> Self {
        Self {
            tsc_hz,
            ..Self::default()
        }
    }

    /// Learns probes; those learnt before stay, for late events of a removed probe.
    pub fn learn(&mut self, probes: &[Probe]) {
        for probe in probes {
            let known = KnownProbe {
                has_arguments: !probe.arguments.is_empty(),
                registers: chosen_registers(probe),
            };
            self.probes.insert(probe.id, known);
        }
    }

    /// Returns the registers that the event's probe chooses, or those of the first three arguments of a C function. Of
    /// a return: the value, the duration, and the registers at the entry. None where the probe has arguments instead,
    /// or where there is nothing to show.
    #[must_use]
    pub fn of(&self, event: &Event) -> Option<String> {
        let known = self.probes.get(&event.probe_id);
        if known.is_some_and(|known| known.has_arguments) || !event.values.is_empty() {
            return None;
        }
        let registers = event.registers.unwrap_or_default();
        let text = match (&event.detail, event.kind()) {
            (Some(Detail::Return(returned)), _) => self.returned(event, returned, registers.rax),
            (_, EventKind::Access) => String::new(),
            (_, EventKind::Post) if self.chosen(event).is_none() => {
                format!("rax={:#x} {}", registers.rax, arguments(&registers))
            }
            _ => self.shown(event, &registers),
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// Returns the names of the registers that the event has; none if those are all.
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

    fn returned(&self, event: &Event, returned: &Return, value: u64) -> String {
        let value = match self.chosen(event) {
            _ if returned.tail_call => None,
            Some(chosen) if !chosen.contains(&"rax") => None,
            _ => Some(format!("ret={}", returned_text(value))),
        };
        let duration = self.duration_ns(event, returned).map(|ns| {
            let micros = ns / 1000;
            format!("{micros}.{:03} us", ns % 1000)
        });
        let entry = returned.entry.as_ref();
        let entry = entry.map(|entry| self.shown(event, entry));
        let entry = entry.filter(|entry| !entry.is_empty());
        let parts: Vec<String> = [value, duration, entry].into_iter().flatten().collect();
        parts.join("  ")
    }

    /// Returns the time between the function's entry and its return; none where the counter's frequency isn't known.
    fn duration_ns(&self, event: &Event, returned: &Return) -> Option<u128> {
        let ticks = u128::from(event.tsc.saturating_sub(returned.entry_tsc));
        (ticks * 1_000_000_000).checked_div(u128::from(self.tsc_hz))
    }
}

fn arguments(registers: &Registers) -> String {
    let Registers { rdi, rsi, rdx, .. } = registers;
    format!("rdi={rdi:#x} rsi={rsi:#x} rdx={rdx:#x}")
}

/// Returns the names of the registers that a probe's events have; none if those are all.
fn chosen_registers(probe: &Probe) -> Option<Vec<&'static str>> {
    let options = probe.options.as_ref()?;
    (options.capture() == Capture::Registers).then(|| register_names(options))
}

/// Returns a returned value in hexadecimal, and in decimal where it reads as one of the kernel's errors: -1 to -4095
/// (`MAX_ERRNO` in `include/linux/err.h`), of 64 bits or, from an `int`, of 32.
fn returned_text(value: u64) -> String {
    match errno(value) {
        Some(error) => format!("{value:#x} ({error})"),
        None => format!("{value:#x}"),
    }
}

fn errno(value: u64) -> Option<i64> {
    const ERRORS: std::ops::RangeInclusive<i64> = -4095..=-1;
    let long = value.cast_signed();
    let int = u32::try_from(value)
        .ok()
        .map(|value| i64::from(value.cast_signed()));
    [Some(long), int]
        .into_iter()
        .flatten()
        .find(|error| ERRORS.contains(error))
}

#[cfg(test)]
mod tests {
    use vmprobe_client::spec;
    use vmprobe_client::v1::Argument;

    use super::super::samples;
    use super::*;

    fn text(hz: u64, probe: &Probe) -> RegisterText {
        let mut text = RegisterText::new(hz);
        text.learn(std::slice::from_ref(probe));
        text
    }

    fn returned() -> Event {
        let mut event = samples::event(5_000_003_141);
        event.set_kind(EventKind::Return);
        event.registers = Some(Registers {
            rax: (-2i64).cast_unsigned(),
            ..Default::default()
        });
        event.detail = Some(Detail::Return(Return {
            caller: 0x1000,
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
    fn each_kind_of_event_shows_what_it_has() {
        let text = text(1_000_000_000, &samples::probe());
        let three = "rdi=0xffff888001234567 rsi=0x7ffc0000 rdx=0x1";
        let mut event = samples::event(1);
        assert_eq!(text.of(&event).unwrap(), three);
        event.set_kind(EventKind::Post);
        assert_eq!(text.of(&event).unwrap(), format!("rax=0x0 {three}"));
        event.set_kind(EventKind::Fault);
        assert_eq!(text.of(&event).unwrap(), three);
        event.set_kind(EventKind::Access);
        assert_eq!(text.of(&event), None);
        assert_eq!(
            text.of(&returned()).unwrap(),
            "ret=0xfffffffffffffffe (-2)  3.141 us  rdi=0x1 rsi=0x2 rdx=0x3"
        );
    }

    #[test]
    fn a_tail_call_has_no_value_yet() {
        let mut event = returned();
        if let Some(Detail::Return(returned)) = &mut event.detail {
            returned.tail_call = true;
        }
        assert_eq!(
            text(0, &samples::probe()).of(&event).unwrap(),
            "rdi=0x1 rsi=0x2 rdx=0x3"
        );
    }

    #[test]
    fn only_the_registers_that_a_probe_chooses_are_shown() {
        let mut probe = samples::probe();
        probe.options = spec::parse("f regs=rsi+rdi").unwrap().options;
        let chosen = text(0, &probe);
        let mut event = samples::event(1);
        let registers = "rsi=0x7ffc0000 rdi=0xffff888001234567";
        assert_eq!(chosen.of(&event).unwrap(), registers);
        event.set_kind(EventKind::Post);
        assert_eq!(chosen.of(&event).unwrap(), registers);
        assert_eq!(chosen.of(&returned()).unwrap(), "rsi=0x2 rdi=0x1");
        probe.options = spec::parse("f regs=none").unwrap().options;
        assert_eq!(text(0, &probe).of(&samples::event(1)), None);
    }

    #[test]
    fn a_probe_with_arguments_shows_no_registers() {
        let mut probe = samples::probe();
        probe.arguments = vec![Argument::default()];
        assert_eq!(text(0, &probe).of(&samples::event(1)), None);
    }

    #[test]
    fn a_returned_error_is_told_in_decimal_too() {
        for (value, text) in [
            (0, "0x0"),
            (1, "0x1"),
            (u64::MAX, "0xffffffffffffffff (-1)"),
            (0xffff_fffe, "0xfffffffe (-2)"),
            (0xffff_ffff_ffff_f001, "0xfffffffffffff001 (-4095)"),
            (0xffff_ffff_ffff_f000, "0xfffffffffffff000"),
            (0xffff_8880_0000_0000, "0xffff888000000000"),
        ] {
            assert_eq!(returned_text(value), text);
        }
    }
}
