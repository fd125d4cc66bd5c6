//! The table as the host sees it.

use guest_state::{GuestMemory, GuestPhysAddr, MemoryError};

use super::layout::{
    ACTIVE, BEGINS, BUCKETS, CALL_LEN, CALLER, CALLS, CANARY, COUNTED, COUNTS, ENDED, ENTRY_TSC,
    KEYS_LEN, LEVEL, MISSED, NUMBER, NUMBERS, ORPHAN, RETURNS, TALLIES, TALLY_LEN, TASK,
    UNFINISHED, WAYS, WORD, bucket,
};
use crate::ring::memory::clear_used;

/// Calls that are read at a time: a page of them.
const SEVERAL: usize = 16;

/// A word of a call.
fn field(call: &[u8; CALL_LEN as usize], offset: u64) -> u64 {
    let rest = &call[offset as usize..];
    rest.first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

/// The table in guest memory. The guest may write anything there. That changes what the guest returns to and what is
/// reported of its calls, and nothing else.
#[derive(Debug, Clone, Copy)]
pub struct Calls {
    window: GuestPhysAddr,
}

/// What is counted for one detour, over all vCPUs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// See [`super::layout::ACTIVE`].
    pub active: u32,
    /// See [`super::layout::MISSED`].
    pub missed: u32,
    /// See [`super::layout::COUNTED`].
    pub counted: u32,
    /// See [`super::layout::ENDED`].
    pub ended: u32,
}

impl Tally {
    /// The counts since `before`; `active` stays the number of calls that are followed now.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            active: self.active,
            missed: self.missed.wrapping_sub(before.missed),
            counted: self.counted.wrapping_sub(before.counted),
            ended: self.ended.wrapping_sub(before.ended),
        }
    }
}

/// A task of the guest's, told apart from those that come later at the same address.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// The address of its `task_struct`; 0 if that isn't known.
    pub at: u64,
    /// See [`super::layout::CANARY`].
    pub canary: u64,
}

/// A call in the table. If its task has ended, it has too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its place in the table.
    index: u64,
    /// Where its return address is.
    pub slot: u64,
    /// Of the calls at `slot`, the one with the highest level returns first.
    pub level: u32,
    /// What its return address was.
    pub caller: u64,
    /// The number of the detour that follows it.
    pub number: u32,
    /// See [`super::layout::ENTRY_TSC`].
    pub entry_tsc: u64,
    /// The task that made the call.
    pub task: Task,
    word: u32,
}

impl Call {
    /// Its place in the table.
    pub fn place(&self) -> u64 {
        self.index
    }

    /// Returns true if its detour still writes to it.
    pub fn begins(&self) -> bool {
        self.word & BEGINS != 0
    }

    /// Returns true if the trampoline is at work on it. Then nothing else may change it.
    pub fn returns(&self) -> bool {
        self.word & RETURNS != 0
    }

    /// Returns true if the time and the registers of its entry were written down.
    pub fn has_time(&self) -> bool {
        self.word & (BEGINS | COUNTS) == 0
    }

    /// Returns true if no probe follows it any more.
    pub fn is_orphan(&self) -> bool {
        self.word & ORPHAN != 0
    }
}

impl Calls {
    /// The table in this memory, [`super::layout::WINDOW`] bytes.
    pub fn new(window: GuestPhysAddr) -> Self {
        Self { window }
    }

    /// Makes the table empty. No detour may be using it.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn init(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        clear_used(memory, self.window, KEYS_LEN)?;
        let len = u64::from(NUMBERS) * TALLY_LEN;
        clear_used(memory, self.window.wrapping_add(TALLIES), len)
    }

    /// Returns what was counted for the detours with the numbers below `numbers`.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn tallies(
        &self,
        memory: &dyn GuestMemory,
        numbers: usize,
    ) -> Result<Vec<Tally>, MemoryError> {
        let numbers = numbers.min(NUMBERS as usize);
        let mut bytes = vec![0; numbers * TALLY_LEN as usize];
        memory.read(self.window.wrapping_add(TALLIES), &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let (tallies, _) = words.as_chunks::<{ TALLY_LEN as usize / 4 }>();
        let counter = |words: &[[u8; 4]], at: u64| u32::from_le_bytes(words[at as usize / 4]);
        let tally = |words: &[[u8; 4]; 4]| Tally {
            active: counter(words, ACTIVE),
            missed: counter(words, MISSED),
            counted: counter(words, COUNTED),
            ended: counter(words, ENDED),
        };
        Ok(tallies.iter().map(tally).collect())
    }

    /// Returns all calls in it that are whole. For when the guest stands still: while it runs, a call in the result
    /// may be a mixture of two.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn under_way(&self, memory: &dyn GuestMemory) -> Result<Vec<Call>, MemoryError> {
        self.under_way_of(memory, |_| true)
    }

    /// As [`Self::under_way`], but only the calls of detours whose numbers `is_one` accepts. Where the guest has
    /// written over the table, few entries that look like calls have such a number.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn under_way_of(
        &self,
        memory: &dyn GuestMemory,
        is_one: impl Fn(u32) -> bool,
    ) -> Result<Vec<Call>, MemoryError> {
        let mut bytes = vec![0; KEYS_LEN as usize];
        memory.read(self.window, &mut bytes)?;
        let (keys, _) = bytes.as_chunks();
        let is_used = |key: u64| key != 0 && key & UNFINISHED == 0;
        let mut calls = Vec::new();
        let mut several = [0; SEVERAL * CALL_LEN as usize];
        for (part, keys) in (0..).zip(keys.chunks(SEVERAL)) {
            let slots = keys.iter().map(|key| u64::from_le_bytes(*key));
            if !slots.clone().any(is_used) {
                continue;
            }
            let first = part * SEVERAL as u64;
            memory.read(self.call(first), &mut several)?;
            let (these, _) = several.as_chunks::<{ CALL_LEN as usize }>();
            for ((index, slot), bytes) in (first..).zip(slots).zip(these) {
                let get = |offset| field(bytes, offset);
                let flags = get(WORD) as u32;
                if !is_used(slot) || !is_one(flags & NUMBER) {
                    continue;
                }
                calls.push(Call {
                    index,
                    slot,
                    level: get(LEVEL) as u32,
                    caller: get(CALLER),
                    number: flags & NUMBER,
                    entry_tsc: get(ENTRY_TSC),
                    task: Task {
                        at: get(TASK),
                        canary: get(CANARY),
                    },
                    word: flags,
                });
            }
        }
        Ok(calls)
    }

    /// Returns what the return address at `slot` was before it led to the trampoline. If several calls have theirs
    /// there, it is that of the call which returns first. While the guest runs, it may be that of another call.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn caller_at(
        &self,
        memory: &dyn GuestMemory,
        slot: u64,
    ) -> Result<Option<u64>, MemoryError> {
        let mut bytes = [0; (WAYS * 8) as usize];
        let first = bucket(slot) * WAYS;
        memory.read(self.window.wrapping_add(first * 8), &mut bytes)?;
        let (keys, _) = bytes.as_chunks();
        let mut newest: Option<(u32, u64)> = None;
        for (key, index) in keys.iter().zip(first..) {
            if u64::from_le_bytes(*key) != slot {
                continue;
            }
            let mut call = [0; CALL_LEN as usize];
            memory.read(self.call(index), &mut call)?;
            let (level, caller) = (field(&call, LEVEL) as u32, field(&call, CALLER));
            if newest.is_none_or(|(highest, _)| level > highest) {
                newest = Some((level, caller));
            }
        }
        Ok(newest.map(|(_, caller)| caller))
    }

    /// Returns true if a call with its return address at `slot` is not whole yet, or is being taken
    /// out.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn is_beginning(&self, memory: &dyn GuestMemory, slot: u64) -> Result<bool, MemoryError> {
        let mut bytes = [0; (WAYS * 8) as usize];
        let bucket = self.window.wrapping_add(bucket(slot) * WAYS * 8);
        memory.read(bucket, &mut bytes)?;
        let (keys, _) = bytes.as_chunks();
        Ok(keys
            .iter()
            .any(|key| u64::from_le_bytes(*key) == slot | UNFINISHED))
    }

    /// Takes a call out of the table, while the guest stands still.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn remove(&self, memory: &dyn GuestMemory, call: &Call) -> Result<(), MemoryError> {
        if !call.is_orphan() {
            self.uncount(memory, call)?;
        }
        memory.write_u64(self.window.wrapping_add(call.index * 8), 0)
    }

    /// As [`Self::remove`], and counts the call as one that never returns.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn end(&self, memory: &dyn GuestMemory, call: &Call) -> Result<(), MemoryError> {
        if !call.is_orphan() {
            self.change(memory, call.number, ENDED, |ended| ended.wrapping_add(1))?;
        }
        self.remove(memory, call)
    }

    /// Makes a call count nowhere any more, while the guest stands still: the trampoline only leads
    /// it on.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn orphan(&self, memory: &dyn GuestMemory, call: &Call) -> Result<(), MemoryError> {
        if call.is_orphan() {
            return Ok(());
        }
        self.uncount(memory, call)?;
        let at = self.call(call.index).wrapping_add(WORD);
        memory.write(at, &(call.word | ORPHAN).to_le_bytes())
    }

    fn uncount(&self, memory: &dyn GuestMemory, call: &Call) -> Result<(), MemoryError> {
        self.change(memory, call.number, ACTIVE, |active| {
            active.saturating_sub(1)
        })
    }

    /// Changes a counter of a detour's tally.
    fn change(
        &self,
        memory: &dyn GuestMemory,
        number: u32,
        counter: u64,
        change: impl FnOnce(u32) -> u32,
    ) -> Result<(), MemoryError> {
        let at = TALLIES + u64::from(number % NUMBERS) * TALLY_LEN + counter;
        let at = self.window.wrapping_add(at);
        let mut bytes = [0; 4];
        memory.read(at, &mut bytes)?;
        memory.write(at, &change(u32::from_le_bytes(bytes)).to_le_bytes())
    }

    /// Sets a detour's count of calls under way to 0, whatever the guest has counted. For when no
    /// call of the detour is under way.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn none_active(&self, memory: &dyn GuestMemory, number: u32) -> Result<(), MemoryError> {
        self.change(memory, number, ACTIVE, |_| 0)
    }

    /// Makes a call go on to another caller when it has returned, while the guest stands still.
    ///
    /// # Errors
    /// The table isn't memory.
    pub fn set_caller(
        &self,
        memory: &dyn GuestMemory,
        call: &Call,
        caller: u64,
    ) -> Result<(), MemoryError> {
        memory.write_u64(self.call(call.index).wrapping_add(CALLER), caller)
    }

    fn call(&self, index: u64) -> GuestPhysAddr {
        let index = index % (BUCKETS * WAYS);
        self.window.wrapping_add(CALLS + index * CALL_LEN)
    }
}
