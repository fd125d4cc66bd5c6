//! What it costs that a detour follows a pointer (BN17), or reads a text.

use guest_state::{GuestMemory, GuestPhysAddr};
use native::jump::ram::{DIRECT_MAP, LOW, Ram};
use probe_engine::detour::Purpose;
use probe_engine::fetch::Fetches;
use probe_engine::probe::Capture;
use probe_engine::value::{Base, Load, Space, Take, Value};

use super::subject::{HITS, ROUNDS, Subject};
use super::{JumpError, rounded};
use crate::clock::Clock;
use crate::report::Entry;

/// Limit in nanoseconds for a load.
const LOAD: f64 = 5.0;
/// Values of a record, each of which takes one load.
const VALUES: u64 = 8;
/// A text of the length of a path.
const TEXT: &[u8; 24] = b"/usr/lib/os-release.conf";
/// Where the text is in a process, and in the RAM.
const USER: u64 = 0x7fff_1234_5678;
const FRAME: u64 = LOW.start.0 + 8 * PAGE;
const PAGE: u64 = 4096;

/// Measures.
///
/// # Errors
/// See [`JumpError`].
pub fn measure(clock: &Clock) -> Result<Vec<Entry>, JumpError> {
    let at = |offset| Load {
        offset,
        space: Space::Any,
    };
    let word = |number: u64, loads: Vec<Load>| Value {
        base: Base::Constant(DIRECT_MAP + FRAME + 64 * number),
        loads,
        take: Take::Word,
    };
    let words = |loads: &[Load]| (0..VALUES).map(|it| word(it, loads.to_vec())).collect();
    let text = Value {
        base: Base::Constant(USER),
        loads: Vec::new(),
        take: Take::Text {
            at: at(0),
            most: 256,
        },
    };
    let mut pair = [
        Probed::new(words(&[]), 16 * VALUES)?,
        Probed::new(words(&[at(8)]), 16 * VALUES)?,
    ];
    let [without, with, more] = rounds(clock, &mut pair)?;
    let load = more / VALUES as f64;
    let verdict = if load <= LOAD { "kept" } else { "missed" };
    let how = "a pointer into the direct mapping, hot: a record of eight values with one load each, less \
               one of eight without, by eight; rounds of both in turn";
    let note =
        format!("limit {LOAD} ns: {verdict}; the records take {with:.1} and {without:.1} ns");
    let mut pair = [
        Probed::new(vec![word(0, Vec::new())], 16)?,
        Probed::new(vec![text], 8 + TEXT.len() as u64)?,
    ];
    let [none, user, _] = rounds(clock, &mut pair)?;
    let how_text = format!(
        "jump probe with the text of {} bytes at an address of a process, by a walk of its page tables, \
         above the unprobed call",
        TEXT.len()
    );
    let note_text = format!("with a value from a register in its place: {none:.1} ns");
    Ok(vec![
        Entry::native("BN17", rounded(load), "ns", how).note(note),
        Entry::native("BN17", rounded(user), "ns", how_text).note(note_text),
    ])
}

/// A function with a probe whose record has some values and nothing else.
struct Probed {
    subject: Subject,
    /// Bytes of a record.
    record: u64,
}

impl Probed {
    /// Makes a function with a probe whose record has these values, which take `len` bytes.
    fn new(values: Vec<Value>, len: u64) -> Result<Self, JumpError> {
        let mut subject = Subject::new(1)?;
        fill(subject.ram());
        let purpose = Purpose {
            capture: Some(Capture::Event(Fetches::default())),
            values: values.into(),
            ..Purpose::default()
        };
        let record = purpose.shape().map_or(0, |shape| shape.values_at()) + len;
        let dead = subject.dead_at_entry();
        subject.probe(&purpose, dead, false)?;
        Ok(Self { subject, record })
    }

    /// Returns the time of a hit above that of an unprobed call, in one round.
    fn round(&mut self, clock: &Clock) -> Result<f64, JumpError> {
        let [without, with] = self.subject.round(clock)?;
        Ok(with - without)
    }

    /// Checks that each hit of [`ROUNDS`] has left its record.
    fn check(&self) -> Result<(), JumpError> {
        let (bytes, count) = self.subject.traces();
        if (bytes, count) == (self.record * HITS, 0) {
            return Ok(());
        }
        Err(JumpError::Traces {
            what: "a record of values",
            hits: HITS,
            bytes,
            count,
        })
    }
}

/// Returns the time of a hit of the first, of one of the second, and the difference: medians of rounds in turn, as a
/// shared machine is at times half as fast as at others.
fn rounds(clock: &Clock, pair: &mut [Probed; 2]) -> Result<[f64; 3], JumpError> {
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        let [first, second] = pair;
        let (first, second) = (first.round(clock)?, second.round(clock)?);
        for (times, time) in times.iter_mut().zip([first, second, second - first]) {
            times.push(time);
        }
    }
    pair.iter().try_for_each(Probed::check)?;
    Ok(times.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    }))
}

/// Writes page tables for the text, and pointers.
fn fill(ram: &Ram) {
    let put = |at: u64, word: u64| {
        // A failed write makes the record shorter, which is noticed.
        let _result = ram.write_u64(GuestPhysAddr(at), word);
    };
    for (level, shift) in [(0, 39), (1, 30), (2, 21)] {
        let table = LOW.start.0 + level * PAGE;
        put(table + (USER >> shift & 0x1ff) * 8, (table + PAGE) | 1);
    }
    put(LOW.start.0 + 3 * PAGE + (USER >> 12 & 0x1ff) * 8, FRAME | 1);
    let _result = ram.write(GuestPhysAddr(FRAME + USER % PAGE), TEXT);
}
