//! A boot's timeline as text and as JSON.

use std::cmp::Reverse;

use serde_json::{Value, json};
use vmprobe_client::v1::Ending;

use super::initcalls::Names;
use super::log::{BootLog, BootStage, Initcall};
use crate::render::{self, table};

/// What a boot came to.
pub struct BootReport<'a> {
    log: &'a BootLog,
    tsc_hz: u64,
    kernel: &'a str,
    /// Guest TSC of the earliest event, from which times count.
    zero: u64,
    /// The stages that were hit, by time.
    reached: Vec<&'a BootStage>,
    pub names: Names,
    /// Initcalls that the return probe could not follow.
    pub missed: u64,
    /// How the guest ended, if it did so by itself.
    pub ending: Option<Ending>,
}

impl<'a> BootReport<'a> {
    /// Makes a report. `tsc_hz` is not 0.
    pub fn new(log: &'a BootLog, tsc_hz: u64, kernel: &'a str) -> Self {
        let mut reached: Vec<&BootStage> = log.stages().iter().collect();
        reached.retain(|stage| stage.first.is_some());
        reached.sort_by_key(|stage| stage.first);
        let first = reached.first().and_then(|stage| stage.first);
        let initcalls = log.initcalls().iter().map(|initcall| initcall.start);
        Self {
            log,
            tsc_hz,
            kernel,
            zero: first.into_iter().chain(initcalls).min().unwrap_or(0),
            reached,
            names: Names::default(),
            missed: 0,
            ending: None,
        }
    }

    /// Returns the initcalls that took longest, at most `count`.
    pub fn slowest(&self, count: usize) -> impl Iterator<Item = &'a Initcall> {
        let mut initcalls: Vec<&Initcall> = self.log.initcalls().iter().collect();
        initcalls.sort_by_key(|initcall| Reverse(initcall.took));
        initcalls.into_iter().take(count)
    }

    pub fn text(&self, top: usize) -> Vec<String> {
        let mut lines = vec![match self.reached.first() {
            Some(first) => format!("boot of {}, in ms since {}", self.kernel, first.name),
            None => format!("boot of {}: no stage was reached", self.kernel),
        }];
        lines.extend(self.timeline());
        let not_reached: Vec<&str> = self.not_reached().collect();
        if !not_reached.is_empty() {
            lines.push(format!("not reached: {}", not_reached.join(", ")));
        }
        for left_out in self.log.left_out() {
            lines.push(format!("left out: {} ({})", left_out.name, left_out.reason));
        }
        if let Some(ending) = &self.ending {
            lines.push(format!("the guest ended: {}", render::ending(ending)));
        }
        lines.extend(self.initcalls(top));
        if self.log.events_lost() > 0 {
            lines.push(format!(
                "{} events were lost, so some of this is missing",
                self.log.events_lost()
            ));
        }
        lines
    }

    fn timeline(&self) -> Vec<String> {
        let mut before = self.zero;
        let rows: Vec<Vec<String>> = self
            .reached
            .iter()
            .map(|stage| {
                let tsc = stage.first.unwrap_or(self.zero);
                let delta = tsc.saturating_sub(before);
                before = tsc;
                let hits = match stage.hits {
                    0 | 1 => String::new(),
                    hits => format!("{hits} hits"),
                };
                vec![
                    self.ms(tsc - self.zero),
                    format!("+{}", self.ms(delta)),
                    stage.name.clone(),
                    hits,
                ]
            })
            .collect();
        table(&rows, &[0, 1])
    }

    fn initcalls(&self, top: usize) -> Vec<String> {
        let all = self.log.initcalls();
        if all.is_empty() {
            return Vec::new();
        }
        let failed = all.iter().filter(|initcall| initcall.returned != 0).count();
        let mut summary = format!(
            "initcalls: {}, together {} ms",
            all.len() as u64 + self.log.unremembered(),
            self.ms(self.total())
        );
        if failed > 0 {
            summary += &format!("; {failed} returned an error");
        }
        if self.missed > 0 {
            summary += &format!("; {} more could not be followed", self.missed);
        }
        let rows: Vec<Vec<String>> = self
            .slowest(top)
            .map(|initcall| {
                let returned = match initcall.returned {
                    0 => String::new(),
                    error => format!("returned {error}"),
                };
                vec![
                    self.ms(initcall.took),
                    self.names.level(initcall.function).to_owned(),
                    self.names.function(initcall.function),
                    returned,
                ]
            })
            .collect();
        let mut lines = vec![String::new(), summary];
        if !rows.is_empty() && rows.len() < all.len() {
            lines.push(format!("the slowest {}:", rows.len()));
        }
        lines.extend(table(&rows, &[0]));
        lines
    }

    /// Returns one object. Times are in milliseconds since the first event; all initcalls are in
    /// it, the slowest first.
    pub fn json(&self) -> Value {
        let stages: Vec<Value> = self
            .reached
            .iter()
            .map(|stage| {
                json!({
                    "name": stage.name,
                    "ms": self.number(stage.first.unwrap_or(self.zero) - self.zero),
                    "hits": stage.hits,
                })
            })
            .collect();
        let left_out = self.log.left_out().iter();
        let left_out: Vec<Value> = left_out
            .map(|left_out| json!({ "name": left_out.name, "reason": left_out.reason }))
            .collect();
        let calls: Vec<Value> = self
            .slowest(usize::MAX)
            .map(|initcall| {
                json!({
                    "function": self.names.function(initcall.function),
                    "level": self.names.level(initcall.function),
                    "vcpu": initcall.vcpu,
                    "start_ms": self.number(initcall.start - self.zero),
                    "ms": self.number(initcall.took),
                    "returned": initcall.returned,
                })
            })
            .collect();
        json!({
            "kernel": self.kernel,
            "tsc_hz": self.tsc_hz,
            "stages": stages,
            "not_reached": self.not_reached().collect::<Vec<_>>(),
            "left_out": left_out,
            "initcalls": {
                "count": self.log.initcalls().len() as u64 + self.log.unremembered(),
                "missed": self.missed,
                "total_ms": self.number(self.total()),
                "calls": calls,
            },
            "events_lost": self.log.events_lost(),
            "ending": self.ending.as_ref().map(render::ending_json),
        })
    }

    fn not_reached(&self) -> impl Iterator<Item = &str> {
        let stages = self.log.stages().iter();
        stages
            .filter(|stage| stage.first.is_none())
            .map(|stage| &*stage.name)
    }

    /// Returns the ticks of all initcalls together.
    fn total(&self) -> u64 {
        let took = self.log.initcalls().iter().map(|initcall| initcall.took);
        took.fold(0, u64::saturating_add)
    }

    fn micros(&self, ticks: u64) -> u128 {
        u128::from(ticks) * 1_000_000 / u128::from(self.tsc_hz.max(1))
    }

    fn ms(&self, ticks: u64) -> String {
        let micros = self.micros(ticks);
        format!("{}.{:03}", micros / 1000, micros % 1000)
    }

    /// Returns milliseconds, with microseconds behind the point.
    fn number(&self, ticks: u64) -> f64 {
        self.micros(ticks) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::tests::{hit, initcall};
    use super::*;

    fn boot() -> BootLog {
        let mut log = BootLog::default();
        log.add_probe(1, "start_kernel".into());
        log.add_probe(2, "rest_init".into());
        log.add_probe(3, "run_init_process".into());
        log.add_probe(4, "mine".into());
        log.add_initcall_probe(9);
        log.leave_out("mm_core_init", "no such symbol".into());
        let base = u64::MAX - 10_000_000;
        log.add(&hit(2, base + 1_500_000));
        log.add(&hit(1, base));
        log.add(&hit(4, base + 1_600_000));
        log.add(&hit(4, base + 1_700_000));
        log.add(&initcall(9, 0xa0, (base + 2_000_000, base + 2_250_000), 0));
        log.add(&initcall(
            9,
            0xb0,
            (base + 3_000_000, base + 5_000_000),
            -19,
        ));
        log.add(&initcall(9, 0xc0, (base + 6_000_000, base + 6_001_000), 0));
        log
    }

    #[test]
    fn the_text_has_the_stages_by_time_and_the_slowest_initcalls() {
        let log = boot();
        let mut report = BootReport::new(&log, 1_000_000_000, "6.1.0");
        report.missed = 2;
        assert_eq!(
            report.text(2),
            [
                "boot of 6.1.0, in ms since start_kernel",
                "0.000  +0.000  start_kernel",
                "1.500  +1.500  rest_init",
                "1.600  +0.100  mine          2 hits",
                "not reached: run_init_process",
                "left out: mm_core_init (no such symbol)",
                "",
                "initcalls: 3, together 2.251 ms; 1 returned an error; 2 more could not be followed",
                "the slowest 2:",
                "2.000  0xb0  returned -19",
                "0.250  0xa0",
            ]
        );
    }

    #[test]
    fn the_json_has_all_initcalls() {
        let log = boot();
        let json = BootReport::new(&log, 1_000_000_000, "6.1.0").json();
        assert_eq!(json["stages"][1]["ms"], 1.5);
        assert_eq!(json["stages"][2]["hits"], 2);
        assert_eq!(json["not_reached"][0], "run_init_process");
        assert_eq!(json["initcalls"]["calls"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["initcalls"]["calls"][0]["returned"], -19);
        assert_eq!(json["initcalls"]["calls"][0]["start_ms"], 3.0);
        assert!(json["ending"].is_null());
    }

    #[test]
    fn a_boot_without_any_event_is_told_as_such() {
        let log = BootLog::default();
        let mut report = BootReport::new(&log, 1, "k");
        report.ending = Some(Ending::default());
        assert_eq!(
            report.text(10),
            ["boot of k: no stage was reached", "the guest ended: ended"]
        );
        assert_eq!(report.json()["initcalls"]["count"], 0);
    }
}
