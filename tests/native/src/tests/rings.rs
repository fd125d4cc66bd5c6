//! Rings at their limits, and vCPUs that share detours.

use guest_state::{GuestVirtAddr, Registers};
use probe_engine::detour::{Dead, Detour, Purpose, Tag, generate};
use probe_engine::fetch::Fetches;
use probe_engine::probe::Capture;
use probe_engine::ring::layout::{RECORD_VALUES, RING_LEN};
use row_report::proves;

use crate::case::Case;
use crate::cpu::{Cpu, State};
use crate::jump::blocks::Blocks;
use crate::jump::{region, single};

/// `mov $7,%eax`
const CODE: [u8; 5] = [0xb8, 7, 0, 0, 0];
const CELL: u32 = 4;
/// Bytes of a full record.
const LEN: u64 = RECORD_VALUES + 8 * 17;
/// The exception of an int3.
const BREAKPOINT: u64 = 3;

/// A probed instruction, two vCPUs' memory, and the detour for both.
struct Probed {
    cpu: Cpu,
    blocks: Blocks,
    case: Case,
    patched: Vec<u8>,
    detour: Detour,
}

impl Probed {
    fn new(lossless: bool) -> Self {
        let cpu = Cpu::new().unwrap();
        let blocks = Blocks::new(2).unwrap();
        let layout = cpu.layout();
        let values = std::array::from_fn(|number| 0x1111_1111_1111 * number as u64);
        let registers = Registers {
            rsp: layout.data + 4096,
            rflags: 0x8d5,
            ..Registers::numbered(values)
        };
        let mut case = Case::exactly(&CODE, registers, &[], layout).unwrap();
        case.gs_base = blocks.gs_base(0);
        let region = region::at(layout.code, &CODE).unwrap();
        let purpose = Purpose {
            capture: Some(Capture::FULL),
            lossless,
            ..Purpose::default()
        };
        let tag = Tag {
            number: 9,
            cell: CELL,
        };
        let environment = blocks.environment(blocks.gs_base(0));
        let at = GuestVirtAddr(layout.copy);
        let detour = generate(&environment, &region, Dead::default(), &purpose, tag, at).unwrap();
        Self {
            patched: region::patched(&region, &detour),
            cpu,
            blocks,
            case,
            detour,
        }
    }

    /// Executes the probed instruction.
    fn hit(&mut self) -> State {
        let entry = self.cpu.layout().code;
        self.go_on(&self.case.clone(), entry)
    }

    fn go_on(&mut self, case: &Case, entry: u64) -> State {
        self.cpu
            .execute_patched(case, &self.patched, &self.detour.code, entry)
            .unwrap()
    }

    /// Checks that the instruction was executed, and nothing else changed.
    fn check(&self, state: &State) {
        let expected = Registers {
            rax: 7,
            rip: self.cpu.layout().code + CODE.len() as u64,
            ..self.case.registers
        };
        assert_eq!((state.registers, state.fault), (expected, None));
    }

    fn expected_record(&self) -> Vec<u64> {
        single::recorded(Fetches::ALL, &self.case.registers)
    }

    /// Checks that the detour traps. Returns the state with which the vCPU goes on.
    fn trapped(&mut self) -> Case {
        let full = self.detour.full.unwrap();
        let state = self.hit();
        assert_eq!(state.fault.map(|fault| fault.vector), Some(BREAKPOINT));
        let trap = self.cpu.layout().copy + u64::from(full.trap);
        assert_eq!(state.registers.rip, trap + 1);
        let mut case = self.case.clone();
        case.registers = state.registers;
        case.data = state.data;
        case
    }
}

#[test]
fn a_record_that_crosses_the_end_of_a_ring_is_in_one_piece() {
    let mut probed = Probed::new(false);
    for start in [RING_LEN - 8, RING_LEN - LEN + 8, 3 * RING_LEN - 80] {
        probed.blocks.set_position(0, start, start);
        let state = probed.hit();
        probed.check(&state);
        let records = probed.blocks.drain(0);
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].registers, probed.expected_record());
    }
}

#[test]
fn a_full_ring_counts_what_it_loses_and_changes_nothing_else() {
    let name = "a_full_ring_counts_what_it_loses_and_changes_nothing_else";
    proves(&["JP07"], name, || {
        let mut probed = Probed::new(false);
        // There is room for two.
        probed
            .blocks
            .set_position(0, 9 * RING_LEN - 2 * LEN, 8 * RING_LEN);
        for lost in [0, 0, 1, 2, 3] {
            let state = probed.hit();
            probed.check(&state);
            assert_eq!(probed.blocks.cell(0, CELL), lost);
        }
        probed.blocks.discard(0);
        probed.hit();
        assert_eq!(probed.blocks.drain(0).len(), 1);
        assert_eq!(probed.blocks.cell(0, CELL), 3);
        String::new()
    });
}

#[test]
fn a_lossless_detour_traps_and_tries_again_when_there_is_room() {
    let name = "a_lossless_detour_traps_and_tries_again_when_there_is_room";
    proves(&["JP07"], name, || {
        let mut probed = Probed::new(true);
        probed.blocks.set_position(0, RING_LEN, 0);
        let trapped = probed.trapped();
        // There is still no room: it traps again.
        let state = probed.go_on(&trapped, trapped.registers.rip);
        assert_eq!(state.registers.rip, trapped.registers.rip);
        probed.blocks.discard(0);
        let state = probed.go_on(&trapped, trapped.registers.rip);
        probed.check(&state);
        let records = probed.blocks.drain(0);
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].registers, probed.expected_record());
        assert_eq!(probed.blocks.cell(0, CELL), 0);
        String::new()
    });
}

#[test]
fn a_lossless_detour_gives_up_when_it_is_told_to() {
    let mut probed = Probed::new(true);
    probed.blocks.set_position(0, RING_LEN, 0);
    let trapped = probed.trapped();
    let gives_up = probed.detour.full.unwrap().gives_up;
    let state = probed.go_on(&trapped, probed.cpu.layout().copy + u64::from(gives_up));
    probed.check(&state);
    assert_eq!(probed.blocks.cell(0, CELL), 1);
}

#[test]
fn head_and_tail_of_two_vcpus_are_never_taken_for_one_s() {
    // This is as if the vCPU changed between the reads of head and tail.
    let mut probed = Probed::new(false);
    for tail in [0, RING_LEN, 5 * RING_LEN] {
        probed.blocks.set_position(0, 5 * RING_LEN, 5 * RING_LEN);
        probed.blocks.set_tail_of_other(0, 1, tail);
        let state = probed.hit();
        probed.check(&state);
        assert_eq!(probed.blocks.head(0), 5 * RING_LEN);
    }
}

#[test]
fn each_vcpu_changes_its_own_block_and_ring() {
    let mut probed = Probed::new(false);
    for vcpu in [1, 0, 1] {
        probed.case.gs_base = probed.blocks.gs_base(vcpu);
        let state = probed.hit();
        probed.check(&state);
        assert_eq!(probed.blocks.drain(1 - vcpu).len(), 0);
        let records = probed.blocks.drain(vcpu);
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].task, probed.blocks.task(vcpu));
    }
}
