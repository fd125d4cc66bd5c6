//! What a hit of a jump probe costs above the unprobed call (BN03, BN04), a followed call (JP11), and a pointer
//! that is followed (BN17): the engine's own detours, executed by this process.

mod loads;
mod shared;
mod subject;

use probe_engine::condition::{Comparison, Operand, Relation};
use probe_engine::detour::{Dead, DetourError, Follow, Purpose};
use probe_engine::fetch::{Fetch, Fetches};
use probe_engine::probe::Capture;
use probe_engine::ring::layout::{RECORD_VALUES, RETURN_WORDS};

use crate::clock::Clock;
use crate::report::Entry;
use subject::{HITS, Subject};

/// Limits in nanoseconds.
const COUNT: f64 = 5.0;
const RECORD: f64 = 25.0;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum JumpError {
    /// The system gives no memory for code, rings or blocks.
    #[error("can't execute code here")]
    System(#[from] std::io::Error),
    /// There is no detour.
    #[error("can't generate a detour")]
    Detour(#[from] DetourError),
    /// The code around it is damaged.
    #[error("can't assemble the function to probe")]
    Code(#[from] iced_x86::IcedError),
    /// Hits have left behind other traces than they should. Without its record, a hit would look too cheap.
    #[error("{hits} hits of `{what}` left {bytes} bytes and a count of {count}")]
    Traces {
        /// The probe.
        what: &'static str,
        /// Its hits.
        hits: u64,
        /// In the ring.
        bytes: u64,
        /// In the cell.
        count: u32,
    },
    /// A thread that measured ended early.
    #[error("a thread panicked")]
    Thread,
}

/// The purpose of a probe, and what its detour may use.
struct Plan {
    id: &'static str,
    limit: Option<f64>,
    what: &'static str,
    purpose: Purpose,
    /// True if the registers that are dead at a C function's entry may be used.
    entry: bool,
}

fn plans() -> Vec<Plan> {
    let arguments = [7, 6, 2, 1, 8, 9];
    let arguments = arguments.into_iter().map(Fetch::Register).collect();
    let unmet = |operand| {
        vec![Comparison {
            operand,
            relation: Relation::Equal,
            constant: 0x1234,
            signed: false,
        }]
    };
    let plan = |id, limit, what, capture| Plan {
        id,
        limit,
        what,
        purpose: Purpose {
            capture: Some(capture),
            ..Purpose::default()
        },
        entry: true,
    };
    let follow = |records, what| Plan {
        purpose: Purpose {
            follow: Some(Follow {
                records,
                limit: 10,
                lossless: false,
            }),
            ..Purpose::default()
        },
        ..plan("JP11", None, what, Capture::Count)
    };
    let unmet = |operand, what| Plan {
        purpose: Purpose {
            condition: unmet(operand),
            capture: Some(Capture::FULL),
            ..Purpose::default()
        },
        ..plan("BN03", None, what, Capture::FULL)
    };
    vec![
        plan(
            "BN03",
            Some(COUNT),
            "count at a function's entry",
            Capture::Count,
        ),
        Plan {
            entry: false,
            ..plan(
                "BN03",
                Some(COUNT),
                "count where everything is live",
                Capture::Count,
            )
        },
        unmet(Operand::Pid, "a condition on the process that isn't met"),
        unmet(
            Operand::Register { number: 7, size: 4 },
            "a condition on an argument that isn't met",
        ),
        plan(
            "BN04",
            Some(RECORD),
            "full record at a function's entry",
            Capture::FULL,
        ),
        Plan {
            entry: false,
            ..plan(
                "BN04",
                Some(RECORD),
                "full record where everything is live",
                Capture::FULL,
            )
        },
        plan(
            "BN04",
            None,
            "record of six arguments at a function's entry",
            Capture::Event(arguments),
        ),
        plan(
            "BN04",
            None,
            "record of no register at a function's entry",
            Capture::Event(Fetches::default()),
        ),
        follow(false, "return, counted"),
        follow(true, "return, with all registers then and at the entry"),
    ]
}

/// Measures.
///
/// # Errors
/// See [`JumpError`].
pub fn measure() -> Result<Vec<Entry>, JumpError> {
    let clock = Clock::new();
    let mut entries = Vec::new();
    for plan in plans() {
        let mut subject = Subject::new(1)?;
        let dead = plan.entry.then(|| subject.dead_at_entry());
        let dead = dead.unwrap_or_else(Dead::default);
        let expected = leaves(&plan.purpose);
        subject.probe(&plan.purpose, dead, false)?;
        let measured = subject.measure(&clock)?;
        let (bytes, count) = subject.traces();
        if (bytes, u64::from(count)) != (expected.0 * HITS, expected.1 * HITS) {
            return Err(JumpError::Traces {
                what: plan.what,
                hits: HITS,
                bytes,
                count,
            });
        }
        let verdict = match plan.limit {
            Some(limit) if measured.median <= limit => format!("limit {limit} ns: kept; "),
            Some(limit) => format!("limit {limit} ns: missed; "),
            None => String::new(),
        };
        let note = format!(
            "{verdict}half of the rounds were between {:.1} and {:.1} ns; the call itself takes {:.1} ns",
            measured.quartiles.0, measured.quartiles.1, measured.unprobed
        );
        let how = format!(
            "jump probe, above the unprobed call, both in a loop of calls: {}",
            plan.what
        );
        entries.push(Entry::native(plan.id, rounded(measured.median), "ns", how).note(note));
    }
    entries.extend(shared::measure(&clock)?);
    entries.extend(loads::measure(&clock)?);
    Ok(entries)
}

/// Returns how many bytes in the ring, and how many counts, each hit leaves behind.
fn leaves(purpose: &Purpose) -> (u64, u64) {
    if !purpose.condition.is_empty() {
        return (0, 0);
    }
    if let Some(follow) = purpose.follow {
        let counts = (0, 1);
        let records = (8 * RETURN_WORDS, 0);
        return if follow.records { records } else { counts };
    }
    match purpose.capture {
        None => (0, 0),
        Some(Capture::Count) => (0, 1),
        Some(Capture::Event(fetches)) => (RECORD_VALUES + fetches.len_bytes(), 0),
    }
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
