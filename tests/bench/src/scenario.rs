//! Hits to measure: an engine with probes on a real kernel's text, and vCPUs that hit them.

use std::sync::Arc;

use guest_state::testing::TestVcpu;
use guest_state::{Action, GuestVirtAddr, MemoryError, Trap, TrapHandler};
use probe_engine::engine::Engine;
use probe_engine::error::{BatchError, ChangeError};
use probe_engine::event::EventSink;
use probe_engine::probe::{ProbeInfo, ProbeKind, ProbeSpec, Strategy};

use crate::fate::{self, Fate, is_one_exit};
use crate::functions;
use crate::guest::{Guest, GuestError, STACK};
use crate::image::{Image, ImageError};

/// Where the probed functions return to, in the measurements.
const CALLER: u64 = 0xffff_ffff_8100_0000;

/// Why there is no such scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The kernel can't be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It can't be loaded.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// Probes can't be registered.
    #[error("can't register the probes")]
    Register(#[from] BatchError),
    /// Or not be removed.
    #[error("can't remove a probe")]
    Change(#[from] ChangeError),
    /// The stack isn't there.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The kernel has too little of it.
    #[error("the kernel has {found} of the {wanted} instructions for {what:?}")]
    TooFew {
        /// What was looked for.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many are needed.
        wanted: usize,
    },
    /// A hit is answered otherwise than by letting the vCPU go on.
    #[error("a hit at {at} is answered with {action:?}")]
    NotResumed {
        /// Where.
        at: GuestVirtAddr,
        /// By this.
        action: Box<Action>,
    },
}

/// Which instructions are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probed {
    /// This many function entries, spread over the kernel, whatever their instructions are.
    Entries(usize),
    /// One instruction whose text begins with this, with this strategy.
    One(&'static str, Strategy),
    /// One function's return.
    Return,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Its name, also in file names.
    pub name: &'static str,
    /// What is hit.
    pub probed: Probed,
}

impl Plan {
    /// The likely reason why a hit may take longer than the limit.
    pub fn cause(self) -> &'static str {
        match self.probed {
            Probed::Entries(..=100) | Probed::One(..) => {
                "each memory operand is translated through the guest's page tables, which is most of \
                 the time"
            }
            Probed::Entries(_) => {
                "as it seems, the sites' data is no longer in the cache: 100 such sites are below the \
                 limit"
            }
            Probed::Return => {
                "the stack is translated twice, to read and to replace the return address; a nop and \
                 a push differ by one translation"
            }
        }
    }
}

/// All that is measured.
pub const PLANS: [Plan; 11] = [
    plan("entries-1", Probed::Entries(1)),
    plan("entries-100", Probed::Entries(100)),
    plan("entries-10000", Probed::Entries(10_000)),
    plan("nop", Probed::One("nop", Strategy::Emulate)),
    plan("push", Probed::One("push", Strategy::Emulate)),
    plan("mov-register", Probed::One("mov %r", Strategy::Emulate)),
    plan("call", Probed::One("call", Strategy::Emulate)),
    plan("mov-load", Probed::One("mov 0x", Strategy::Emulate)),
    plan("boost", Probed::One("", Strategy::Boost)),
    plan("boost-memory", Probed::One("lock", Strategy::Boost)),
    plan("return", Probed::Return),
];

const fn plan(name: &'static str, probed: Probed) -> Plan {
    Plan { name, probed }
}

/// Ready to be hit.
pub struct Scenario {
    engine: Engine,
    guest: Guest,
    vcpu: TestVcpu,
    /// Where the hits are, in their order.
    sites: Vec<GuestVirtAddr>,
    next: usize,
    /// A description of what is probed.
    pub shown: String,
}

impl Scenario {
    /// Sets it up.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn new(image: &Image, plan: Plan, sink: Arc<dyn EventSink>) -> Result<Self, ScenarioError> {
        let kernel = image.kernel()?;
        let guest = Guest::new(image, &kernel.symbols)?;
        let engine = Engine::new(kernel, image.map(), 1, sink);
        guest.install_arena(&engine)?;
        let mut scenario = Self {
            vcpu: guest.vcpu.clone(),
            engine,
            guest,
            sites: Vec::new(),
            next: 0,
            shown: String::new(),
        };
        match plan.probed {
            Probed::Entries(count) => {
                let found = scenario.entries(count)?;
                scenario.shown = format!("{count} function entries, in random order");
                scenario.probe(&found, ProbeKind::PRE)?;
            }
            Probed::One(text, strategy) => {
                let found = scenario.instruction(image, text, strategy, plan.name)?;
                scenario.shown = format!("`{}` ({strategy})", found.instruction);
                scenario.probe(&[found.address], ProbeKind::PRE)?;
            }
            Probed::Return => {
                let found = scenario.entries(1)?;
                scenario.shown = "a return probe's function".to_owned();
                scenario.probe(&found, ProbeKind::Return { maxactive: None })?;
            }
        }
        Ok(scenario)
    }

    fn probe(&mut self, sites: &[GuestVirtAddr], kind: ProbeKind) -> Result<(), ScenarioError> {
        let specs: Vec<ProbeSpec> = sites
            .iter()
            .map(|at| ProbeSpec {
                kind,
                ..fate::spec(*at)
            })
            .collect();
        self.engine.register(&self.guest, &specs)?;
        self.sites = shuffled(sites);
        Ok(())
    }

    /// Entries that cost one exit, evenly spread over the kernel's text.
    fn entries(&mut self, wanted: usize) -> Result<Vec<GuestVirtAddr>, ScenarioError> {
        let mut functions = functions::all(self.engine.symbols());
        functions.retain(|function| function.has_entry && !function.is_init);
        let mut found = Vec::new();
        for function in functions {
            let Fate::Probed(probe) = fate::of_entry(&self.engine, &self.guest, function.start)?
            else {
                continue;
            };
            if is_one_exit(probe.strategy) && self.resumes(probe.address)? {
                found.push(probe.address);
            }
        }
        if found.len() < wanted {
            return Err(ScenarioError::TooFew {
                what: "entries",
                found: found.len(),
                wanted,
            });
        }
        let stride = found.len() / wanted;
        Ok(found.into_iter().step_by(stride).take(wanted).collect())
    }

    /// Returns the first instruction of the text that is as asked for.
    fn instruction(
        &mut self,
        image: &Image,
        text: &str,
        strategy: Strategy,
        what: &'static str,
    ) -> Result<ProbeInfo, ScenarioError> {
        let mut functions = functions::all(self.engine.symbols());
        functions.retain(|function| function.has_entry && !function.is_init);
        for function in functions {
            let bytes = image.bytes_at(function.start).unwrap_or_default();
            let len = bytes.len().min(function.size as usize);
            let decoder = iced_x86::Decoder::with_ip(
                64,
                &bytes[..len],
                function.start.0,
                iced_x86::DecoderOptions::NONE,
            );
            for insn in decoder {
                let at = GuestVirtAddr(insn.ip());
                let Fate::Probed(probe) = fate::of_instruction(&self.engine, &self.guest, at)?
                else {
                    continue;
                };
                let fits = probe.strategy == strategy && probe.instruction.starts_with(text);
                if fits && self.resumes(at)? {
                    return Ok(*probe);
                }
            }
        }
        Err(ScenarioError::TooFew {
            what,
            found: 0,
            wanted: 1,
        })
    }

    /// Returns true if the vCPU goes on at once after a hit there, with these registers.
    fn resumes(&mut self, at: GuestVirtAddr) -> Result<bool, ScenarioError> {
        let probes = self.engine.register(&self.guest, &[fate::spec(at)])?;
        let before = std::mem::replace(&mut self.sites, vec![at]);
        self.prepare();
        let resumed = self.hit() == Action::Resume;
        self.sites = before;
        let ids: Vec<_> = probes.iter().map(|probe| probe.id).collect();
        self.engine.unregister(&self.guest, &ids)?;
        Ok(resumed)
    }

    /// Brings the vCPU to the next site.
    pub fn prepare(&mut self) {
        self.vcpu.registers = self.guest.vcpu.registers;
        self.vcpu.registers.rip = self.sites[self.next % self.sites.len()].0;
        self.next += 1;
    }

    /// The hit itself.
    pub fn hit(&mut self) -> Action {
        self.engine
            .trap(&mut self.vcpu, &self.guest.ram, Trap::Breakpoint)
    }

    /// Puts the vCPU at the entry of a function with a return probe, with its return address on the stack as a call
    /// leaves it.
    ///
    /// # Errors
    /// The stack isn't there.
    pub fn prepare_call(&mut self) -> Result<(), ScenarioError> {
        self.guest.set_stack_word(STACK, CALLER)?;
        self.prepare();
        Ok(())
    }

    /// Puts the vCPU at the address to which the function returns.
    ///
    /// # Errors
    /// The stack isn't there.
    pub fn prepare_return(&mut self) -> Result<(), ScenarioError> {
        self.vcpu.registers = self.guest.vcpu.registers;
        self.vcpu.registers.rip = self.guest.stack_word(STACK)?;
        self.vcpu.registers.rsp = STACK + 8;
        Ok(())
    }

    /// Returns true if the call has returned to its caller.
    pub fn has_returned(&self) -> bool {
        self.vcpu.registers.rip == CALLER
    }

    /// The address of the vCPU's next instruction.
    pub fn at(&self) -> GuestVirtAddr {
        GuestVirtAddr(self.vcpu.registers.rip)
    }
}

/// Shuffles sites, always into the same order, which has no pattern (Fisher and Yates, with the constants of Knuth's
/// MMIX generator).
fn shuffled(sites: &[GuestVirtAddr]) -> Vec<GuestVirtAddr> {
    let mut sites = sites.to_vec();
    let mut state = 1_u64;
    for last in (1..sites.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        sites.swap(last, (state >> 33) as usize % (last + 1));
    }
    sites
}
