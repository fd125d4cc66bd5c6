//! Reading the rings.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use guest_state::{GuestMemory, GuestPhysAddr, MemoryError, VcpuId};

use super::counts::Counts;
use super::layout::{self, RING_LEN};
use super::memory::{CHUNK, clear, clear_used};
use super::record::Record;
use super::run::{RecordHeader, RunEnd, Stage, walk};
use super::shape::Shape;

/// The memory that a vCPU has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcpuMemory {
    /// Its block ([`crate::percpu::PerCpu::blocks`]).
    pub block: GuestPhysAddr,
    /// Its ring, [`RING_LEN`] bytes.
    pub ring: GuestPhysAddr,
}

/// The rings and counters of all vCPUs, as the host has read them so far.
///
/// The guest may write anything anywhere in them, at any time. In this way it can hide, change or make up events of
/// its own, but no more than it could make happen; reading always ends.
#[derive(Debug)]
pub struct Rings {
    rings: Vec<Ring>,
    cells: u32,
    counts: Counts,
    /// What is being read, [`CHUNK`] bytes.
    bytes: Vec<u8>,
}

/// What one [`Rings::drain`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingsRead {
    /// Records.
    pub records: u64,
    /// How often something unreadable was skipped: the guest has damaged its rings.
    pub damaged: u64,
    /// Whether a vCPU's ring has a record that isn't whole yet, with others behind it perhaps: the task that writes it
    /// was interrupted.
    pub blocked: [bool; layout::RINGS as usize],
}

impl Default for RingsRead {
    fn default() -> Self {
        Self {
            records: 0,
            damaged: 0,
            blocked: [false; layout::RINGS as usize],
        }
    }
}

impl RingsRead {
    /// Returns true if any ring is blocked.
    pub fn is_blocked(&self) -> bool {
        self.blocked.contains(&true)
    }
}

impl Rings {
    /// The rings of these vCPUs, at most [`layout::RINGS`], each with `cells` counters.
    /// [`Rings::init`] has to follow before the guest uses them.
    pub fn new(places: impl IntoIterator<Item = VcpuMemory>, cells: u32) -> Self {
        let numbers = 0..layout::RINGS as u8;
        let rings: Vec<_> = places
            .into_iter()
            .zip(numbers)
            .map(|(place, number)| Ring {
                place,
                number,
                tail: layout::position(number, 0),
                was_damaged: false,
                waits: 0,
                patience: PATIENCE_FOR_THE_LIVING,
            })
            .collect();
        Self {
            counts: Counts::new(rings.len()),
            rings,
            cells,
            bytes: vec![0; CHUNK],
        }
    }

    /// Makes all rings empty and all counters 0. No detour may be using them.
    ///
    /// # Errors
    /// A block or ring isn't memory.
    pub fn init(&mut self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        self.counts = Counts::new(self.rings.len());
        for ring in &mut self.rings {
            let len = layout::CELLS + u64::from(self.cells) * layout::CELL;
            clear_used(memory, ring.place.block, len)?;
            ring.tail = layout::position(ring.number, 0);
            (ring.was_damaged, ring.waits) = (false, 0);
            ring.reset(memory)?;
        }
        Ok(())
    }

    /// Reads what is in the rings, each up to where it has been reserved when its turn begins, and gives the space
    /// back. `shape` returns what is in a detour's records of hits or of returns, or `None` if it has no such records;
    /// it knows all detours that there have ever been. Records of one vCPU come in the order in which they were
    /// reserved.
    ///
    /// The guest may go on meanwhile; what can't be read is skipped and counted.
    pub fn drain<S: Borrow<Shape>>(
        &mut self,
        memory: &dyn GuestMemory,
        shape: impl Fn(RecordHeader) -> Option<S>,
        mut each: impl FnMut(Record<'_>),
    ) -> RingsRead {
        self.read(memory, false, shape, |_, record| each(record))
    }

    /// As [`Rings::drain`]; `each` is also told the record's position ([`layout::position`]). With `ahead`, whole
    /// records behind unfinished ones are read too, and their space is given back later. A ring that the guest has
    /// written over then begins anew, empty. `ahead` is for when no vCPU runs, or the guest has ended.
    pub fn read<S: Borrow<Shape>>(
        &mut self,
        memory: &dyn GuestMemory,
        ahead: bool,
        shape: impl Fn(RecordHeader) -> Option<S>,
        mut each: impl FnMut(u64, Record<'_>),
    ) -> RingsRead {
        let mut drained = RingsRead::default();
        for ring in &mut self.rings {
            let index = usize::from(ring.number);
            let vcpu = VcpuId(ring.number.into());
            let mut take = |at, header, words: &[[u8; 8]]| {
                let record = shape(header)
                    .and_then(|shape| Record::read(vcpu, header, words, shape.borrow()));
                drained.records += u64::from(record.is_some());
                record.map(|record| each(at, record)).is_some()
            };
            let turn = ring.turn(memory, &mut self.bytes, &mut take);
            let turn = turn.unwrap_or(Turn {
                damaged: 1,
                blocked: false,
            });
            if ahead && turn.blocked {
                // Something unreadable there is found later, when it is read in order.
                let _result = ring.read_ahead(memory, &mut take);
            }
            ring.was_damaged |= turn.damaged > 0;
            drained.damaged += turn.damaged;
            let anew = ahead && ring.was_damaged && ring.begin_anew(memory).is_ok();
            drained.blocked[index] = turn.blocked && !anew;
        }
        drained
    }

    /// The positions up to which the rings have been read.
    pub fn tails(&self) -> impl Iterator<Item = u64> {
        self.rings.iter().map(|ring| ring.tail)
    }

    /// The positions up to which space has been given away in the rings, as far as the guest says
    /// so.
    pub fn heads(&self, memory: &dyn GuestMemory) -> impl Iterator<Item = u64> {
        let head = |ring: &Ring| memory.read_u64(ring.head()).unwrap_or(ring.tail);
        self.rings.iter().map(head)
    }

    /// Returns true if a ring has had the same unfinished record before all others for so many drains that its writer
    /// may be dead, and it is time to check that again.
    pub fn may_have_dead(&self) -> bool {
        self.rings.iter().any(|ring| ring.waits >= ring.patience)
    }

    /// The unfinished records. For when no vCPU runs.
    pub fn unfinished(&self, memory: &dyn GuestMemory) -> Vec<Unfinished> {
        let mut found = Vec::new();
        for ring in &self.rings {
            // Where memory can't be read, there is nothing.
            let _result = ring.scan(memory, |at, seen| {
                found.extend(ring.unfinished(at, seen));
                true
            });
        }
        found
    }

    /// Gives up those unfinished records whose writers are dead, and returns them. Their space is free with the next
    /// drain. For when no vCPU runs.
    pub fn give_up(
        &mut self,
        memory: &dyn GuestMemory,
        is_dead: impl Fn(Option<RecordHeader>) -> bool,
    ) -> Vec<Unfinished> {
        let mut lost = Vec::new();
        for ring in &mut self.rings {
            let before = lost.len();
            let _result = ring.scan(memory, |at, seen| {
                let unfinished = ring.unfinished(at, seen);
                lost.extend(unfinished.filter(|it| is_dead(it.header)));
                true
            });
            for it in &lost[before..] {
                let header = layout::with_magic(layout::header(0, it.words), layout::TAKEN);
                let _result = memory.write_u64(ring.phys(it.at), header);
            }
            ring.patience = match lost.len() == before {
                true if ring.waits >= ring.patience => ring.patience.saturating_mul(2),
                true => ring.patience,
                false => PATIENCE_FOR_THE_LIVING,
            };
        }
        lost
    }

    /// Takes over what these counters have come to in all blocks; numbers beyond the last counter are left out.
    /// Between two calls no counter may grow by 2^32, or that much is lost.
    ///
    /// # Errors
    /// A block isn't memory.
    pub fn count(
        &mut self,
        memory: &dyn GuestMemory,
        cells: Range<u32>,
    ) -> Result<(), MemoryError> {
        let cells = cells.start..cells.end.min(self.cells);
        let blocks = self.rings.iter().map(|ring| ring.place.block);
        self.counts.update(memory, blocks, cells)
    }

    /// What a counter had come to since [`Rings::init`], over all vCPUs, when [`Rings::count`] last
    /// read it.
    pub fn total(&self, cell: u32) -> u64 {
        self.counts.total(cell)
    }
}

/// Turns for which a record in a damaged ring may stay open at the ring's beginning. In a ring that isn't damaged it
/// may for ever: the task that was interrupted there finishes it when it goes on, and no other record may have its
/// space until then.
const PATIENCE: u32 = 64;

/// Turns after which it is checked for the first time whether the writer of a record is dead. A check looks at all of
/// the guest's memory, so after each that finds the writer alive, the next one comes twice as late.
const PATIENCE_FOR_THE_LIVING: u32 = 1024;

/// Space in a ring for a record that its writer has not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished {
    /// The vCPU whose ring it is in.
    pub vcpu: VcpuId,
    /// Its position in the ring ([`layout::position`]).
    pub at: u64,
    /// What the record is to be; `None` for a word of space in which nothing has been written yet.
    pub header: Option<RecordHeader>,
    /// Words of it.
    words: u8,
}

/// What is at a position of a ring.
#[derive(Debug, Clone, Copy)]
enum Seen {
    /// A record, and its length in words.
    Record(Stage, RecordHeader, usize),
    /// A word of space in which nothing has been written yet.
    Nothing,
}

/// Takes the words of a record at a position. Returns true if they are one.
type Take<'a> = dyn FnMut(u64, RecordHeader, &[[u8; 8]]) -> bool + 'a;

/// One vCPU's ring. Up to where it has been read is known here only; the guest's copy is for the guest.
#[derive(Debug)]
struct Ring {
    place: VcpuMemory,
    number: u8,
    tail: u64,
    /// The guest has written over the ring at some time.
    was_damaged: bool,
    /// Turns in a row that have come no further than to an unfinished record.
    waits: u32,
    /// See [`Rings::may_have_dead`].
    patience: u32,
}

/// The result of a ring's turn.
#[derive(Debug, Default, Clone, Copy)]
struct Turn {
    damaged: u64,
    blocked: bool,
}

impl Ring {
    fn turn(
        &mut self,
        memory: &dyn GuestMemory,
        bytes: &mut [u8],
        take: &mut Take<'_>,
    ) -> Result<Turn, MemoryError> {
        let mut turn = Turn::default();
        let head = memory.read_u64(self.head())?;
        if memory.read_u64(self.tail_word())? != self.tail {
            memory.write_u64(self.tail_word(), self.tail)?;
            turn.damaged += 1;
        }
        let reserved = head.wrapping_sub(self.tail);
        if reserved > RING_LEN || !reserved.is_multiple_of(8) {
            self.reset(memory)?;
            turn.damaged += 1;
            return Ok(turn);
        }
        let before = self.tail;
        while self.tail != head {
            let left = head.wrapping_sub(self.tail) as usize;
            let len = left.min(bytes.len());
            self.read(memory, &mut bytes[..len])?;
            let (whole, mut end) = walk(&bytes[..len], |_, _, _| true);
            // Memory is read in any order, so the rest of a record may be older than its header.
            // Now that the headers have been seen, all that is read after this is as it has to be.
            fence(Ordering::Acquire);
            let (records, rest) = bytes[..len].split_at_mut(whole);
            self.read(memory, records)?;
            let start = self.tail;
            let taken = walk(records, |at, header, words| {
                take(start.wrapping_add(at as u64), header, words)
            });
            let same = taken == (whole, RunEnd::Cut);
            let beyond_head = end == RunEnd::Cut && whole < len && len == left;
            if !same || beyond_head {
                end = RunEnd::Bad;
            }
            match end {
                RunEnd::Bad => {
                    turn.damaged += 1;
                    self.give_back(memory, left)?;
                }
                RunEnd::Cut => self.give_back(memory, whole)?,
                RunEnd::Open => {
                    self.give_back(memory, whole)?;
                    if self.was_damaged && self.waits >= PATIENCE {
                        // There may be no task left that could finish it: the space may be overwritten.
                        let left = head.wrapping_sub(self.tail) as usize;
                        self.give_back(memory, open(rest).min(left))?;
                        turn.damaged += 1;
                        continue;
                    }
                    turn.blocked = true;
                    break;
                }
            }
        }
        let waits = turn.blocked && self.tail == before;
        self.waits = if waits {
            self.waits.saturating_add(1)
        } else {
            0
        };
        Ok(turn)
    }

    /// Takes the whole records behind an unfinished one, and leaves them where they are.
    fn read_ahead(&self, memory: &dyn GuestMemory, take: &mut Take<'_>) -> Result<(), MemoryError> {
        let mut bytes = Vec::new();
        self.scan(memory, |at, seen| {
            let Seen::Record(Stage::Whole, header, len) = seen else {
                return true;
            };
            bytes.resize(len * 8, 0);
            let words = match self.read_at(memory, at, &mut bytes) {
                Ok(()) => bytes.as_chunks().0,
                Err(_) => return false,
            };
            let first = words.first().map_or(0, |word| u64::from_le_bytes(*word));
            let taken = layout::with_magic(first, layout::TAKEN);
            take(at, header, words) && memory.write_u64(self.phys(at), taken).is_ok()
        })
    }

    /// Goes through what is in the ring, unfinished records too, until `each` returns false or there is something
    /// unreadable. For when no vCPU runs: then space in which nothing is written is zero up to the next record.
    fn scan(
        &self,
        memory: &dyn GuestMemory,
        mut each: impl FnMut(u64, Seen) -> bool,
    ) -> Result<(), MemoryError> {
        let head = memory.read_u64(self.head())?;
        let reserved = head.wrapping_sub(self.tail);
        if reserved > RING_LEN || !reserved.is_multiple_of(8) {
            return Ok(());
        }
        let mut at = self.tail;
        while at != head {
            let left = head.wrapping_sub(at) / 8;
            let first = memory.read_u64(self.phys(at))?;
            let (seen, len) = match RecordHeader::read(first) {
                _ if first == 0 => (Seen::Nothing, 1),
                Some((stage, header, len)) if len as u64 <= left => {
                    (Seen::Record(stage, header, len), len as u64)
                }
                _ => return Ok(()),
            };
            if !each(at, seen) {
                return Ok(());
            }
            at = at.wrapping_add(len * 8);
        }
        Ok(())
    }

    /// What is at a position, if it isn't finished.
    fn unfinished(&self, at: u64, seen: Seen) -> Option<Unfinished> {
        let (header, words) = match seen {
            Seen::Record(Stage::Open, header, len) => (Some(header), len as u8),
            Seen::Nothing => (None, 1),
            Seen::Record(..) => return None,
        };
        let vcpu = VcpuId(self.number.into());
        Some(Unfinished {
            vcpu,
            at,
            header,
            words,
        })
    }

    /// Where a position is in physical memory.
    fn phys(&self, at: u64) -> GuestPhysAddr {
        self.place.ring.wrapping_add(at % RING_LEN)
    }

    /// Where the ring's head is.
    fn head(&self) -> GuestPhysAddr {
        self.place.block.wrapping_add(layout::HEAD)
    }

    /// Where the guest reads the ring's tail.
    fn tail_word(&self) -> GuestPhysAddr {
        self.place.block.wrapping_add(layout::TAIL)
    }

    /// Returns where `len` bytes of the ring begin at a position, and how many of them are before the ring's end.
    fn split(&self, at: u64, len: usize) -> (GuestPhysAddr, usize) {
        let before_end = ((RING_LEN - at % RING_LEN) as usize).min(len);
        (self.phys(at), before_end)
    }

    fn read(&self, memory: &dyn GuestMemory, into: &mut [u8]) -> Result<(), MemoryError> {
        self.read_at(memory, self.tail, into)
    }

    fn read_at(
        &self,
        memory: &dyn GuestMemory,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), MemoryError> {
        let (at, before_end) = self.split(at, into.len());
        let (first, second) = into.split_at_mut(before_end);
        memory.read(at, first)?;
        if second.is_empty() {
            return Ok(());
        }
        memory.read(self.place.ring, second)
    }

    /// Clears the next `len` bytes, and then gives their space back to the guest.
    fn give_back(&mut self, memory: &dyn GuestMemory, len: usize) -> Result<(), MemoryError> {
        let (at, before_end) = self.split(self.tail, len);
        clear(memory, at, before_end as u64)?;
        clear(memory, self.place.ring, (len - before_end) as u64)?;
        self.tail = self.tail.wrapping_add(len as u64);
        fence(Ordering::Release);
        memory.write_u64(self.tail_word(), self.tail)
    }

    /// Empties a ring that the guest has written over: what is left there can't be told from what a detour has begun
    /// to write.
    fn begin_anew(&mut self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        let head = memory.read_u64(self.head())?;
        // No position comes twice, as records are told apart by their positions.
        if head.wrapping_sub(self.tail) <= RING_LEN && head.is_multiple_of(8) {
            self.tail = head;
        }
        self.reset(memory)?;
        (self.was_damaged, self.waits) = (false, 0);
        Ok(())
    }

    /// Empties the ring and sets its head and tail to where it has been read to.
    fn reset(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        clear_used(memory, self.place.ring, RING_LEN)?;
        memory.write_u64(self.tail_word(), self.tail)?;
        memory.write_u64(self.head(), self.tail)
    }
}

/// Returns the bytes of an unfinished record: as many as it says, or up to the first word that
/// isn't 0.
fn open(bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks::<8>();
    let zero = words.iter().take_while(|word| **word == [0; 8]).count();
    let first = words.first().map_or(0, |word| u64::from_le_bytes(*word));
    match RecordHeader::read(first) {
        Some((_, _, len)) => len * 8,
        None => zero * 8,
    }
}
