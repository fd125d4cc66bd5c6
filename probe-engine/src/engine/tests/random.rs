//! After any sequence of operations on probes, the text is the kernel's own, with an int3 at exactly the armed probes.

use std::collections::BTreeSet;

use guest_state::{Action, StepEnd};
use proptest::prelude::*;

use super::ended;
use super::fixture::{Fixture, PHYS, STACK, TEXT, spec, vcpu_at};
use crate::arena::SLOT_AREA;
use crate::probe::{ProbeId, ProbeInfo, ProbeKind, Switch};

const CALLER: u64 = TEXT + 0x700;

/// Places, their offsets, lengths of their instructions, and whether they take a slot.
const PLACES: [(&str, u64, u64, bool); 9] = [
    ("plain", 0x9, 1, false),
    ("plain+0xa", 0xa, 3, false),
    ("traced+0x8", 0x48, 3, true),
    ("stepped+0x7", 0x287, 4, true),
    ("copied", 0x2c0, 2, true),
    ("copied+0x2", 0x2c2, 3, true),
    ("copied+0x5", 0x2c5, 2, true),
    ("copied+0x7", 0x2c7, 2, true),
    ("copied+0x9", 0x2c9, 2, false),
];
const KINDS: [&str; 4] = ["", "%post", "%both", "%return"];

#[derive(Debug, Clone, Copy)]
enum Step {
    Register {
        place: usize,
        kind: usize,
        enabled: bool,
    },
    /// A batch whose last probe is refused.
    Refused {
        place: usize,
    },
    Unregister(prop::sample::Index),
    Enable(prop::sample::Index, bool),
    ArmAll(bool),
    Hit {
        place: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    // Most probes are at two places, so that they meet each other.
    let place = prop_oneof![Just(0), Just(4), 0..PLACES.len()];
    prop_oneof![
        4 => (place.clone(), 0..KINDS.len(), any::<bool>())
            .prop_map(|(place, kind, enabled)| Step::Register { place, kind, enabled }),
        1 => place.clone().prop_map(|place| Step::Refused { place }),
        2 => any::<prop::sample::Index>().prop_map(Step::Unregister),
        2 => any::<(prop::sample::Index, bool)>().prop_map(|(index, on)| Step::Enable(index, on)),
        1 => any::<bool>().prop_map(Step::ArmAll),
        6 => place.prop_map(|place| Step::Hit { place }),
    ]
}

/// The expected state of a probe.
#[derive(Debug, Clone, Copy)]
struct Expected {
    id: ProbeId,
    offset: u64,
    kind: ProbeKind,
    enabled: bool,
}

struct Model {
    f: Fixture,
    text: Vec<u8>,
    probes: Vec<Expected>,
    disarmed: bool,
    /// Offsets of instructions that have been given a slot.
    slots: BTreeSet<u64>,
    names: u32,
    last: Vec<ProbeInfo>,
}

impl Model {
    fn new() -> Self {
        let f = Fixture::with_arena_and(ended::know);
        let text = f.bytes_at(PHYS, 0x3000);
        Self {
            f,
            text,
            probes: vec![],
            disarmed: false,
            slots: BTreeSet::new(),
            names: 0,
            last: vec![],
        }
    }

    /// Returns the probes that a hit at an offset belongs to.
    fn hit(&self, offset: u64) -> Vec<Expected> {
        let here = |probe: &&Expected| probe.offset == offset && probe.enabled;
        let probes = self.probes.iter().filter(here).copied();
        probes.filter(|_| !self.disarmed).collect()
    }

    fn run(&mut self, step: Step) {
        let guest = self.f.guest();
        match step {
            Step::Register {
                place,
                kind,
                enabled,
            } => {
                let (name, offset, _, slot) = PLACES[place];
                self.names += 1;
                let mut spec = spec(&format!("p{}={name}{}", self.names, KINDS[kind]));
                spec.enabled = enabled;
                let kind = spec.kind;
                match self.f.engine.register(&guest, &[spec]) {
                    Ok(infos) => self.probes.push(Expected {
                        id: infos[0].id,
                        offset,
                        kind,
                        enabled,
                    }),
                    Err(error) => {
                        let is_return = matches!(kind, ProbeKind::Return { .. });
                        assert!(is_return && place != 0, "{error}");
                        return;
                    }
                }
                self.slots.extend(slot.then_some(offset));
            }
            Step::Refused { place } => {
                let (name, offset, _, slot) = PLACES[place];
                let batch = [format!("refused={name}"), "plain+0x1".to_owned()];
                let specs = batch.map(|place| spec(&place));
                self.f.engine.register(&guest, &specs).unwrap_err();
                self.slots.extend(slot.then_some(offset));
            }
            Step::Unregister(index) if !self.probes.is_empty() => {
                let probe = self.probes.remove(index.index(self.probes.len()));
                self.f.engine.unregister(&guest, &[probe.id]).unwrap();
            }
            Step::Enable(index, on) if !self.probes.is_empty() => {
                let probe = index.get_mut(&mut self.probes);
                probe.enabled = on;
                self.f
                    .engine
                    .switch(&guest, Some(&[probe.id]), Switch::Enabled(on))
                    .unwrap();
            }
            Step::Unregister(_) | Step::Enable(..) => {}
            Step::ArmAll(on) => {
                self.disarmed = !on;
                self.f
                    .engine
                    .switch(&guest, None, Switch::Enabled(on))
                    .unwrap();
            }
            Step::Hit { place } => self.execute(place),
        }
    }

    /// A vCPU executes the instruction at a place, with whatever probes are there. Its task has the stack of the task
    /// before, which has ended.
    fn execute(&self, place: usize) {
        let (_, offset, len, _) = PLACES[place];
        let (f, engine, memory) = (&self.f, &self.f.engine, &*self.f.memory);
        f.set_word(STACK, CALLER);
        let mut vcpu = vcpu_at(offset);
        ended::next(f, &mut vcpu);
        let r = &mut vcpu.registers;
        (r.rax, r.rcx, r.rbx, r.rsi, r.rdi) = (1, 3, 0x9200, 0x9000, 0x9100);
        let before = (vcpu.registers, f.events().len());
        let probes = self.hit(offset);
        let action = f.trap(&mut vcpu);
        if probes.is_empty() {
            // It counts as a trap from before the breakpoint was removed.
            assert_eq!(action, Action::Resume);
            assert_eq!((vcpu.registers, f.events().len()), before);
            return;
        }
        if let Action::Step(step) = action {
            if step.alone {
                assert!(engine.lift_for_step(memory, &mut vcpu));
                assert_eq!(f.byte(offset), self.text[offset as usize]);
            }
            vcpu.registers.rip += len;
            let end = engine.after_step(memory, &mut vcpu, StepEnd::Done);
            assert_eq!(end, Action::Resume);
        } else {
            assert_eq!(action, Action::Resume);
            if SLOT_AREA.contains(&vcpu.registers.rip.into()) {
                vcpu.registers.rip += len;
                match f.arena_bytes(vcpu.registers.rip, 1)[0] {
                    0xcc => assert_eq!(f.trap(&mut vcpu), Action::Resume),
                    // The copy's jump back.
                    _ => vcpu.registers.rip = TEXT + offset + len,
                }
            }
        }
        assert_eq!(vcpu.registers.rip, TEXT + offset + len);
        let events = |probe: &Expected| match probe.kind {
            ProbeKind::Instruction { post, .. } => 1 + usize::from(post),
            _ => 0,
        };
        let expected: usize = probes.iter().map(events).sum();
        assert_eq!(f.events().len() - before.1, expected);
    }

    fn check(&mut self) {
        let mut text = self.text.clone();
        for probe in &self.probes {
            if probe.enabled && !self.disarmed {
                text[probe.offset as usize] = 0xcc;
            }
        }
        assert!(self.f.bytes_at(PHYS, text.len()) == text);
        let list = self.f.engine.list();
        let ids = |probes: &[ProbeInfo]| probes.iter().map(|it| it.id).collect::<Vec<_>>();
        let mut expected: Vec<_> = self.probes.iter().map(|probe| probe.id).collect();
        expected.sort_unstable();
        assert_eq!(ids(&list), expected);
        for info in &list {
            if let Some(last) = self.last.iter().find(|last| last.id == info.id) {
                let counters = |it: &ProbeInfo| [it.hits, it.missed, it.exits];
                let grown = counters(info).into_iter().zip(counters(last));
                assert!(grown.into_iter().all(|(now, then)| now >= then));
            }
        }
        self.last = list;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_text_has_breakpoints_at_the_armed_probes_and_nowhere_else(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
            model.check();
        }
        let ids: Vec<_> = model.probes.drain(..).map(|probe| probe.id).collect();
        model.f.unregister(&ids);
        model.check();
        prop_assert!(!model.f.engine.debugging().breakpoints);
        prop_assert!([CALLER, 0].contains(&model.f.word(STACK)));
        prop_assert_eq!(model.f.reclaim(), model.slots.len());
    }
}
