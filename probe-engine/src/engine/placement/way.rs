//! How an instruction is executed under its probe: decided once, when the probe is placed.

use std::sync::Arc;

use guest_state::{GuestMemory, GuestVirtAddr};

use crate::emulate::{Touched, compile};
use crate::engine::Engine;
use crate::engine::sites::foresight::Foresight;
use crate::engine::sites::site::Way;
use crate::insn::{self, Decoded};
use crate::probe::Strategy;
use crate::relocate::{Raises, Vector};

impl Engine {
    /// Returns the cheapest right way to execute the instruction at `at`, and why it is that.
    /// `original` are its bytes.
    pub(crate) fn way(
        &self,
        memory: &dyn GuestMemory,
        code: &Decoded,
        original: &[u8],
        at: GuestVirtAddr,
        expects_fault: bool,
    ) -> (Arc<Way>, Strategy, String) {
        let why = match compile(&code.insn, code.prefixes) {
            Ok(compiled) => {
                let reason = "the engine does it".to_owned();
                let touched = Touched::by(&code.insn, false);
                let way = self.shared_ways.emulate(original, compiled, touched);
                return (way, Strategy::Emulate, reason);
            }
            Err(why) => why,
        };
        let repeats = insn::is_rep_string(&code.insn);
        let foresight = Foresight::of(&code.insn, repeats);
        let raises = Raises::by(&code.insn);
        let copy = self.arena.copy_of(memory, code, original, at);
        let held_back = match (&copy, raises) {
            (Err(why_not), _) => Some(why_not.clone()),
            (Ok(_), _) if expects_fault => Some("the kernel expects it to fault".to_owned()),
            (Ok(_), Raises::Nothing | Raises::PageFaults) => None,
            // All rounds are foreseen, and so is a quotient that is too large.
            (Ok(_), Raises::Others([Vector::PageFault])) if repeats => None,
            (Ok(_), Raises::Others([Vector::DivideError])) if foresight.knows_division() => None,
            (Ok(_), Raises::Others(_)) => {
                Some("it may raise an exception that can't be foreseen".to_owned())
            }
        };
        match (copy, held_back) {
            (Ok(copy), None) => {
                let reason = format!("{why}, but a copy of it can run elsewhere");
                let way = Way::Boost {
                    copy,
                    foresight,
                    repeats,
                };
                (Arc::new(way), Strategy::Boost, reason)
            }
            (copy, held_back) => {
                let way = Way::Step {
                    copy: copy.ok(),
                    foresight,
                    repeats,
                    raises: raises.vectors(),
                };
                let reason = match held_back {
                    Some(held_back) => format!("{why}, and {held_back}"),
                    None => why.to_owned(),
                };
                (Arc::new(way), Strategy::Step, reason)
            }
        }
    }
}
