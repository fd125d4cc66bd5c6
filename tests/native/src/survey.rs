//! All forms of a kernel's text: by which strategies the engine can pass them, and whether the
//! result is the CPU's.

use std::collections::BTreeMap;
use std::fmt;

use guest_state::GuestVirtAddr;
use probe_engine::relocate;
use seeded_random::Random;

use crate::case::Case;
use crate::compare::{self, Agreed, Mismatch};
use crate::cpu::Cpu;
use crate::kernel::Text;

/// Random states for each encoding.
const STATES: usize = 4;

/// Forms, and those of them that were compared: the CPU executed them to the end at least once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// All.
    pub forms: usize,
    /// How often they occur.
    pub instructions: u64,
    /// Compared.
    pub compared: usize,
}

impl Share {
    fn add(&mut self, count: u64, compared: bool) {
        self.forms += 1;
        self.instructions += count;
        self.compared += usize::from(compared);
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            forms,
            instructions,
            compared,
        } = self;
        write!(
            f,
            "{forms} forms ({instructions} instructions, {compared} forms compared)"
        )
    }
}

/// The results.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Forms that the engine emulates.
    pub emulated: Share,
    /// Forms that can be relocated, emulated or not.
    pub relocated: Share,
    /// Forms that can be neither, by the reason why they have to stay in their place.
    pub neither: BTreeMap<&'static str, Share>,
    /// Forms that can be passed but were not executed to the end here, by the reason: names of
    /// instructions.
    pub not_compared: BTreeMap<&'static str, BTreeMap<String, usize>>,
    /// Executions compared.
    pub cases: usize,
}

/// Compares all forms.
///
/// # Errors
/// The first disagreement.
pub fn survey(cpu: &mut Cpu, text: &Text, random: &mut Random) -> Result<Survey, Mismatch> {
    let mut survey = Survey::default();
    for seen in text.forms.values() {
        let Some(first) = seen.samples.first() else {
            continue;
        };
        let [mut emulated, mut relocated] = [false; 2];
        let mut why = "it always faulted";
        for code in seen.samples.iter().flat_map(|code| [code; STATES]) {
            let case = match Case::new(code, random, cpu.layout()) {
                Ok(case) => case,
                Err(reason) => {
                    why = reason;
                    continue;
                }
            };
            for (compared, agreed) in [
                (&mut emulated, compare::emulated(cpu, &case)?),
                (&mut relocated, compare::relocated(cpu, &case)?),
            ] {
                *compared |= matches!(agreed, Agreed::Done | Agreed::ButUndefinedFlags);
                survey.cases += usize::from(agreed != Agreed::NotDone);
            }
        }
        survey.enter(first, seen.count, (emulated, relocated), why);
    }
    Ok(survey)
}

impl Survey {
    fn enter(&mut self, code: &[u8], count: u64, compared: (bool, bool), why: &'static str) {
        let nearby = (GuestVirtAddr(0), GuestVirtAddr(0x1000));
        let relocatable = relocate::for_comparison(code, nearby.0, nearby.1);
        let emulated = compare::is_emulated(code);
        if emulated {
            self.emulated.add(count, compared.0);
        }
        match relocatable {
            Ok(_) => self.relocated.add(count, compared.1),
            Err(bound) if !emulated => self.neither.entry(bound).or_default().add(count, false),
            Err(_) => {}
        }
        let missed = emulated && !compared.0 || relocatable.is_ok() && !compared.1;
        if missed {
            let names = self.not_compared.entry(why).or_default();
            *names.entry(compare::name(code)).or_default() += 1;
        }
    }
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "emulated:    {}", self.emulated)?;
        writeln!(f, "relocatable: {}", self.relocated)?;
        for (why, share) in &self.neither {
            writeln!(f, "neither, because {why}: {share}")?;
        }
        for (why, names) in &self.not_compared {
            let names: Vec<_> = names
                .iter()
                .map(|(n, count)| format!("{n} {count}"))
                .collect();
            writeln!(f, "not compared, because {why}: {}", names.join(", "))?;
        }
        write!(f, "{} cases", self.cases)
    }
}
