use guest_state::testing::TestMemory;
use guest_state::{GuestMemory, GuestPhysAddr, MemoryError, Registers, Tsc, VcpuId};

use super::layout::{
    CELL, CELLS, HEAD, RETURN_WORDS, RING_LEN, TAIL, header, position, return_header,
};
use super::testing::{Producer, Told};
use super::*;
use crate::fetch::{Fetch, Fetches};
use crate::value::Recorded;

const BLOCK_LEN: u64 = 0x1000;
const COUNTERS: u32 = 100;
const VCPUS: u64 = 2;
const RINGS_AT: u64 = 0x10_0000;

/// RAX and RFLAGS.
fn two() -> Fetches {
    [Fetch::Register(0), Fetch::Flags].into_iter().collect()
}

/// Detour 0 has no registers in its records, 1 has two, 2 all, and only 3 has records of returns. There are no other
/// detours.
fn shape(header: RecordHeader) -> Option<Shape> {
    let registers = match (header.detour, header.returns) {
        (0, false) => Some(Fetches::default()),
        (1, false) => Some(two()),
        (2, false) | (3, true) => Some(Fetches::ALL),
        _ => None,
    };
    registers.map(Shape::of)
}

struct Guest {
    memory: TestMemory,
    rings: Rings,
}

fn place(vcpu: u64) -> VcpuMemory {
    VcpuMemory {
        block: GuestPhysAddr(vcpu * BLOCK_LEN),
        ring: GuestPhysAddr(RINGS_AT + vcpu * RING_LEN),
    }
}

impl Guest {
    fn new() -> Self {
        let memory = TestMemory::new((RINGS_AT + VCPUS * RING_LEN) as usize);
        let mut rings = Rings::new((0..VCPUS).map(place), COUNTERS);
        rings.init(&memory).unwrap();
        Self { memory, rings }
    }

    fn put(&self, at: GuestPhysAddr, word: u64) {
        self.memory.write(at, &word.to_le_bytes()).unwrap();
    }

    fn word(&self, at: GuestPhysAddr) -> u64 {
        self.memory.read_u64(at).unwrap()
    }

    fn block_word(&self, vcpu: u64, offset: u64) -> u64 {
        self.word(place(vcpu).block.wrapping_add(offset))
    }

    fn reserve(&self, vcpu: u64, words: u8) -> Option<u64> {
        let producer = Producer { place: place(vcpu) };
        producer.reserve(&self.memory, words).unwrap()
    }

    /// Makes what is reserved at `at` a record of detour 1.
    fn finish(&self, vcpu: u64, at: u64, tsc: u64) {
        let producer = Producer { place: place(vcpu) };
        let words = [tsc, 7, tsc + 1, tsc + 2];
        producer.fill(&self.memory, at, &words).unwrap();
        producer.commit(&self.memory, at, header(1, 5)).unwrap();
    }

    /// Writes a record of detour 1; `false` if there is no room.
    fn push(&self, vcpu: u64, tsc: u64) -> bool {
        let at = self.reserve(vcpu, 5);
        at.map(|at| self.finish(vcpu, at, tsc)).is_some()
    }

    fn drain(&mut self) -> (RingsRead, Vec<Told>) {
        let mut records = vec![];
        let drained = self
            .rings
            .drain(&self.memory, shape, |record| records.push(record.into()));
        assert_eq!(drained.records, records.len() as u64);
        (drained, records)
    }

    fn tscs(&mut self) -> Vec<u64> {
        let (drained, records) = self.drain();
        assert_eq!(drained.damaged, 0);
        records.iter().map(|record| record.tsc.0).collect()
    }

    /// Returns true if all of a ring is zero.
    fn is_clear(&self, vcpu: u64) -> bool {
        let mut ring = vec![0; RING_LEN as usize];
        self.memory.read(place(vcpu).ring, &mut ring).unwrap();
        ring.iter().all(|byte| *byte == 0)
    }
}

#[test]
fn a_record_comes_with_all_that_the_detour_has_written() {
    let mut guest = Guest::new();
    assert!(guest.push(1, 100));
    let all: Vec<_> = (0..19).map(|word| 1000 + word).collect();
    let producer = Producer { place: place(0) };
    let at = guest.reserve(0, 20).unwrap();
    producer.fill(&guest.memory, at, &all).unwrap();
    producer.commit(&guest.memory, at, header(2, 20)).unwrap();
    let at = guest.reserve(0, 3).unwrap();
    producer.fill(&guest.memory, at, &[5, 0]).unwrap();
    producer.commit(&guest.memory, at, header(0, 3)).unwrap();
    let (drained, records) = guest.drain();
    let expected = RingsRead {
        records: 3,
        ..RingsRead::default()
    };
    assert_eq!(drained, expected);
    let record = |vcpu, detour, tsc, task, registers| Told {
        vcpu: VcpuId(vcpu),
        detour,
        tsc: Tsc(tsc),
        task,
        registers,
        context: None,
        values: Recorded::default(),
        call: None,
    };
    let registers = Registers {
        rax: 1002,
        rcx: 1003,
        rdx: 1004,
        rbx: 1005,
        rsp: 1006,
        rbp: 1007,
        rsi: 1008,
        rdi: 1009,
        r8: 1010,
        r9: 1011,
        r10: 1012,
        r11: 1013,
        r12: 1014,
        r13: 1015,
        r14: 1016,
        r15: 1017,
        rip: 0,
        rflags: 1018,
    };
    let two = Registers {
        rax: 101,
        rflags: 102,
        ..Registers::default()
    };
    let expected = [
        record(0, 2, 1000, 1001, registers),
        record(0, 0, 5, 0, Registers::default()),
        record(1, 1, 100, 7, two),
    ];
    assert_eq!(records, expected);
    assert_eq!(guest.block_word(0, TAIL), position(0, 23 * 8));
    assert_eq!(guest.block_word(1, TAIL), position(1, 5 * 8));
    assert!(guest.is_clear(0) && guest.is_clear(1));
    assert_eq!(guest.drain().0, RingsRead::default());
}

#[test]
fn rounds_over_rounds_arrive_once_and_in_order_though_records_go_past_the_end() {
    let mut guest = Guest::new();
    let (mut next, mut expected) = (0, 0);
    // Not a divisor of the ring's length.
    for batch in [1_u64, 100_003, 3, 104_857, 70_001, 5, 104_000] {
        for _ in 0..batch {
            assert!(guest.push(0, next), "{next}");
            next += 1;
        }
        for tsc in guest.tscs() {
            assert_eq!(tsc, expected);
            expected += 1;
        }
        assert_eq!(expected, next);
    }
    assert!(next * 40 > 3 * RING_LEN && guest.is_clear(0));
}

#[test]
fn a_full_ring_takes_no_more_and_loses_nothing_of_what_it_took() {
    let mut guest = Guest::new();
    let taken = (0..).find(|tsc| !guest.push(0, *tsc)).unwrap();
    assert_eq!(taken, RING_LEN / 40);
    assert_eq!(guest.reserve(0, (RING_LEN % 40 / 8) as u8 + 1), None);
    assert_eq!(guest.tscs(), (0..taken).collect::<Vec<_>>());
    assert!(guest.push(0, 7));
    assert_eq!(guest.tscs(), [7]);
}

#[test]
fn an_unfinished_record_holds_up_its_own_ring_only() {
    let mut guest = Guest::new();
    guest.push(0, 1);
    let open = guest.reserve(0, 5).unwrap();
    guest.push(0, 3);
    guest.push(1, 4);
    let (drained, records) = guest.drain();
    let tscs: Vec<_> = records.iter().map(|record| record.tsc.0).collect();
    assert_eq!((tscs, drained.damaged), (vec![1, 4], 0));
    assert!(drained.is_blocked() && drained.blocked[0] && !drained.blocked[1]);
    assert!(guest.drain().0.is_blocked());
    guest.finish(0, open, 2);
    assert_eq!(guest.tscs(), [2, 3]);
    assert!(!guest.drain().0.is_blocked());
}

#[test]
fn damaged_records_are_skipped_and_later_ones_are_read() {
    for (bad, words) in [
        // No header, another beginning, something in the unused bits.
        (1, 5),
        (header(1, 5) ^ 1 << 63, 5),
        (header(1, 5) | 1 << 40, 5),
        // Not as long as that detour's records, too short or too long for any.
        (header(1, 4), 4),
        (header(1, 6), 6),
        (header(1, 0), 5),
        (header(1, 2), 2),
        (header(1, 21), 21),
        (header(1, 255), 255),
        // A detour that doesn't exist.
        (header(3, 5), 5),
        (header(u32::MAX, 3), 3),
        // Longer than what was reserved.
        (header(2, 20), 5),
    ] {
        let mut guest = Guest::new();
        guest.push(0, 1);
        let at = guest.reserve(0, words).unwrap();
        guest.put(Producer { place: place(0) }.phys(at), bad);
        if words > 5 {
            // What is behind it can't be found.
            guest.push(0, 2);
        }
        guest.push(1, 3);
        let (drained, records) = guest.drain();
        let tscs: Vec<_> = records.iter().map(|record| record.tsc.0).collect();
        assert_eq!((tscs, drained.damaged), (vec![1, 3], 1), "{bad:#x}");
        assert!(!drained.is_blocked() && guest.is_clear(0), "{bad:#x}");
        assert_eq!(guest.block_word(0, HEAD), guest.block_word(0, TAIL));
        guest.push(0, 4);
        assert_eq!(guest.tscs(), [4], "{bad:#x}");
    }
}

#[test]
fn a_head_that_cannot_be_lets_the_ring_begin_anew() {
    let tail = position(1, 40);
    for head in [
        0,
        u64::MAX,
        tail - 8,
        tail + 1,
        tail + 84,
        tail + RING_LEN + 8,
        position(0, 80),
        position(2, 80),
    ] {
        let mut guest = Guest::new();
        guest.push(1, 1);
        assert_eq!(guest.tscs(), [1]);
        guest.push(1, 2);
        guest.put(place(1).block, head);
        let (drained, records) = guest.drain();
        assert_eq!((drained.damaged, records.len()), (1, 0), "{head:#x}");
        assert!(guest.is_clear(1), "{head:#x}");
        guest.push(1, 3);
        assert_eq!(guest.tscs(), [3], "{head:#x}");
    }
}

#[test]
fn a_head_that_is_only_ahead_waits_for_records_that_may_still_come() {
    let mut guest = Guest::new();
    guest.put(place(0).block, RING_LEN);
    let (drained, records) = guest.drain();
    assert_eq!((drained.damaged, records.len()), (0, 0));
    assert!(drained.blocked[0]);
    assert!(!guest.push(0, 1), "it is full");
}

#[test]
fn a_ring_that_was_damaged_does_not_wait_for_ever() {
    let mut guest = Guest::new();
    guest.reserve(0, 5).unwrap();
    guest.push(0, 2);
    guest.push(1, 3);
    let late = guest.reserve(1, 5).unwrap();
    guest.push(1, 4);
    assert_eq!(guest.tscs(), [3]);
    // An unfinished record in a ring that isn't damaged may still be finished.
    for _ in 0..1000 {
        assert!(guest.drain().0.blocked[0]);
    }
    guest.put(place(0).block.wrapping_add(TAIL), 0x1234);
    let mut found = (0..1000).map(|_| guest.drain());
    let found = found.find(|(_, records)| !records.is_empty());
    let (drained, records) = found.expect("it waits for ever");
    assert_eq!(
        (drained.damaged, records[0].tsc, records.len()),
        (1, Tsc(2), 1)
    );
    assert!(guest.drain().0.blocked[1], "the other one is sound");
    guest.finish(1, late, 5);
    assert_eq!(guest.tscs(), [5, 4]);

    // A writer that goes on again and again has the full time for each record.
    for tsc in 10..200 {
        let open = guest.reserve(0, 5).unwrap();
        assert!(guest.drain().0.blocked[0]);
        guest.finish(0, open, tsc);
        assert_eq!(guest.tscs(), [tsc]);
    }
}

#[test]
fn a_ring_that_was_damaged_begins_anew_when_no_vcpu_runs() {
    let mut guest = Guest::new();
    guest.push(0, 1);
    guest.reserve(0, 5).unwrap();
    guest.push(0, 2);
    let open = guest.reserve(1, 5).unwrap();
    guest.put(place(0).block.wrapping_add(TAIL), 0x1234);
    // Where no space has been reserved yet.
    let beyond = guest.block_word(0, HEAD) + 4096;
    guest.put(Producer { place: place(0) }.phys(beyond), header(1, 5));
    let mut tscs = vec![];
    let drained = guest.rings.read(&guest.memory, true, shape, |_, record| {
        tscs.push(record.tsc.0);
    });
    assert_eq!((tscs, drained.damaged), (vec![1, 2], 1));
    assert_eq!(
        drained.blocked[..2],
        [false, true],
        "the other one is sound"
    );
    assert!(guest.is_clear(0));
    assert_eq!(guest.block_word(0, HEAD), guest.block_word(0, TAIL));
    for tsc in 10..200 {
        guest.push(0, tsc);
        assert_eq!(guest.tscs(), [tsc]);
    }
    guest.finish(1, open, 3);
    assert_eq!(guest.tscs(), [3]);
}

#[test]
fn the_guests_tail_is_for_the_guest_only() {
    let mut guest = Guest::new();
    guest.push(0, 1);
    guest.put(place(0).block.wrapping_add(TAIL), 0x1234);
    let (drained, records) = guest.drain();
    assert_eq!((drained.damaged, records.len()), (1, 1));
    assert_eq!(guest.block_word(0, TAIL), position(0, 40));
    guest.put(place(0).block.wrapping_add(TAIL), 0);
    assert_eq!(guest.drain().0.damaged, 1);
    assert_eq!(guest.block_word(0, TAIL), position(0, 40));
}

#[test]
fn beginning_again_forgets_what_was_there() {
    let mut guest = Guest::new();
    guest.push(0, 1);
    guest.reserve(0, 5);
    guest.push(1, 2);
    guest.put(place(0).block.wrapping_add(CELLS), 0x5_0000_0005);
    guest.rings.count(&guest.memory, 0..COUNTERS).unwrap();
    guest.rings.init(&guest.memory).unwrap();
    assert!(guest.is_clear(0) && guest.is_clear(1));
    assert_eq!(guest.drain().0, RingsRead::default());
    guest.rings.count(&guest.memory, 0..COUNTERS).unwrap();
    assert_eq!((guest.rings.total(0), guest.rings.total(1)), (0, 0));
    guest.push(0, 3);
    assert_eq!(guest.tscs(), [3]);
}

#[test]
fn counters_are_added_up_over_vcpus_and_past_their_end() {
    let mut guest = Guest::new();
    let set = |guest: &Guest, vcpu, cell: u32, value: u32| {
        let at = place(vcpu)
            .block
            .wrapping_add(CELLS + u64::from(cell) * CELL);
        guest.memory.write(at, &value.to_le_bytes()).unwrap();
    };
    let last = COUNTERS - 1;
    set(&guest, 0, 3, 10);
    set(&guest, 1, 3, u32::MAX);
    set(&guest, 1, last, 1);
    assert_eq!(guest.rings.total(3), 0, "nobody has looked");
    guest.rings.count(&guest.memory, 3..4).unwrap();
    assert_eq!(guest.rings.total(3), 10 + u64::from(u32::MAX));
    assert_eq!(guest.rings.total(last), 0);
    set(&guest, 1, 3, 5);
    // Numbers beyond the last counter are ignored.
    set(&guest, 0, COUNTERS, 1);
    guest.rings.count(&guest.memory, 0..u32::MAX).unwrap();
    assert_eq!(guest.rings.total(3), 10 + u64::from(u32::MAX) + 6);
    assert_eq!(guest.rings.total(last), 1);
    for cell in [0, COUNTERS, u32::MAX] {
        assert_eq!(guest.rings.total(cell), 0);
    }
    guest.rings.count(&guest.memory, 7..7).unwrap();
}

#[test]
fn rings_that_are_no_memory_give_nothing() {
    let memory = TestMemory::new(0x1000);
    let beyond = VcpuMemory {
        block: GuestPhysAddr(0),
        ring: GuestPhysAddr(0x10_0000),
    };
    let mut rings = Rings::new([beyond], 10);
    assert!(matches!(rings.init(&memory), Err(MemoryError { .. })));
    memory.write(GuestPhysAddr(HEAD), &[40]).unwrap();
    let drained = rings.drain(&memory, shape, |record| panic!("{record:?}"));
    assert_eq!((drained.records, drained.damaged), (0, 1));
}

/// Memory in which a word changes when a given number of reads have been done.
struct Changing {
    memory: TestMemory,
    reads: std::cell::Cell<usize>,
    change: (usize, GuestPhysAddr, u64),
}

impl GuestMemory for Changing {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(at, into)?;
        self.reads.set(self.reads.get() + 1);
        let (reads, at, word) = self.change;
        if self.reads.get() == reads {
            self.memory.write(at, &word.to_le_bytes())?;
        }
        Ok(())
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(at, from)
    }
}

#[test]
fn a_record_that_changes_while_it_is_read_is_one_record_or_none() {
    let ring = place(0).ring;
    // The reads are of the head, the tail, the records, and the same records again; the change
    // comes after `reads` of them.
    for (reads, at, word, expected, damaged) in [
        // A record becomes whole after the headers were read: it stays for the next drain.
        (3, 40, header(1, 5), vec![1], 0),
        // It is whole, and then no record any more.
        (3, 0, 0, vec![], 1),
        (3, 0, header(0, 3), vec![1], 1),
        (3, 0, header(2, 20), vec![], 1),
        // What was read the second time counts, whatever is written afterwards.
        (4, 0, 0, vec![1], 0),
    ] {
        let guest = Guest::new();
        guest.push(0, 1);
        guest.reserve(0, 5);
        let changing = Changing {
            memory: guest.memory,
            reads: 0.into(),
            change: (reads, ring.wrapping_add(at), word),
        };
        let mut rings = guest.rings;
        let mut found = vec![];
        let drained = rings.drain(&changing, shape, |record| found.push(record.tsc.0));
        assert_eq!(
            (found, drained.damaged),
            (expected, damaged),
            "{reads} {at} {word:#x}"
        );
    }
}

#[test]
fn a_return_s_record_tells_the_call_too() {
    let mut guest = Guest::new();
    let words: Vec<_> = (1..RETURN_WORDS).collect();
    let producer = Producer { place: place(0) };
    for detour in [3, 2] {
        let at = guest.reserve(0, RETURN_WORDS as u8).unwrap();
        producer.fill(&guest.memory, at, &words).unwrap();
        let header = return_header(detour, RETURN_WORDS as u8);
        producer.commit(&guest.memory, at, header).unwrap();
    }
    let (drained, records) = guest.drain();
    assert_eq!((drained.records, drained.damaged), (1, 1), "2 has no such");
    let record = &records[0];
    let call = record.call.as_ref().unwrap();
    assert_eq!((record.tsc, record.task), (Tsc(1), 2));
    assert_eq!((record.registers.rax, record.registers.rflags), (3, 19));
    assert_eq!((call.caller, call.entry_tsc), (20, Tsc(21)));
    assert_eq!((call.entry.rax, call.entry.rflags), (22, 38));
    let context = record.context.as_ref().unwrap();
    assert_eq!(
        (context.pid, context.tgid, context.thread_flags),
        (39, 0, 43)
    );
}
