//! Events as lines of a trace.

use std::collections::HashMap;

use vmprobe_proto::v1::{Event, Probe};

/// Turns events into lines. Knows the probes' names, and the time of the first event, from which the
/// times of the others count.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    names: HashMap<u64, String>,
    tsc_hz: u64,
    first: Option<u64>,
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
            self.names.insert(probe.id, probe.name.clone());
        }
    }

    /// Whether the name of the event's probe is known.
    #[must_use]
    pub fn knows(&self, event: &Event) -> bool {
        self.names.contains_key(&event.probe_id)
    }

    /// Gives the event's probe a name made from its id, unless it has one: it was removed before its
    /// name could be learnt.
    pub fn settle(&mut self, event: &Event) {
        let id = event.probe_id;
        self.names.entry(id).or_insert_with(|| format!("#{id}"));
    }

    /// The name of the event's probe; empty where it isn't known.
    #[must_use]
    pub fn name(&self, event: &Event) -> &str {
        self.names.get(&event.probe_id).map_or("", String::as_str)
    }

    /// One event: seconds since the first one (where the counter's frequency is known), probe, vCPU,
    /// time stamp and the registers of the first three arguments of a C function.
    pub fn line(&mut self, event: &Event) -> String {
        let first = *self.first.get_or_insert(event.tsc);
        let time = if self.tsc_hz == 0 {
            String::new()
        } else {
            format!("{:>12}  ", seconds(event.tsc, first, self.tsc_hz))
        };
        let name = match self.names.get(&event.probe_id) {
            Some(name) => name.clone(),
            None => format!("#{}", event.probe_id),
        };
        let registers = event.registers.unwrap_or_default();
        format!(
            "{time}{name}  vcpu {}  tsc {}  rdi={:#x} rsi={:#x} rdx={:#x}",
            event.vcpu, event.tsc, registers.rdi, registers.rsi, registers.rdx
        )
    }

    /// The line for hits lost at this point.
    #[must_use]
    pub fn lost_line(lost: u64) -> String {
        format!("[{lost} events lost here: this client reads too slowly]")
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
