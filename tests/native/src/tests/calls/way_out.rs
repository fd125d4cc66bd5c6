//! The way out of generated code, from every instruction of it that is executed.

use probe_engine::detour::{Detour, Follow, Trampoline, WayOut};
use probe_engine::probe::Capture;
use row_report::proves;
use seeded_random::Random;

use super::values::{FUNCTION, after, values};
use super::{FIRST_NUMBER, LIMIT, Probed, SHARED};
use crate::cpu::DATA_LEN;
use crate::jump::draw;
use crate::steps::{self, Step};
use crate::tests::pointers::World;
use crate::tests::pointers::any_memory::{filter, task, value};

/// RFLAGS.TF.
const TRAP_FLAG: u64 = 1 << 8;
/// How deep routines call each other.
const DEEPEST: usize = 4;

/// Generated code that the CPU steps through.
struct Generated<'a> {
    detour: &'a Detour,
    shared: &'a Trampoline,
    start: u64,
}

impl Generated<'_> {
    /// Returns the offset of an address in the code that calls return to.
    fn in_shared(&self, at: u64) -> Option<u32> {
        let offset = at.checked_sub(self.start)?;
        (offset < self.shared.code.len() as u64).then_some(offset as u32)
    }

    /// Returns the offset of an address in the detour's own code.
    fn in_detour(&self, at: u64) -> Option<u32> {
        let offset = at.checked_sub(self.detour.at.0)?;
        let inside = (offset < self.detour.code.len() as u64).then_some(offset as u32);
        inside.filter(|offset| self.detour.original(*offset).is_none())
    }

    fn way_out(&self, at: u64) -> Option<WayOut> {
        match self.in_shared(at) {
            Some(offset) => self.shared.way_out(offset),
            None => self.detour.way_out(self.in_detour(at)?),
        }
    }

    /// Returns true if the address must have a way out. The first instruction of the code that calls return to has
    /// none: it stands for a return.
    fn is_generated(&self, at: u64) -> bool {
        at != self.start && (self.in_shared(at).is_some() || self.in_detour(at).is_some())
    }

    /// Returns the address of the guest's to which a step leads, and RSP there.
    fn leads_to(&self, step: &Step) -> Option<(u64, u64)> {
        let (mut at, mut rsp) = (step.rip, step.rsp);
        let mut found = None;
        for _ in 0..DEEPEST {
            match self.way_out(at) {
                Some(WayOut::Guest { offset, grown }) => {
                    assert_eq!(self.detour.original(offset), Some(0));
                    return Some((0, rsp.wrapping_add_signed(grown)));
                }
                Some(WayOut::Return { above }) => {
                    let slot = rsp.wrapping_add_signed(above);
                    at = step.read(slot).unwrap();
                    rsp = slot + 8;
                    found = Some((at, rsp));
                }
                None => break,
            }
        }
        found
    }
}

#[test]
fn every_instruction_of_generated_code_leads_to_the_guest_s_next_one() {
    const WORLDS: u64 = 6;
    const CALLS: u64 = 12;
    let name = "every_instruction_of_generated_code_leads_to_the_guest_s_next_one";
    proves(&["TR07"], name, || {
        let mut random = Random::new(0x7761_7973);
        let mut probed = Probed::unprobed();
        probed.blocks.describe_task(&task());
        let text = probed.text.address(0)..probed.text.address(4 * SHARED);
        let stack_end = probed.cpu.layout().data + DATA_LEN as u64;
        let (mut of_entries, mut of_returns) = (0, 0);
        for _ in 0..WORLDS {
            let world = World::new(&mut random);
            probed.environment.pointers = Some(world.pointers());
            for _ in 0..CALLS {
                probed.point_into(&world, &mut random);
                let context = draw::context(&mut random);
                let mut purpose = draw::purpose(&mut random, &probed.registers, &context);
                if matches!(purpose.capture, Some(Capture::Event(_))) {
                    let count = random.below(3);
                    let taken = (0..=count).map(|_| value(&world, &mut random));
                    purpose.values = taken.collect();
                    let filter = random.once_in(3).then(|| filter(&mut random, &[], 2));
                    purpose.filter = filter.map(Into::into);
                }
                if random.once_in(2) {
                    purpose.at_return = values(&world, &mut random).into();
                }
                purpose.follow = Some(Follow {
                    records: true,
                    limit: LIMIT,
                    lossless: purpose.lossless,
                });
                let detour = probed.probe((0, &FUNCTION), FIRST_NUMBER, &purpose);
                let generated = Generated {
                    detour: &detour,
                    shared: &probed.shared,
                    start: probed.text.address(SHARED),
                };
                let mut case = probed.case(0xe8, probed.text.address(0), probed.registers, &[]);
                case.registers.rflags |= TRAP_FLAG;
                let mut state = None;
                let seen = steps::record(text.clone(), stack_end, || {
                    state = Some(probed.cpu.execute(&case).unwrap());
                });
                let state = state.unwrap();
                assert_eq!(state.registers.rax, after(&probed.registers).rax);
                let caller = probed.caller();
                let entry = (0, probed.registers.rsp - 8);
                let callers = [caller, generated.start + 5].map(|at| (at, probed.registers.rsp));
                let returned = seen.iter().position(|step| step.rip == generated.start);
                let returned = returned.unwrap_or(seen.len());
                for (index, step) in seen.iter().enumerate() {
                    if !generated.is_generated(step.rip) {
                        continue;
                    }
                    let found = generated.leads_to(step).unwrap();
                    if index < returned {
                        assert_eq!(found, entry, "{step:x?} {detour:x?}");
                        of_entries += 1;
                    } else {
                        assert!(callers.contains(&found), "{found:x?} {step:x?} {detour:x?}");
                        of_returns += 1;
                    }
                }
                probed.blocks.discard(0);
            }
        }
        assert!(of_entries > 5000 && of_returns > 5000);
        format!("{of_entries} steps before calls, {of_returns} after them")
    });
}
