//! The workloads. Each returns its part of the `done` report: what it did, counted exactly.

mod alt_stack;
mod answers;
mod console;
mod debugfs;
mod debugger;
mod definitions;
mod disks;
mod fault;
mod files;
mod fill;
mod ftrace;
mod functions;
mod hostile;
mod interleaved;
mod klog;
mod kprobe;
mod kprobe_switched;
mod listing;
mod mark;
mod mixed;
mod module;
mod names;
mod nested;
mod network;
mod numbers;
mod oops;
mod owned;
mod pages;
mod pairs;
mod placed;
mod probeable;
mod processes;
mod readers;
mod ring_buffer;
mod scribble;
mod shares;
mod sockets;
mod static_keys;
mod streams;
mod sweep;
mod sys;
mod threads;
mod timed;
mod toggle;
pub mod tools;
mod traced;
mod tracefs;
mod tracing;

use std::io;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::console as serial;
use crate::plan::{Plan, Workload};
use crate::with_name;

pub use sweep::CHILD;

/// Does the plan's workload.
pub fn run(plan: &Plan) -> io::Result<Value> {
    match plan.workload {
        Workload::None => Ok(json!({})),
        Workload::Mark => mark::run(),
        Workload::Answers => answers::run(),
        Workload::Cpus => Ok(json!({ "online": threads::online_cpus()?.len() })),
        Workload::Nodes => placed::nodes(),
        Workload::Above => placed::above(plan.count),
        Workload::Files => files::run(plan.count),
        Workload::Names => names::run(plan.count),
        Workload::Hostile => hostile::run(),
        Workload::Unmapped => hostile::unmapped_meanwhile(plan.count),
        Workload::Forks => processes::forks(plan.count),
        Workload::Everywhere => processes::everywhere(plan.count),
        Workload::Pipes => processes::pipes(plan.count),
        Workload::Spin => console::spin(),
        Workload::Echo => console::echo(),
        Workload::Threads => threads::run(plan.call, plan.count),
        Workload::Pairs => pairs::run(plan.call, plan.count),
        Workload::Smp => threads::rounds(plan),
        Workload::Sleep => {
            thread::sleep(Duration::from_millis(plan.sleep_ms));
            Ok(json!({ "ms": plan.sleep_ms }))
        }
        Workload::Kprobe => kprobe::run(plan),
        Workload::KprobeSwitched => kprobe_switched::run(plan, false),
        Workload::KprobeJump => kprobe_switched::run(plan, true),
        Workload::Timed => timed::run(plan),
        Workload::Ftrace => ftrace::run(plan),
        Workload::Tracing => tracing::run(plan),
        Workload::Traced => traced::run(plan),
        Workload::Define => definitions::define(plan),
        Workload::Trace => definitions::trace(),
        Workload::StaticKeys => static_keys::run(plan),
        Workload::Debugger => debugger::run(plan.count),
        Workload::Module => module::run(plan),
        Workload::Churn => module::churn(plan),
        Workload::Load => {
            module::load(&module::file(&plan.module)?)?;
            Ok(json!({ "text": module::text(&plan.module)? }))
        }
        Workload::Drivers => disks::load_drivers(),
        Workload::DiskFill => disks::fill(plan),
        Workload::DiskLook => disks::look(plan),
        Workload::Random => disks::random(plan),
        Workload::Share => shares::run(plan),
        Workload::Mixed => mixed::run(plan),
        Workload::Sockets => sockets::run(plan),
        Workload::Network => network::set_up(plan),
        Workload::Connections => network::connections(plan),
        Workload::Calls => network::calls(plan),
        Workload::Upload => network::upload(plan),
        Workload::Flood => network::flood(plan),
        Workload::Unload => module::unload(&plan.module).map(|()| json!({})),
        Workload::Sweep => sweep::run(plan.count),
        Workload::Fault => fault::run(plan.count),
        Workload::Readers => readers::run(plan.count),
        Workload::Nested => nested::run(plan.count),
        Workload::Pages => pages::run(plan.count),
        Workload::AltStack => alt_stack::run(plan.count),
        Workload::Scribble => scribble::run(plan),
        Workload::Overwrite => scribble::overwrite(plan),
        Workload::Interleaved => interleaved::run(plan),
        Workload::Probeable => probeable::run(plan),
        Workload::Blacklist => probeable::blacklist(),
        Workload::Functions => functions::run(),
        Workload::Toggle => toggle::run(plan),
        Workload::Listing => listing::run(plan, false),
        Workload::ListingJumps => listing::run(plan, true),
        Workload::Fill => fill::run(plan),
        Workload::Tools => tools::run(),
        Workload::Oops => oops::run(plan),
        Workload::Owned => owned::run(plan.count),
        Workload::Log => Ok(json!({ "complaints": klog::complaints()? })),
        Workload::Say => {
            let between = Duration::from_millis(plan.sleep_ms);
            Ok(json!({ "times_us": klog::say(plan.count, between)? }))
        }
    }
}

/// Reports that a workload has reached `event`; with `hold=yes` it then waits for a line.
fn step(plan: &Plan, event: &str, fields: Value) -> io::Result<()> {
    serial::report(event, with_name(fields, plan.workload.name()));
    if plan.hold {
        serial::line()?;
    }
    Ok(())
}
