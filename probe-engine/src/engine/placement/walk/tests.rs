use std::cell::Cell;

use guest_kernel::blacklist::Blacklist;
use guest_kernel::kprobes::GuestKprobes;
use guest_state::GuestPhysAddr;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::engine::placement::body::{Function, ModuleName};

const START: GuestVirtAddr = GuestVirtAddr(0xffff_ffff_8100_0000);

/// One function, which counts how much of it is read and decoded.
struct OneFunction {
    text: Vec<u8>,
    bytes_read: Cell<usize>,
    int3s_passed: Cell<usize>,
}

impl OneFunction {
    fn new(text: Vec<u8>) -> Self {
        Self {
            text,
            bytes_read: Cell::new(0),
            int3s_passed: Cell::new(0),
        }
    }

    /// Decodes up to the instruction at an offset. Returns what it is, or why it can't be probed.
    fn reach(&self, walks: &mut Walks, to: usize) -> String {
        let place = Place::Address(START.wrapping_add(to as u64));
        let walk = walks.through(self, START, to + MAX_INSTRUCTION_LEN);
        let found = walk.unwrap().unwrap().reach(self, &place, 0, to);
        format!("{:?}", found.map(|code| insn::text(&code.insn)))
    }
}

impl Body for OneFunction {
    fn module(&self) -> Option<ModuleName> {
        None
    }

    fn function(&self, _: &Place) -> Result<Function, RegisterError> {
        unreachable!("a walk is given its function")
    }

    fn text(&self, at: GuestVirtAddr, len: usize) -> Option<Result<Vec<u8>, MemoryError>> {
        assert_eq!(at, START);
        let text = &self.text[..len.min(self.text.len())];
        self.bytes_read.set(self.bytes_read.get() + text.len());
        Some(Ok(text.to_vec()))
    }

    fn phys(&self, _: GuestVirtAddr) -> Option<GuestPhysAddr> {
        None
    }

    fn kprobes(&self) -> &GuestKprobes {
        unreachable!("a walk looks for none")
    }

    fn blacklist(&self) -> &Blacklist {
        unreachable!("a walk goes through all there is")
    }

    fn has_ftrace_table(&self) -> bool {
        false
    }

    fn is_started(&self) -> bool {
        true
    }

    fn expects_fault(&self, _: GuestVirtAddr) -> bool {
        false
    }

    fn is_own_int3(&self, _: GuestVirtAddr) -> bool {
        self.int3s_passed.set(self.int3s_passed.get() + 1);
        false
    }
}

proptest! {
    #[test]
    fn a_place_of_many_is_what_it_is_by_itself(
        text in proptest::collection::vec(
            select(vec![0x90, 0xc3, 0xcc, 0xe8, 0x48, 0x89, 0x0f, 0x55, 0x00, 0x06]), 1200),
        places in proptest::collection::vec(0..1200_usize, 40),
    ) {
        let function = OneFunction::new(text);
        let mut walks = Walks::default();
        for place in places {
            let among = function.reach(&mut walks, place);
            prop_assert_eq!(among, function.reach(&mut Walks::default(), place));
        }
    }
}

#[test]
fn a_function_is_read_and_decoded_once_for_all_of_its_places() {
    const LEN: usize = 1 << 17;
    const PLACES: usize = 1 << 11;
    let rising: Vec<usize> = (1..=PLACES)
        .map(|place| place * (LEN / PLACES) - 1)
        .collect();
    let falling = rising.iter().rev().copied().collect();
    for places in [rising, falling] {
        // Padding between returns, each byte of which is an instruction.
        let mut text = vec![INT3; LEN];
        text[0] = 0xc3;
        for place in &places {
            text[*place] = 0xc3;
        }
        let function = OneFunction::new(text);
        let mut walks = Walks::default();
        let mut texts = Vec::new();
        for place in places {
            assert_eq!(
                function.reach(&mut walks, place),
                "Ok(\"ret\")",
                "{place:#x}"
            );
            texts.push(walks.0[&START].text(place + 1));
        }
        let read = function.bytes_read.get();
        assert!(read <= 4 * LEN, "{read} bytes were read");
        let passed = function.int3s_passed.get();
        assert!(
            passed <= 2 * (LEN + PLACES * STRIDE),
            "{passed} int3s were passed"
        );
        let kept: usize = WalkedText::longest(texts.iter())
            .iter()
            .map(|it| it.bytes().len())
            .sum();
        assert!(
            kept <= 3 * LEN,
            "{kept} bytes are compared with the guest's"
        );
    }
}
