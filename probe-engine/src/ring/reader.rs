//! Reading the rings.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::counts::Counts;
use super::layout::{self, RING_LEN};
use super::memory::{CHUNK, clear, clear_used, put, word};
use super::run::{End, Header, Record, walk};
use crate::addr::{GuestPhysAddr, VcpuId};
use crate::guest::{GuestMemory, MemoryError};
use crate::probe::RegisterSet;

/// Where a vCPU has what is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its block ([`crate::percpu::PerCpu::blocks`]).
    pub block: GuestPhysAddr,
    /// Its ring, [`RING_LEN`] bytes.
    pub ring: GuestPhysAddr,
}

/// The rings and counters of all vCPUs, as the host has read them so far.
///
/// The guest may write anything anywhere in them, at any time. It can hide, change or make up events
/// of its own so, but no more than it could make happen; reading always ends.
#[derive(Debug)]
pub struct Rings {
    rings: Vec<Ring>,
    cells: u32,
    counts: Counts,
    /// What is being read, [`CHUNK`] bytes.
    bytes: Vec<u8>,
}

/// What one [`Rings::drain`] has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Records.
    pub records: u64,
    /// How often something unreadable was skipped: the guest has damaged its rings.
    pub damaged: u64,
    /// Whether a vCPU's ring has a record that isn't whole yet, with others behind it perhaps: somebody
    /// was interrupted while he wrote it.
    pub blocked: [bool; layout::RINGS as usize],
}

impl Drained {
    /// Whether any ring is blocked.
    pub fn is_blocked(&self) -> bool {
        self.blocked.contains(&true)
    }
}

impl Rings {
    /// Those of so many vCPUs, at most [`layout::RINGS`], each with so many counters.
    /// [`Rings::init`] has to follow before the guest uses them.
    pub fn new(places: impl IntoIterator<Item = Place>, cells: u32) -> Self {
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
            })
            .collect();
        Self {
            counts: Counts::new(rings.len()),
            rings,
            cells,
            bytes: vec![0; CHUNK],
        }
    }

    /// Makes all rings empty and all counters 0. Nobody may be using them.
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

    /// Reads what is in the rings, each up to where it has been reserved when its turn begins, and
    /// gives the space back. `shape` tells the registers in a detour's records of hits, and whether it has
    /// records of returns; it knows all detours that there have ever been. Records of one vCPU come in the order in which they were reserved.
    ///
    /// The guest may go on meanwhile; what can't be read is skipped and counted.
    pub fn drain(
        &mut self,
        memory: &dyn GuestMemory,
        shape: impl Fn(Header) -> Option<RegisterSet>,
        mut each: impl FnMut(Record),
    ) -> Drained {
        let mut drained = Drained::default();
        for (ring, blocked) in self.rings.iter_mut().zip(&mut drained.blocked) {
            let vcpu = VcpuId(ring.number.into());
            let mut take = |header, words: &[[u8; 8]]| {
                let record =
                    shape(header).and_then(|shape| Record::read(vcpu, header, words, shape));
                drained.records += u64::from(record.is_some());
                record.map(&mut each).is_some()
            };
            let turn = ring.turn(memory, &mut self.bytes, &mut take);
            let turn = turn.unwrap_or(Turn {
                damaged: 1,
                blocked: false,
            });
            ring.was_damaged |= turn.damaged > 0;
            drained.damaged += turn.damaged;
            *blocked = turn.blocked;
        }
        drained
    }

    /// Takes over what these counters have come to in all blocks; those beyond the last one there is
    /// are left out. Between two calls none may grow by 2^32, or that much is lost.
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

    /// What a counter has come to since [`Rings::init`], over all vCPUs, when [`Rings::count`] last
    /// looked.
    pub fn total(&self, cell: u32) -> u64 {
        self.counts.total(cell)
    }
}

/// Turns for which a record in a damaged ring may stay open at the ring's beginning. In one that isn't
/// damaged it may for ever: whoever was interrupted there writes it when he goes on, and nobody else may
/// have its space until then.
const PATIENCE: u32 = 64;

/// One vCPU's ring. Where it has been read to is known here only; the guest's copy is for the guest.
#[derive(Debug)]
struct Ring {
    place: Place,
    number: u8,
    tail: u64,
    /// The guest has written over it some time.
    was_damaged: bool,
    /// Turns in a row since then that have come no further than to an open record.
    waits: u32,
}

/// What came of a ring's turn.
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
        take: &mut dyn FnMut(Header, &[[u8; 8]]) -> bool,
    ) -> Result<Turn, MemoryError> {
        let mut turn = Turn::default();
        let head = word(memory, self.head())?;
        if word(memory, self.tail_word())? != self.tail {
            put(memory, self.tail_word(), self.tail)?;
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
            let (whole, mut end) = walk(&bytes[..len], |_, _| true);
            // Copying reads in any order, so the rest of a record may be older than its header.
            // Now that the headers have been seen, all that comes after is as it has to be.
            fence(Ordering::Acquire);
            let (records, rest) = bytes[..len].split_at_mut(whole);
            self.read(memory, records)?;
            let same = walk(records, &mut *take) == (whole, End::Cut);
            let beyond_head = end == End::Cut && whole < len && len == left;
            if !same || beyond_head {
                end = End::Bad;
            }
            match end {
                End::Bad => {
                    turn.damaged += 1;
                    self.give_back(memory, left)?;
                }
                End::Cut => self.give_back(memory, whole)?,
                End::Open => {
                    self.give_back(memory, whole)?;
                    if self.was_damaged && self.waits >= PATIENCE {
                        // Nobody may be left who could finish it: what was there may be overwritten.
                        self.give_back(memory, open(rest))?;
                        turn.damaged += 1;
                        continue;
                    }
                    turn.blocked = true;
                    break;
                }
            }
        }
        let waits = self.was_damaged && turn.blocked && self.tail == before;
        self.waits = if waits { self.waits + 1 } else { 0 };
        Ok(turn)
    }

    /// Where its head is.
    fn head(&self) -> GuestPhysAddr {
        self.place.block.wrapping_add(layout::HEAD)
    }

    /// Where the guest sees how far it has been read.
    fn tail_word(&self) -> GuestPhysAddr {
        self.place.block.wrapping_add(layout::TAIL)
    }

    /// The next so many bytes in the ring: where they begin, and how many of them are before its end.
    fn split(&self, len: usize) -> (GuestPhysAddr, usize) {
        let offset = self.tail % RING_LEN;
        let before_end = ((RING_LEN - offset) as usize).min(len);
        (self.place.ring.wrapping_add(offset), before_end)
    }

    fn read(&self, memory: &dyn GuestMemory, into: &mut [u8]) -> Result<(), MemoryError> {
        let (at, before_end) = self.split(into.len());
        let (first, second) = into.split_at_mut(before_end);
        memory.read(at, first)?;
        if second.is_empty() {
            return Ok(());
        }
        memory.read(self.place.ring, second)
    }

    /// Clears the next so many bytes, and then lets the guest have them.
    fn give_back(&mut self, memory: &dyn GuestMemory, len: usize) -> Result<(), MemoryError> {
        let (at, before_end) = self.split(len);
        clear(memory, at, before_end as u64)?;
        clear(memory, self.place.ring, (len - before_end) as u64)?;
        self.tail = self.tail.wrapping_add(len as u64);
        fence(Ordering::Release);
        put(memory, self.tail_word(), self.tail)
    }

    /// Begins anew where it has been read to.
    fn reset(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        clear_used(memory, self.place.ring, RING_LEN)?;
        put(memory, self.tail_word(), self.tail)?;
        put(memory, self.head(), self.tail)
    }
}

/// Bytes up to the first word that isn't 0.
fn open(bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks::<8>();
    let zero = words.iter().take_while(|word| **word == [0; 8]).count();
    zero * 8
}
