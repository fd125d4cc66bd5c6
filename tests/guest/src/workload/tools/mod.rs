//! The kernel's own tools at places that a test names, step by step as it asks.
//!
//! A line of input is one step; each is answered by a `step` report. `refused` in it says why the kernel doesn't do it;
//! a refused tool isn't there.
//!
//! | line | what is done |
//! | --- | --- |
//! | `come TOOL PLACE` | the tool is put at the place, a symbol with an offset if need be |
//! | `on`, `off` | it is switched on or off |
//! | `go` | it is taken away |
//! | `state` | the report has the tool's further state, as `state`; so have those of `come`, `on` and `off` |
//! | `complete` | the report comes when all tasks use it |
//! | `block N` | N processes more sleep in `read` of a pipe from now on |
//! | `release` | all of them get what they wait for, and end |
//! | `calls SYSCALL N` | each CPU makes the system call N times; the report has how many `calls` that are, and how many the tool has `seen` so far |
//! | `log` | the report has what the kernel's log has to complain about, as `complaints` |
//! | `umask` | the main thread calls `umask` once; the report has where the kernel keeps a task's mask: offsets `fs` in its `task_struct` and `umask` in that `fs_struct` |
//! | `quit` | the tool is taken away, and that was all |
//!
//! `come` has the tools.

mod bpf;
mod btf;
mod elf;
mod event;
mod livepatch;
mod loaded;
pub mod optimizer;
mod tracer;

use std::io;

use serde_json::{Value, json};

use super::readers::Readers;
use super::{klog, threads, tracefs};
use crate::console;
use crate::plan::Call;

/// One of the kernel's tools at one place.
trait Tool {
    /// Switches it on.
    fn on(&mut self) -> io::Result<()>;
    /// Switches it off; it stays known to the kernel where there is such a state.
    fn off(&mut self) -> io::Result<()>;
    /// Returns how many calls it has seen since it came; `done` is the report of the latest calls.
    fn seen(&mut self, done: &Value) -> io::Result<u64>;
    /// Waits until all tasks use it, if switching it on doesn't.
    fn complete(&self) -> io::Result<()> {
        Ok(())
    }
    /// Returns further state for the report.
    fn state(&self) -> io::Result<Value> {
        Ok(Value::Null)
    }
    /// Takes it away for good.
    fn go(&mut self) -> io::Result<()>;
}

/// The state that one step leaves to the next.
#[derive(Default)]
struct Kept {
    tool: Option<Box<dyn Tool>>,
    readers: Vec<Readers>,
}

/// Does what lines of input ask for.
pub fn run() -> io::Result<Value> {
    tracefs::ready()?;
    let mut kept = Kept::default();
    let mut steps = 0;
    loop {
        let line = console::line()?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words == ["quit"] {
            if let Some(mut tool) = kept.tool.take() {
                tool.go()?;
            }
            return Ok(json!({ "steps": steps }));
        }
        steps += 1;
        let report = match step(&words, &mut kept) {
            Ok(report) => report,
            Err(error) => json!({ "refused": error.to_string() }),
        };
        console::report("step", report);
    }
}

fn step(words: &[&str], Kept { tool, readers }: &mut Kept) -> io::Result<Value> {
    let absent = || io::Error::other("there is no tool");
    match *words {
        ["come", kind, place] => {
            if let Some(mut left) = tool.take() {
                left.go()?;
            }
            let come = tool.insert(come(kind, place)?);
            Ok(json!({ "state": come.state()? }))
        }
        ["on"] => {
            let there = tool.as_mut().ok_or_else(absent)?;
            there.on()?;
            Ok(json!({ "state": there.state()? }))
        }
        ["off"] => {
            let there = tool.as_mut().ok_or_else(absent)?;
            there.off()?;
            Ok(json!({ "state": there.state()? }))
        }
        ["go"] => {
            tool.take().ok_or_else(absent)?.go()?;
            Ok(json!({}))
        }
        ["state"] => {
            let there = tool.as_ref().ok_or_else(absent)?;
            Ok(json!({ "state": there.state()? }))
        }
        ["complete"] => {
            tool.as_ref().ok_or_else(absent)?.complete()?;
            Ok(json!({}))
        }
        ["block", count] => {
            let count = count.parse().map_err(io::Error::other)?;
            readers.push(Readers::block(count)?);
            Ok(json!({}))
        }
        ["release"] => {
            readers.drain(..).try_for_each(Readers::release)?;
            Ok(json!({}))
        }
        ["calls", call, count] => {
            let call = Call::parse("syscall", call).map_err(io::Error::other)?;
            let count = count.parse().map_err(io::Error::other)?;
            let done = threads::run(call, count)?;
            let seen = match tool {
                Some(there) => there.seen(&done)?,
                None => 0,
            };
            Ok(json!({ "calls": done["calls"], "seen": seen }))
        }
        ["log"] => Ok(json!({ "complaints": klog::complaints()? })),
        ["umask"] => {
            threads::make(Call::Umask);
            let types = btf::Types::of_kernel()?;
            Ok(json!({
                "fs": types.member("task_struct", "fs")?,
                "umask": types.member("fs_struct", "umask")?,
            }))
        }
        _ => Err(io::Error::other(format!("no step {words:?}"))),
    }
}

/// Puts a tool at a place. All are switched on except for `kprobe-disabled`.
fn come(kind: &str, place: &str) -> io::Result<Box<dyn Tool>> {
    let mut tool: Box<dyn Tool> = match kind {
        // The function tracer, and the one that also sees returns.
        "function" | "function_graph" => Box::new(tracer::Tracer::new(kind, place)),
        // A kprobe that stays a breakpoint, and one that the kernel may make a jump.
        "kprobe" => Box::new(event::Event::kprobe("p", place, false)?),
        "kprobe-optimized" => Box::new(event::Event::kprobe("p", place, true)?),
        // One that is registered and not switched on yet.
        "kprobe-disabled" => return Ok(Box::new(event::Event::kprobe("p", place, true)?)),
        // One that is switched between breakpoint and jump.
        "kprobe-switched" => Box::new(event::Switched::new(place)?),
        "kretprobe" => Box::new(event::Event::kprobe("r", place, false)?),
        // The entry and the return of a function by `fprobe`.
        "fprobe" => Box::new(event::Event::fprobe(place)?),
        "fprobe-return" => Box::new(event::Event::fprobe(&format!("{place}%return"))?),
        // A trace event of the kernel's own, which is a static key and a static call.
        "event" => Box::new(tracer::StaticEvent::new(place)),
        "bpf-kprobe" => Box::new(bpf::Program::probe(place, false)?),
        "bpf-kretprobe" => Box::new(bpf::Program::probe(place, true)?),
        "bpf-fentry" => Box::new(bpf::Program::trampoline(place, bpf::FENTRY)?),
        "bpf-fexit" => Box::new(bpf::Program::trampoline(place, bpf::FEXIT)?),
        // A live patch of the function that all tasks use before the step ends, and one that has only begun then.
        "livepatch" => Box::new(livepatch::LivePatch::new(place, true)?),
        "livepatch-begun" => Box::new(livepatch::LivePatch::new(place, false)?),
        // A module: its function is there while it is loaded.
        "module" => Box::new(loaded::Module::new(place)?),
        _ => return Err(io::Error::other(format!("no tool {kind:?}"))),
    };
    match tool.on() {
        Ok(()) => Ok(tool),
        Err(error) => {
            // The report has the reason why it isn't there. That it can't be removed either follows from that.
            let _never_came = tool.go();
            Err(error)
        }
    }
}
