//! PID 1 of the lab machine (L1): mounts what a program needs, loads KVM, runs the commands, sends
//! their output, results and exit status over the report port, and powers the machine off.

mod command;
mod machine;
mod port;

use std::error::Error;
use std::path::Path;

use lab_init::{Exit, Frame, REPORT_PORT, RESULTS_PATH, Task};

use crate::port::Port;

fn main() {
    // Without /dev the failure can't be reported; the machine still powers off and the host sees a
    // report that ends before its last frame.
    let mounted = machine::mount_all();
    if let Ok(port) = Port::open(Path::new(REPORT_PORT)) {
        let last = match mounted.map_err(Into::into).and_then(|()| run_task(&port)) {
            Ok(exit) => Frame::Exit(exit),
            Err(error) => Frame::Failed(chain(error.as_ref())),
        };
        // A port that fails can't report its own failure.
        let _ = port.send(&last).and_then(|()| port.drain());
    }
    machine::power_off();
}

fn run_task(port: &Port) -> Result<Exit, Box<dyn Error>> {
    let task = Task::read(Path::new(Task::PATH))?;
    for module in &task.modules {
        machine::load_module(module)?;
    }
    machine::loopback_up()?;
    let exit = command::run_all(&task, port)?;
    if Path::new(RESULTS_PATH).exists() {
        let results = std::fs::read(RESULTS_PATH)?;
        for frame in Frame::split(&results, Frame::Results) {
            port.send(&frame)?;
        }
    }
    Ok(exit)
}

/// The error with its causes, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
