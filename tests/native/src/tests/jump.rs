//! Detours of single instructions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use row_report::proves;
use seeded_random::Random;

use crate::case::Case;
use crate::cpu::Cpu;
use crate::jump::blocks::Blocks;
use crate::jump::draw as purposes;
use crate::jump::single::{self, Agreed, Probe};
use crate::{draw, kernel};

const SEED: u64 = 11;

/// Numbers of cases by their results.
#[derive(Debug, Default)]
struct Found {
    done: usize,
    faulted: usize,
    not_comparable: usize,
    /// Cases without a detour, by the reason.
    refused: BTreeMap<String, usize>,
}

impl Found {
    fn add(&mut self, cpu: &mut Cpu, blocks: &Blocks, case: &Case, random: &mut Random) -> bool {
        let context = purposes::context(random);
        let mut probe = Probe {
            purpose: purposes::purpose(random, &case.registers, &context),
            tag: purposes::tag(random),
            context,
            liveness: random.once_in(2),
        };
        if blocks
            .environment(case.gs_base)
            .variables
            .current_task
            .is_none()
        {
            // The variables are too far from GS base for an instruction to reach.
            probe.purpose.condition.clear();
        }
        let outcome = single::compare(cpu, blocks, case, &probe)
            .unwrap_or_else(|error| panic!("seed {SEED}: {error}"));
        match outcome {
            Ok(Agreed::Done) => self.done += 1,
            Ok(Agreed::Faulted) => self.faulted += 1,
            Ok(Agreed::NotComparable) => self.not_comparable += 1,
            Err(ref error) => {
                let text = error.to_string();
                let why = text.rsplit(": ").next().unwrap_or(&text).to_owned();
                *self.refused.entry(why).or_default() += 1;
            }
        }
        matches!(outcome, Ok(Agreed::Done))
    }
}

/// Compares every form that user mode can execute, in all of the kernel's text.
fn sweep(kernel: fn(lab::Kernels) -> lab::Kernel) -> String {
    let mut random = Random::new(SEED);
    let kernel = kernel(lab::ensure_kernels().unwrap());
    let text = kernel::text(&kernel.vmlinuz, &mut random).unwrap();
    let mut cpu = Cpu::new().unwrap();
    let blocks = Blocks::new(1).unwrap();
    let (mut found, mut forms, mut unfit) = (Found::default(), 0, 0);
    for seen in text.forms.values() {
        let mut done = false;
        let mut fit = false;
        for code in seen.samples.iter().flat_map(|code| [code; 2]) {
            let case = Case::new(code, &mut random, cpu.layout()).ok();
            if let Some(case) = case.and_then(|case| single::with_stack(case, &cpu)) {
                fit = true;
                done |= found.add(&mut cpu, &blocks, &case, &mut random);
            }
        }
        forms += usize::from(done);
        unfit += usize::from(!fit);
    }
    println!(
        "{}: {forms} forms executed, {unfit} unfit of {}, {found:#?}",
        kernel.release,
        text.forms.len()
    );
    assert!(forms > 10_000, "{forms}");
    assert!(found.not_comparable * 30 < found.done, "{found:?}");
    format!(
        "{}: {forms} forms with a jump on them, {} executions, seed {SEED}",
        kernel.release, found.done
    )
}

#[test]
fn every_form_in_debian_12_s_kernel_does_the_same_with_a_jump_on_it() {
    let name = "every_form_in_debian_12_s_kernel_does_the_same_with_a_jump_on_it";
    proves(&["JP06", "JP10", "JP12"], name, || {
        sweep(|kernels| kernels.v6_1)
    });
}

#[test]
fn every_form_in_debian_13_s_kernel_does_the_same_with_a_jump_on_it() {
    let name = "every_form_in_debian_13_s_kernel_does_the_same_with_a_jump_on_it";
    proves(&["JP06", "JP10", "JP12"], name, || {
        sweep(|kernels| kernels.v6_12)
    });
}

#[test]
fn any_instruction_does_the_same_with_a_jump_on_it() {
    const TIME: Duration = Duration::from_secs(8);
    let name = "any_instruction_does_the_same_with_a_jump_on_it";
    proves(&["JP06", "JP10", "JP12"], name, || {
        let mut cpu = Cpu::new().unwrap();
        let blocks = Blocks::new(1).unwrap();
        let mut random = Random::new(SEED);
        let (mut found, started) = (Found::default(), Instant::now());
        while found.done < 10_000 || found.done < 200_000 && started.elapsed() < TIME {
            let code = if random.once_in(2) {
                draw::any(&mut random)
            } else {
                draw::emulated(&mut random)
            };
            let case = Case::new(&code, &mut random, cpu.layout()).ok();
            if let Some(case) = case.and_then(|case| single::with_stack(case, &cpu)) {
                found.add(&mut cpu, &blocks, &case, &mut random);
            }
        }
        println!("{found:#?}");
        format!("{} random cases, seed {SEED}", found.done)
    });
}
