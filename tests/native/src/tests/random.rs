//! Random encodings, emulated and relocated.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use row_report::proves;
use seeded_random::Random;

use crate::case::Case;
use crate::compare::{self, Agreed, Mismatch};
use crate::cpu::Cpu;
use crate::draw;

/// The time after which no more cases are compared; a slow machine compares fewer than `MOST`.
const TIME: Duration = Duration::from_secs(8);
const MOST: usize = 400_000;
const LEAST: usize = 20_000;

/// A comparison: emulation or relocation.
type Way = fn(&mut Cpu, &Case) -> Result<Agreed, Mismatch>;

/// Compares random cases. Returns how many there were, and how many of each mnemonic.
fn compare_random(
    seed: u64,
    draw: fn(&mut Random) -> Vec<u8>,
    way: Way,
) -> (usize, BTreeMap<String, usize>) {
    let mut cpu = Cpu::new().unwrap();
    let mut random = Random::new(seed);
    let mut mnemonics: BTreeMap<String, usize> = BTreeMap::new();
    let (mut cases, started) = (0, Instant::now());
    while cases < LEAST || cases < MOST && started.elapsed() < TIME {
        let code = draw(&mut random);
        let Ok(case) = Case::new(&code, &mut random, cpu.layout()) else {
            continue;
        };
        let agreed = way(&mut cpu, &case).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if agreed != Agreed::NotDone {
            cases += 1;
            let mnemonic = format!("{:?}", case.insn.mnemonic());
            *mnemonics.entry(mnemonic).or_default() += 1;
        }
    }
    (cases, mnemonics)
}

#[test]
fn emulated_instructions_do_what_the_cpu_does() {
    proves(
        &["KP10"],
        "emulated_instructions_do_what_the_cpu_does",
        || {
            let (cases, mnemonics) = compare_random(1, draw::emulated, compare::emulated);
            assert!(mnemonics.len() > 70, "{mnemonics:?}");
            format!(
                "{cases} random cases of {} instructions, seed 1",
                mnemonics.len()
            )
        },
    );
}

#[test]
fn any_bytes_that_are_emulated_do_what_the_cpu_does() {
    let name = "any_bytes_that_are_emulated_do_what_the_cpu_does";
    proves(&["KP10"], name, || {
        let (cases, mnemonics) = compare_random(2, draw::any, compare::emulated);
        assert!(mnemonics.len() > 50, "{mnemonics:?}");
        format!(
            "{cases} random cases of {} instructions, seed 2",
            mnemonics.len()
        )
    });
}

#[test]
fn copies_of_any_bytes_do_elsewhere_what_the_original_does_in_line() {
    let name = "copies_of_any_bytes_do_elsewhere_what_the_original_does_in_line";
    proves(&["KP10"], name, || {
        let (cases, mnemonics) = compare_random(4, draw::any, compare::relocated);
        assert!(mnemonics.len() > 300, "{}", mnemonics.len());
        format!(
            "{cases} random cases of {} instructions, seed 4",
            mnemonics.len()
        )
    });
}
