//! The workloads. Each returns its part of the `done` report: what it did, counted exactly.

mod console;
mod files;
mod processes;
mod threads;

use std::io;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::plan::{Plan, Workload};

/// Does the plan's workload.
pub fn run(plan: &Plan) -> io::Result<Value> {
    match plan.workload {
        Workload::None => Ok(json!({})),
        Workload::Cpus => Ok(json!({ "online": threads::online_cpus()?.len() })),
        Workload::Files => files::run(plan.count),
        Workload::Forks => processes::forks(plan.count),
        Workload::Pipes => processes::pipes(plan.count),
        Workload::Spin => console::spin(),
        Workload::Echo => console::echo(),
        Workload::Threads => threads::run(plan.call, plan.count),
        Workload::Sleep => {
            thread::sleep(Duration::from_millis(plan.sleep_ms));
            Ok(json!({ "ms": plan.sleep_ms }))
        }
    }
}
