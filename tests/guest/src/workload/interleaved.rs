//! Calls on all CPUs at once, counted by the kernel's own function tracer.

use std::io;

use serde_json::{Value, json};

use super::{klog, ring_buffer, step, threads, tracefs};
use crate::plan::Plan;

/// A clock that goes forward on all CPUs.
const CLOCK: &str = "global";

/// As [`threads::rounds`], with the function tracer at the plan's places. Also reports how many calls it saw on each
/// CPU, how often the next call was another CPU's, and in how many rounds all CPUs were in the middle of their calls at
/// the same time.
///
/// Steps: `armed`, and `round` for each round.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    tracefs::write("trace_clock", CLOCK)?;
    tracefs::write("set_ftrace_filter", &plan.places().join(" "))?;
    tracefs::write("current_tracer", "function")?;
    tracefs::clear()?;
    step(plan, "armed", json!({}))?;
    let cpus = threads::online_cpus()?;
    let mut totals = vec![0; cpus.len()];
    let (mut made, mut switches, mut together) = (0, 0, 0);
    for round in 0..plan.rounds {
        let mut done = threads::run(plan.call, plan.count)?;
        made += done["calls"].as_u64().unwrap_or_default();
        let times = cpus.iter().map(|cpu| ring_buffer::calls(*cpu));
        let times: Vec<Vec<u64>> = times.collect::<io::Result<_>>()?;
        for (total, times) in totals.iter_mut().zip(&times) {
            *total += times.len();
        }
        switches += changes(&times);
        together += u64::from(overlap(&times));
        done["round"] = round.into();
        step(plan, "round", done)?;
    }
    tracefs::write("current_tracer", "nop")?;
    tracefs::write("set_ftrace_filter", "")?;
    tracefs::clear()?;
    Ok(json!({
        "syscall": plan.call.name(),
        "calls": made,
        "traced": totals.iter().sum::<usize>(),
        "by_cpu": totals,
        "switches": switches,
        "together": together,
        "complaints": klog::complaints()?,
    }))
}

/// Returns how often, in the order of time, the next call is another CPU's.
fn changes(times: &[Vec<u64>]) -> u64 {
    let calls = times.iter().enumerate();
    let mut calls: Vec<(u64, usize)> = calls
        .flat_map(|(cpu, times)| times.iter().map(move |time| (*time, cpu)))
        .collect();
    calls.sort_unstable();
    let pairs = calls.windows(2);
    pairs.filter(|pair| pair[0].1 != pair[1].1).count() as u64
}

/// Returns true if there is a time that lies between the first and the last call of every CPU.
fn overlap(times: &[Vec<u64>]) -> bool {
    let firsts: Option<Vec<_>> = times.iter().map(|times| times.first()).collect();
    let lasts: Option<Vec<_>> = times.iter().map(|times| times.last()).collect();
    match (firsts, lasts) {
        (Some(firsts), Some(lasts)) => firsts.iter().max() < lasts.iter().min(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_cpu_are_counted_in_the_order_of_time() {
        assert_eq!(changes(&[vec![1, 2, 5], vec![3, 4]]), 2);
        assert_eq!(changes(&[vec![1, 2], vec![3, 4]]), 1);
        assert_eq!(changes(&[vec![1, 3], vec![2, 4]]), 3);
    }

    #[test]
    fn calls_one_after_the_other_are_no_overlap() {
        assert!(overlap(&[vec![1, 9], vec![3, 12]]));
        assert!(!overlap(&[vec![1, 2], vec![3, 4]]));
        assert!(!overlap(&[vec![1, 2], vec![]]));
    }
}
