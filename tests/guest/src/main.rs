//! PID 1 of the Linux guests under test: does one workload, reports it on the console, and ends the
//! machine in the requested way. As a process of a guest it is a command, see [`command`].
//!
//! Its arguments come from the kernel's command line, after ` -- `:
//! `console=ttyS0 -- workload=files count=200 end=poweroff`; see [`plan::Plan`] for all of them.
//! Its reports are lines of JSON after a fixed prefix, for which a test waits:
//!
//! ```text
//! @guest {"event":"ready","workload":"files"}
//! @guest {"bytes":12800,"event":"done","opens":200,"reads":200,"workload":"files"}
//! @guest {"end":"poweroff","event":"ending"}
//! ```

mod command;
mod console;
mod machine;
mod plan;
mod workload;

use serde_json::json;

use crate::console::report;
use crate::plan::{End, Plan};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == [workload::CHILD] {
        return;
    }
    if arguments
        .first()
        .is_some_and(|first| first == command::COMMAND)
    {
        std::process::exit(command::run(&arguments[1..]).map_or(1, i32::from));
    }
    let end = match run(&arguments) {
        Ok(end) => end,
        Err(error) => {
            report("error", json!({ "message": error.to_string() }));
            End::PowerOff
        }
    };
    report("ending", json!({ "end": end.name() }));
    machine::end(end);
}

fn run(arguments: &[String]) -> Result<End, Box<dyn std::error::Error>> {
    machine::mount_all()?;
    machine::quiet_kernel();
    console::no_echo()?;
    let plan = Plan::parse(arguments)?;
    report("ready", json!({ "workload": plan.workload.name() }));
    let done = workload::run(&plan)?;
    report("done", with_name(done, plan.workload.name()));
    Ok(plan.end)
}

fn with_name(mut report: serde_json::Value, name: &str) -> serde_json::Value {
    report["workload"] = name.into();
    report
}
