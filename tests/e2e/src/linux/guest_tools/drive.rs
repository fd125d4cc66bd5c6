//! Doing a case.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use iced_x86::Mnemonic;

use super::super::code::decode;
use super::super::guest::{Guest, VM, quiet};
use super::super::mask;
use super::super::steps::{self, must};
use super::super::text::Text;
use super::cases::{Case, Side, Step, orders};
use super::ours::{self, Ours};
use super::theirs::{self, At, Group, Meets};
use crate::context::Context;
use crate::note;
use crate::test::{Failure, TestResult, check, check_eq, pass_with, wrong};

/// vCPUs of the guest.
const VCPUS: u32 = 4;
/// Calls on each of them after each step.
const CALLS: u64 = 5;
/// Longer than any case takes. A guest without output for so long has crashed or hangs.
const LIMIT: Duration = Duration::from_secs(180);
/// The number of failed cases that are reported; then the others are left out.
const TOLD: usize = 10;
/// Each `STRIDE`th case is done. It is a prime, so that all tools, probes, orders and changes have their turn.
const STRIDE: usize = 71;
/// Bytes of a jump.
const JUMP_LEN: u64 = 5;
/// Bytes of a function that are compared after each case.
const COMPARED: usize = 0x100;

/// Does all cases of a group.
pub async fn group(cx: &Context, kernel: &'static str, group: Group) -> TestResult {
    let tools = theirs::ALL
        .iter()
        .filter(|it| it.group == group && it.is_in(kernel));
    let mut cases = Vec::new();
    for theirs in tools {
        for ours in Ours::ALL.into_iter().filter(|it| it.is_at(theirs)) {
            for (index, order) in orders().into_iter().enumerate() {
                let changes = ours.changes();
                cases.push(Case {
                    theirs: *theirs,
                    ours,
                    change: changes[index % changes.len()],
                    order,
                });
            }
        }
    }
    let all = cases.len();
    let cases: Vec<Case> = cases.into_iter().step_by(STRIDE).collect();
    let mut failures = Vec::new();
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    let mut guest = None;
    let started = Instant::now();
    for case in &cases {
        let mut driven = match guest.take() {
            Some(driven) => driven,
            None => Driven::boot(cx, kernel).await?,
        };
        let done = tokio::time::timeout(LIMIT, driven.case(case, &mut refusals)).await;
        let done = done.unwrap_or_else(|_| Err(wrong!("the guest says no more")));
        match done {
            Ok(()) => guest = Some(driven),
            Err(error) => {
                let steps = driven.trail.join(", ");
                note(&format!("case | {case}: {error} (after {steps})"));
                failures.push(format!("{case}: {error} (after {steps})"));
                // Takes another guest, as this one's state is unknown now.
                if failures.len() == TOLD {
                    break;
                }
            }
        }
    }
    if let Some(driven) = guest {
        driven.finish().await?;
    }
    for (refusal, count) in &refusals {
        note(&format!("refused {count:>4} {refusal}"));
    }
    check!(
        failures.is_empty(),
        "{} of {} cases failed: {}",
        failures.len(),
        cases.len(),
        failures.join("; ")
    );
    pass_with(format!(
        "{} of {all} cases, {} ms each",
        cases.len(),
        started.elapsed().as_millis() / cases.len().max(1) as u128
    ))
}

/// A guest that does the steps of a case.
struct Driven {
    guest: Guest,
    text: Text,
    /// The address that watchpoints are on.
    data: u64,
    /// The steps of the current case so far, with their outcomes.
    trail: Vec<String>,
}

/// The state of one side during a case.
#[derive(Debug, Default, Clone, Copy)]
struct Part {
    /// True if it is registered.
    there: bool,
    /// True if it has to count calls.
    counts: bool,
    /// The calls that it must have counted.
    counted: u64,
}

impl Driven {
    async fn boot(cx: &Context, kernel: &'static str) -> Result<Self, Failure> {
        let mut guest = Guest::ready(cx, kernel, VCPUS).await?;
        guest.say("workload=tools").await?;
        let data = mask::address(&mut guest).await?;
        let mut driven = Self {
            text: Text::of(&guest).await?,
            guest,
            data,
            trail: Vec::new(),
        };
        // Lets the kernel patch first what it patches at a first use.
        for tool in theirs::ALL.iter().filter(|it| it.is_in(kernel)) {
            must(&mut driven.guest, &format!("calls {} 1", tool.call())).await?;
        }
        Ok(driven)
    }

    async fn case(
        &mut self,
        case: &Case,
        refusals: &mut BTreeMap<String, usize>,
    ) -> Result<(), Failure> {
        self.trail.clear();
        // A function in a module exists only while the module does.
        let function = match case.theirs.at {
            At::Module(_) => None,
            _ => Some(self.guest.symbol(case.theirs.function()).await?),
        };
        let before = self.code(function).await?;
        let place = self.place(case, function, &before).await?;
        let (mut theirs, mut ours) = (Part::default(), Part::default());
        for (side, step) in &case.order {
            self.trail.push(format!("{side:?} {step:?}"));
            let refused = match side {
                Side::Theirs => self.theirs(case, *step, &place, &mut theirs).await?,
                Side::Ours => self.ours(case, *step, &mut ours).await?,
            };
            if let Some(why) = refused {
                let other = match side {
                    Side::Theirs => ours,
                    Side::Ours => theirs,
                };
                self.trail.push(format!("refused: {why}"));
                // A tool or probe may be refused only if it comes to a place where the other one already is. It may not
                // be refused where the guest's kernel puts it at the function's ftrace site.
                let apart = !matches!(case.theirs.at, At::Same | At::Next | At::Behind);
                check!(other.there && !apart, "{side:?} {step:?} was refused");
                check!(!why.contains("never optimized"), "{why}");
                let what = format!(
                    "{}, {:?}: {side:?} {step:?} beside {other:?}: {why}",
                    case.theirs, case.ours
                );
                *refusals.entry(what).or_default() += 1;
            }
            self.calls(case, &mut theirs, &mut ours).await?;
        }
        let after = self.code(function).await?;
        check!(
            before == after,
            "the function was {before:02x?} and is {after:02x?}"
        );
        quiet(&must(&mut self.guest, "log").await?)
    }

    /// Returns the bytes of a function, if there is one.
    async fn code(&self, function: Option<u64>) -> Result<Vec<u8>, Failure> {
        match function {
            Some(at) => self.guest.memory(at, COMPARED).await,
            None => Ok(Vec::new()),
        }
    }

    /// Returns where the guest's tool is.
    async fn place(
        &mut self,
        case: &Case,
        function: Option<u64>,
        text: &[u8],
    ) -> Result<String, Failure> {
        let theirs = &case.theirs;
        let name = theirs.function();
        match (theirs.at, function) {
            (At::Event(name) | At::Module(name), _) => return Ok(name.into()),
            (At::Function, _) | (_, None) => return Ok(name.into()),
            _ => {}
        }
        let function = function.unwrap_or_default();
        let probe = self.guest.probe(&format!("look={name} nojump")).await?;
        self.guest.remove(&["look"]).await?;
        let code = decode(function, text);
        let from = match theirs.at {
            At::Next => probe.address + 1,
            At::Behind => probe.address + JUMP_LEN,
            _ => probe.address,
        };
        let mut behind = code.iter().filter(|it| it.ip() >= from);
        let at = match case.ours {
            Ours::Watchpoint => behind.find(|it| it.mnemonic() == Mnemonic::Xchg),
            _ => behind.next(),
        };
        let at = at.map(iced_x86::Instruction::ip);
        let at = at.ok_or_else(|| wrong!("{name} is too short"))?;
        Ok(format!("{name}+{:#x}", at - function))
    }

    /// Does a step of the guest's tool. Returns why it was refused, if it was.
    async fn theirs(
        &mut self,
        case: &Case,
        step: Step,
        place: &str,
        part: &mut Part,
    ) -> Result<Option<String>, Failure> {
        if step == Step::Comes {
            let line = format!("come {} {place}", case.theirs.tool);
            return Ok(match steps::step(&mut self.guest, &line).await? {
                Ok(report) => {
                    *part = Part {
                        there: true,
                        counts: !case.theirs.comes_off,
                        counted: 0,
                    };
                    self.trail.push(report["state"].to_string());
                    None
                }
                Err(why) => Some(why),
            });
        }
        if !part.there {
            return Ok(None);
        }
        // A tool that comes switched off is switched on first.
        let off = (step == Step::Off) != case.theirs.comes_off;
        let line = match (step, off) {
            (Step::Goes, _) => "go",
            (_, true) => "off",
            (_, false) => "on",
        };
        match steps::step(&mut self.guest, line).await? {
            Ok(report) => self.trail.push(report["state"].to_string()),
            Err(why) => return Ok(Some(why)),
        }
        match line {
            "go" => *part = Part::default(),
            line => part.counts = line == "on" || case.theirs.counts_off,
        }
        Ok(None)
    }

    /// Does a step of our probe. Returns why it was refused, if it was.
    async fn ours(
        &mut self,
        case: &Case,
        step: Step,
        part: &mut Part,
    ) -> Result<Option<String>, Failure> {
        let guest = &self.guest;
        let done = match step {
            Step::Comes => ours::come(guest, &case.ours.text(&case.theirs, self.data)).await,
            _ if !part.there => return Ok(None),
            Step::Off => ours::off(guest, case.change).await,
            Step::On => ours::on(guest, case.change).await,
            Step::Goes => match ours::go(guest).await {
                Ok(hits) => {
                    check_eq!(hits, part.counted, "hits of ours at its removal");
                    Ok(())
                }
                Err(error) => return Err(error),
            },
        };
        match done {
            Ok(()) => {}
            Err(Failure::Client(error)) => return Ok(Some(error.to_string())),
            Err(other) => return Err(other),
        }
        match step {
            Step::Comes => {
                *part = Part {
                    there: true,
                    counts: true,
                    counted: 0,
                }
            }
            Step::Off => part.counts = case.change == ours::Change::Breakpoint,
            Step::On => part.counts = true,
            Step::Goes => *part = Part::default(),
        }
        if part.there {
            let probe = self.guest.listed(ours::NAME).await?;
            let told = probe.optimization.unwrap_or_default();
            self.trail
                .push(format!("{:?} {}", told.state(), told.reason));
        }
        Ok(None)
    }

    /// Has the guest call the function. Fails unless both sides have counted what they must.
    async fn calls(
        &mut self,
        case: &Case,
        theirs: &mut Part,
        ours: &mut Part,
    ) -> Result<(), Failure> {
        let line = format!("calls {} {CALLS}", case.theirs.call());
        let report = must(&mut self.guest, &line).await?;
        let calls = report["calls"].as_u64().unwrap_or_default();
        check_eq!(calls, CALLS * u64::from(VCPUS), "calls: {report}");
        let met = match case.theirs.meets {
            Meets::Always => true,
            Meets::WhileOff => !theirs.counts,
            Meets::WhileOn => theirs.counts,
        };
        theirs.counted += if theirs.counts { calls } else { 0 };
        ours.counted += if ours.counts && met { calls } else { 0 };
        if theirs.there {
            check_eq!(report["seen"], theirs.counted, "calls that theirs has seen");
        }
        if ours.there {
            let hits = ours::hits(&self.guest).await?;
            check_eq!(hits, ours.counted, "hits of ours");
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<(), Failure> {
        self.guest.say("quit").await?;
        self.guest.console.report("done").await?;
        let left = self.guest.client.list_probes(VM).await?;
        check!(left.is_empty(), "probes are left: {left:?}");
        self.text.unchanged(&self.guest).await?;
        self.guest.finish().await
    }
}
