//! Reading rings that the guest writes, or overwrites with garbage.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use guest_state::{GuestMemory, GuestPhysAddr, MemoryError, Registers, Tsc, VcpuId};
use probe_engine::fetch::{Fetch, Fetches};
use probe_engine::ring::layout::{
    self, CELL, CELLS, HEAD, RECORD_VALUES, RETURN_WORDS, RING_LEN, TAIL, position, return_header,
};
use probe_engine::ring::testing::{Producer, Told};
use probe_engine::ring::{RecordHeader, Rings, Shape, VcpuMemory};

use crate::input::Input;

const VCPUS: usize = 2;
/// The detour with records of returns.
const RETURNS: u32 = 3;
/// Counters in a block.
const COUNTERS: u32 = 16;
const PAGE: u64 = 4096;

/// Checks that whatever a guest writes into its rings and blocks, reading them ends, touches nothing else, and returns
/// records that a detour could have written. As long as a vCPU's own ring and block have no garbage, each of its
/// records arrives once, in order and complete, whatever other vCPUs do.
///
/// The bytes: what the guest and the host do, one after the other.
///
/// # Panics
/// If that doesn't hold.
pub fn rings(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut case = Case::new();
    while !input.0.is_empty() {
        let what = input.byte();
        let vcpu = usize::from(what >> 7);
        match what % 9 {
            0 => case.write(vcpu, input.byte(), &mut input, true),
            1 => case.write(vcpu, input.byte(), &mut input, false),
            2 => case.finish(vcpu, input.byte().into()),
            3 => case.drain(),
            4 => case.scribble_on_block(vcpu, &mut input),
            5 => case.scribble_on_ring(vcpu, &mut input),
            6 => case.skip(vcpu, input.byte().into()),
            7 => case.count(vcpu, input.byte(), input.short()),
            _ => {
                let detour = input.byte();
                for _ in 0..input.byte() {
                    case.write(vcpu, detour, &mut Input(&[]), true);
                }
            }
        }
    }
    for vcpu in 0..VCPUS {
        while !case.vcpus[vcpu].open().is_empty() {
            case.finish(vcpu, 0);
        }
    }
    case.drain();
    case.check_end();
}

/// Returns the registers in the records of the existing detours, the last of which has records of returns.
fn registers(header: RecordHeader) -> Option<Fetches> {
    match (header.detour, header.returns) {
        (0, false) => Some(Fetches::default()),
        (1, false) => Some([Fetch::Register(3), Fetch::Flags].into_iter().collect()),
        (2, false) | (RETURNS, true) => Some(Fetches::ALL),
        _ => None,
    }
}

fn shape(header: RecordHeader) -> Option<Shape> {
    registers(header).map(Shape::of)
}

/// Returns the words of the records of an existing detour, and their header.
fn layout_of(detour: u32) -> (u64, u64) {
    if detour == RETURNS {
        return (RETURN_WORDS, return_header(detour, RETURN_WORDS as u8));
    }
    let header = RecordHeader {
        detour,
        returns: false,
    };
    let registers = registers(header).unwrap().iter().count() as u64;
    let words = RECORD_VALUES / 8 + registers;
    (words, layout::header(detour, words as u8))
}

/// Returns all of a record's registers, by their numbers, and RIP.
fn values(registers: &Registers) -> [u64; 18] {
    let r = registers;
    [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15, r.rflags, r.rip,
    ]
}

/// A guest, and what the host should find in it.
struct Case {
    memory: Memory,
    rings: Rings,
    vcpus: [Vcpu; VCPUS],
    totals: [u64; COUNTERS as usize],
}

/// What one vCPU has written.
#[derive(Default)]
struct Vcpu {
    /// Its records that the host hasn't received yet.
    queue: VecDeque<Written>,
    /// True if its block or ring contains something that no detour writes.
    is_scribbled_on: bool,
    /// How many unreadable words it has written on purpose.
    damage: u64,
}

struct Written {
    at: u64,
    detour: u32,
    /// All words behind the header.
    words: Vec<u64>,
    is_whole: bool,
}

impl Vcpu {
    /// Returns the indexes in the queue of unfinished records.
    fn open(&self) -> Vec<usize> {
        let open = |(place, written): (usize, &Written)| (!written.is_whole).then_some(place);
        self.queue.iter().enumerate().filter_map(open).collect()
    }
}

fn producer(vcpu: usize) -> Producer {
    let vcpu = vcpu as u64;
    Producer {
        place: VcpuMemory {
            block: GuestPhysAddr(0x1_0000 * vcpu),
            ring: GuestPhysAddr(0x100_0000 * (vcpu + 1)),
        },
    }
}

impl Case {
    fn new() -> Self {
        let memory = Memory::default();
        let places = (0..VCPUS).map(|vcpu| producer(vcpu).place);
        // This is what `Rings::init` does, except that it also reads all of the empty rings.
        for (vcpu, number) in (0..VCPUS).zip(0..) {
            for offset in [HEAD, TAIL] {
                let at = producer(vcpu).place.block.wrapping_add(offset);
                let start = position(number, 0).to_le_bytes();
                memory.write(at, &start).unwrap();
            }
        }
        Self {
            rings: Rings::new(places, COUNTERS),
            memory,
            vcpus: Default::default(),
            totals: [0; COUNTERS as usize],
        }
    }

    /// Reserves space for a record and writes it, whole or without its header, if there is space.
    fn write(&mut self, vcpu: usize, detour: u8, values: &mut Input<'_>, is_whole: bool) {
        let detour = u32::from(detour % 4);
        let (words, _) = layout_of(detour);
        let at = producer(vcpu).reserve(&self.memory, words as u8).unwrap();
        let Some(at) = at else {
            return;
        };
        let first = values.word();
        let words = (1..words).map(|word| first.wrapping_mul(word)).collect();
        self.vcpus[vcpu].queue.push_back(Written {
            at,
            detour,
            words,
            is_whole: false,
        });
        if is_whole {
            self.commit(vcpu, self.vcpus[vcpu].queue.len() - 1);
        }
    }

    /// Finishes one of the unfinished records of a vCPU.
    fn finish(&mut self, vcpu: usize, which: usize) {
        let open = self.vcpus[vcpu].open();
        if !open.is_empty() {
            self.commit(vcpu, open[which % open.len()]);
        }
    }

    fn commit(&mut self, vcpu: usize, place: usize) {
        let written = &mut self.vcpus[vcpu].queue[place];
        let Written {
            at, detour, words, ..
        } = &*written;
        let producer = producer(vcpu);
        producer.fill(&self.memory, *at, words).unwrap();
        let (_, header) = layout_of(*detour);
        producer.commit(&self.memory, *at, header).unwrap();
        written.is_whole = true;
    }

    fn drain(&mut self) {
        let mut records: [Vec<Told>; VCPUS] = Default::default();
        let memory = Watched(&self.memory);
        let drained = self.rings.drain(&memory, shape, |record| {
            records[record.vcpu.0 as usize].push(record.into());
        });
        let count: usize = records.iter().map(Vec::len).sum();
        assert_eq!(drained.records, count as u64);
        let damage = self.vcpus.iter().map(|vcpu| vcpu.damage).sum();
        if self.vcpus.iter().any(|vcpu| vcpu.is_scribbled_on) {
            assert!(drained.damaged >= damage);
        } else {
            assert_eq!(drained.damaged, damage);
        }
        for (number, (vcpu, records)) in self.vcpus.iter_mut().zip(&records).enumerate() {
            vcpu.damage = 0;
            assert!(records.len() as u64 <= RING_LEN / RECORD_VALUES);
            records.iter().for_each(check_shape);
            if vcpu.is_scribbled_on {
                vcpu.queue.clear();
                continue;
            }
            for record in records {
                let written = vcpu.queue.pop_front().expect("it was written");
                assert!(written.is_whole);
                check_record(record, &written);
            }
            let is_blocked = drained.blocked[number];
            assert_eq!(is_blocked, !vcpu.queue.is_empty());
            assert!(vcpu.queue.front().is_none_or(|next| !next.is_whole));
        }
    }

    /// Writes values into head or tail that are random or near the right ones.
    fn scribble_on_block(&mut self, vcpu: usize, input: &mut Input<'_>) {
        self.vcpus[vcpu].is_scribbled_on = true;
        let how = input.byte();
        let at = producer(vcpu).place.block;
        let at = at.wrapping_add(if how & 1 == 0 { HEAD } else { TAIL });
        let value = match how >> 1 & 3 {
            0 => input.word(),
            1 => self.memory.word(at).wrapping_add(input.byte().into()),
            2 => self.memory.word(at).wrapping_sub(input.byte().into()),
            _ => self
                .memory
                .word(at)
                .wrapping_add(u64::from(input.short()) * 128),
        };
        self.memory.write(at, &value.to_le_bytes()).unwrap();
    }

    /// Writes random bytes near the place that the host reads next.
    fn scribble_on_ring(&mut self, vcpu: usize, input: &mut Input<'_>) {
        self.vcpus[vcpu].is_scribbled_on = true;
        let producer = producer(vcpu);
        let tail = self.memory.word(producer.place.block.wrapping_add(TAIL));
        let at = tail.wrapping_add(input.byte().into()) % RING_LEN;
        let bytes: [u8; 8] = input.array();
        let len = bytes.len().min((RING_LEN - at) as usize);
        let at = producer.phys(at);
        self.memory.write(at, &bytes[..len]).unwrap();
    }

    /// Makes the host advance to `words` words before the ring's end, past an unreadable word.
    fn skip(&mut self, vcpu: usize, words: u64) {
        let (producer, state) = (producer(vcpu), &mut self.vcpus[vcpu]);
        if state.is_scribbled_on || !state.queue.is_empty() {
            return;
        }
        let at = |offset| producer.place.block.wrapping_add(offset);
        let tail = self.memory.word(at(TAIL));
        let len = (RING_LEN - tail % RING_LEN)
            .saturating_sub(words * 8)
            .max(8);
        let unreadable = 1_u64.to_le_bytes();
        self.memory.write(producer.phys(tail), &unreadable).unwrap();
        let head = (tail + len).to_le_bytes();
        self.memory.write(at(HEAD), &head).unwrap();
        state.damage += 1;
        self.drain();
    }

    /// Adds to a counter, which the host reads.
    fn count(&mut self, vcpu: usize, cell: u8, more: u16) {
        let cell = u32::from(cell) % COUNTERS;
        let offset = CELLS + u64::from(cell) * CELL;
        let at = producer(vcpu).place.block.wrapping_add(offset);
        let mut value = [0; 4];
        self.memory.read(at, &mut value).unwrap();
        // Large steps, so that it wraps around now and then.
        let more = u32::from(more) << 15;
        let value = u32::from_le_bytes(value).wrapping_add(more);
        self.memory.write(at, &value.to_le_bytes()).unwrap();
        let watched = Watched(&self.memory);
        self.rings.count(&watched, cell..cell + 3).unwrap();
        self.totals[cell as usize] += u64::from(more);
        assert_eq!(self.rings.total(cell), self.totals[cell as usize]);
    }

    /// Checks that the space of what the host has read is zero again.
    fn check_end(&self) {
        for (number, vcpu) in self.vcpus.iter().enumerate() {
            if !vcpu.is_scribbled_on {
                assert!(vcpu.queue.is_empty());
                let start = producer(number).place.ring.0;
                assert!(self.memory.is_clear(start..start + RING_LEN));
            }
        }
    }
}

fn check_shape(record: &Told) {
    let header = RecordHeader {
        detour: record.detour,
        returns: record.call.is_some(),
    };
    let registers = registers(header).expect("there is such a detour");
    for (number, value) in (0..).zip(values(&record.registers)) {
        let is_fetched = Fetch::numbered(number).is_some_and(|fetch| registers.contains(fetch));
        assert!(is_fetched || value == 0);
    }
}

fn check_record(record: &Told, written: &Written) {
    let (tsc, task) = (Tsc(written.words[0]), written.words[1]);
    assert_eq!(
        (record.detour, record.tsc, record.task),
        (written.detour, tsc, task)
    );
    let header = RecordHeader {
        detour: written.detour,
        returns: written.detour == RETURNS,
    };
    let numbers: Vec<_> = registers(header)
        .unwrap()
        .iter()
        .map(Fetch::number)
        .collect();
    let of = |registers| {
        let values = values(registers);
        let of = move |number: &u8| values[usize::from(*number)];
        numbers.iter().map(of).collect::<Vec<_>>()
    };
    let mut found = of(&record.registers);
    if let Some(call) = &record.call {
        found.extend([call.caller, call.entry_tsc.0]);
        found.extend(of(&call.entry));
    }
    if let Some(context) = &record.context {
        let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        found.push(both(context.pid, context.tgid));
        let (comm, _) = context.comm.as_chunks();
        found.extend(comm.iter().map(|word| u64::from_le_bytes(*word)));
        found.push(both(context.preempt_count, context.migration_disabled));
        found.push(context.thread_flags);
    }
    assert_eq!(found, written.words[2..]);
    assert_ne!(record.vcpu, VcpuId(VCPUS as u32));
}

/// The guest's memory. Unwritten bytes are zero.
#[derive(Default)]
struct Memory(RefCell<BTreeMap<u64, [u8; PAGE as usize]>>);

impl Memory {
    fn word(&self, at: GuestPhysAddr) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    fn is_clear(&self, range: std::ops::Range<u64>) -> bool {
        let pages = self.0.borrow();
        let mut pages = pages.range(range.start / PAGE..range.end / PAGE);
        pages.all(|(_, page)| page.iter().all(|byte| *byte == 0))
    }
}

/// The parts of a range by pages: page, offset in it, and place in the range.
fn parts(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = at + done as u64;
        let offset = (here % PAGE) as usize;
        let part = done..len.min(done + PAGE as usize - offset);
        done = part.end;
        (!part.is_empty()).then_some((here / PAGE, offset, part))
    })
}

impl GuestMemory for Memory {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        let pages = self.0.borrow();
        for (page, offset, part) in parts(at.0, into.len()) {
            let part = &mut into[part];
            match pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[offset..offset + part.len()]),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        let mut pages = self.0.borrow_mut();
        for (page, offset, part) in parts(at.0, from.len()) {
            let part = &from[part];
            if pages.contains_key(&page) || part.iter().any(|byte| *byte != 0) {
                let bytes = pages.entry(page).or_insert([0; PAGE as usize]);
                bytes[offset..offset + part.len()].copy_from_slice(part);
            }
        }
        Ok(())
    }
}

/// The memory as the host sees it. The host may access only rings and blocks.
struct Watched<'a>(&'a Memory);

impl Watched<'_> {
    fn check(at: GuestPhysAddr, len: usize) {
        let is_inside = |vcpu| {
            let VcpuMemory { block, ring } = producer(vcpu).place;
            let block_len = CELLS + u64::from(COUNTERS) * CELL;
            [(block, block_len), (ring, RING_LEN)]
                .iter()
                .any(|(start, size)| at >= *start && at.0 + len as u64 <= start.0 + size)
        };
        assert!((0..VCPUS).any(is_inside), "{len} bytes at {at}");
    }
}

impl GuestMemory for Watched<'_> {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        Self::check(at, into.len());
        self.0.read(at, into)
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        Self::check(at, from.len());
        self.0.write(at, from)
    }
}
