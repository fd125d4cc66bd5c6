//! Every way to lose a hit is forced, one at a time. Each lost hit must be counted. The guest itself reports how often
//! its function was called, by its own function tracer or by the workload.
//!
//! | a hit is left out | where it is forced |
//! | --- | --- |
//! | a jump's record finds its ring full | `jumps/batch.rs`: `records_that_find_a_full_ring...`; a return's: `tests/native`, `calls.rs` |
//! | a lossless one finds it full inside a record that isn't finished | engine, `tests/rings.rs` |
//! | a record is never finished: its writer or the guest ended, its probe was removed | engine, `tests/rings.rs`, `tests/switches.rs` |
//! | a breakpoint is taken away without a stop under a vCPU that has trapped on it | engine, `tests/switches.rs` |
//! | a condition can't be judged: the task can't be read | engine, `tests/switches.rs` |
//! | more calls than are followed at a time | here |
//! | a call under way when its probe is removed | here |
//! | a call returns when its probe is disabled or disarmed | here |
//! | a call is followed by a breakpoint already, and a jump of another function leads on to it | here |
//! | the task ends inside the call | here; the guest ends: engine, `tests/ended.rs` |
//! | no place for a call in the table | `tests/native`, `calls.rs` |
//! | a function with `rets` is left by a way that the engine doesn't see | engine, `tests/exits.rs` |
//! | a return address that can't be read or written | engine, `tests/returns.rs` |
//!
//! What loses none, though kprobes inside a kernel would: a vCPU that has trapped when it is stopped (its trap
//! is answered first: `tiny/missed.rs`, and `switching` with 4 vCPUs); no room for the copy of an instruction
//! (it is stepped in place: engine, `tests/boost.rs`); a hit while another one is being handled (the host
//! handles it, and no handler of its own is in the guest); a hit inside a step (an exception's handler begins
//! when the step is over); one between a detour's instructions (`jumps::smp`); a kprobe of the guest's own that
//! is armed over ours (`guest_tools`).

use std::time::Instant;

use vmprobe_client::v1::Probe;

use super::guest::{Guest, VM, files};
use super::jumps::{SETTLE, jump};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "each_way_to_lose_a_return_is_counted_and_nothing_else_is",
    ids: &["KP06", "KP16", "JP11"],
    needs: Needs::Linux,
    run: |cx| returns(cx, files::BZIMAGE_6_12),
}];

/// How calls are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Breakpoint,
    Jump,
    AtRets,
}

impl Form {
    /// The words that follow the place in the probe's text.
    fn words(self) -> &'static str {
        match self {
            Self::Breakpoint => "nojump",
            Self::Jump => "",
            Self::AtRets => "rets",
        }
    }

    /// Registers a return probe of this form with a limit, and waits until it is settled.
    async fn register(
        self,
        guest: &Guest,
        name: &str,
        limit: u64,
        function: &str,
    ) -> Result<(), Failure> {
        let words = self.words();
        guest
            .probe(&format!("r{limit}:{name} {function} {words}"))
            .await?;
        if self == Self::Jump {
            jump(guest, name).await?;
        }
        Ok(())
    }
}

/// A function that sleeps while its pipe is empty.
const SLEEPS: &str = "pipe_read";
/// A function inside which a killed process ends.
const DIES: &str = "get_signal";
const READERS: u64 = 8;
/// A limit above the number of calls.
const ENOUGH: u64 = 64;

fn returns(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 2).await?;
        let orders = format!("set_ftrace_filter={SLEEPS},{DIES};current_tracer=function");
        guest.work(&format!("tracing at={orders}")).await?;
        let mut remarks = Vec::new();
        for form in [Form::Breakpoint, Form::Jump, Form::AtRets] {
            let done = one_form(&mut guest, form).await;
            remarks.push(done.map_err(|error| wrong!("{form:?}: {error}"))?);
        }
        nested(&mut guest).await?;
        let off = "current_tracer=nop;set_ftrace_filter=";
        guest.work(&format!("tracing at={off}")).await?;
        guest.finish().await?;
        pass_with(remarks.join("; "))
    })
}

async fn one_form(guest: &mut Guest, form: Form) -> Result<String, Failure> {
    beyond_the_limit(guest, form).await?;
    for change in ["remove", "disable", "disarm"] {
        let changed = under_way(guest, form, change).await;
        changed.map_err(|error| wrong!("{change}: {error}"))?;
    }
    let killed = killed(guest, form).await?;
    Ok(format!(
        "{form:?}: {} calls of {DIES}, of which {} ended inside",
        killed.hits + killed.missed + killed.ended,
        killed.ended
    ))
}

async fn beyond_the_limit(guest: &mut Guest, form: Form) -> Result<(), Failure> {
    const MOST: u64 = 3;
    form.register(guest, "few", MOST, SLEEPS).await?;
    block(guest).await?;
    let few = guest.listed("few").await?;
    check_eq!(counts(&few), (0, READERS - MOST, 0), "with calls under way");
    let_go(guest).await?;
    let few = accounted(guest, "few", SLEEPS).await?;
    check_eq!(counts(&few), (MOST, READERS - MOST, 0), "in the end");
    let removed = guest.remove(&["few"]).await?;
    check_eq!(counts(&removed[0]), counts(&few), "at the removal");
    Ok(())
}

/// Changes the probe between the beginnings and the ends of calls.
async fn under_way(guest: &mut Guest, form: Form, change: &str) -> Result<(), Failure> {
    form.register(guest, "all", ENOUGH, SLEEPS).await?;
    block(guest).await?;
    let name = || vec!["all".to_owned()];
    let mut removed = Vec::new();
    match change {
        "remove" => removed = guest.remove(&["all"]).await?,
        "disable" => drop(guest.client.disable_probes(VM, Vec::new(), name()).await?),
        _ => drop(guest.client.disarm_probes(VM).await?),
    }
    let_go(guest).await?;
    check_eq!(traced(guest, SLEEPS).await?, READERS, "calls");
    if removed.is_empty() {
        let all = guest.listed("all").await?;
        check_eq!(counts(&all), (0, READERS, 0), "when they have returned");
        guest.client.arm_probes(VM).await?;
        removed = guest.remove(&["all"]).await?;
    }
    check_eq!(counts(&removed[0]), (0, READERS, 0), "at the removal");
    Ok(())
}

/// Tasks end inside the function. Returns the probe as it was when it was removed.
async fn killed(guest: &mut Guest, form: Form) -> Result<Probe, Failure> {
    form.register(guest, "dies", ENOUGH, DIES).await?;
    block(guest).await?;
    guest.say("kill").await?;
    guest.console.report("done").await?;
    let dies = accounted(guest, "dies", DIES).await?;
    check_eq!(
        (dies.missed, dies.ended),
        (0, READERS),
        "missed, and ended inside"
    );
    let mut removed = guest.remove(&["dies"]).await?;
    check_eq!(counts(&removed[0]), counts(&dies), "at the removal");
    Ok(removed.remove(0))
}

/// A function that jumps into another one, so that both return at once.
const OUTER: &str = "__x64_sys_prctl";
const INNER: &str = "__do_sys_prctl";

/// Checks that a jump doesn't follow a call that a breakpoint follows.
async fn nested(guest: &mut Guest) -> Result<(), Failure> {
    for (outer, inner, followed) in [
        (Form::Breakpoint, Form::Jump, false),
        (Form::Jump, Form::Breakpoint, true),
    ] {
        outer.register(guest, "outer", ENOUGH, OUTER).await?;
        inner.register(guest, "inner", ENOUGH, INNER).await?;
        let done = guest.work("threads syscall=rename count=50").await?;
        let calls = done["calls"].as_u64().unwrap_or_default();
        check!(calls > 0, "the guest made no calls: {done}");
        let removed = guest.remove(&["outer", "inner"]).await?;
        let all: Vec<_> = removed.iter().map(counts).collect();
        let inner = match followed {
            true => (calls, 0, 0),
            false => (0, calls, 0),
        };
        check_eq!(
            all,
            [(calls, 0, 0), inner],
            "{OUTER} and {INNER}, the outer one a {outer:?}"
        );
    }
    Ok(())
}

/// Hits, missed hits, and calls that never return.
fn counts(probe: &Probe) -> (u64, u64, u64) {
    (probe.hits, probe.missed, probe.ended)
}

/// Has processes sleep inside the function, and switches the guest's tracer on so that it sees no earlier calls.
async fn block(guest: &mut Guest) -> Result<(), Failure> {
    guest.work("tracing at=tracing_on=1").await?;
    guest
        .say(&format!("workload=readers count={READERS}"))
        .await?;
    guest.console.report("blocked").await.map(drop)
}

/// Lets those processes return.
async fn let_go(guest: &mut Guest) -> Result<(), Failure> {
    guest.say("go").await?;
    guest.console.report("done").await.map(drop)
}

/// Returns how many calls of the function the guest's own tracer has seen.
async fn traced(guest: &mut Guest, function: &str) -> Result<u64, Failure> {
    let report = guest.work(&format!("traced at={function}")).await?;
    let calls = report["calls"][function].as_u64();
    calls.ok_or_else(|| wrong!("no calls in {report}"))
}

/// Waits until all calls that the guest has seen are accounted for, and returns the probe. A killed task takes a moment
/// to end.
async fn accounted(guest: &mut Guest, name: &str, function: &str) -> Result<Probe, Failure> {
    let calls = traced(guest, function).await?;
    let end = Instant::now() + SETTLE;
    loop {
        let probe = guest.listed(name).await?;
        let (hits, missed, ended) = counts(&probe);
        let all = hits + missed + ended;
        if all == calls {
            return Ok(probe);
        }
        check!(
            all < calls && Instant::now() < end,
            "{calls} calls of {function}: {hits} hits, {missed} missed, {ended} ended inside"
        );
    }
}
