//! Plain sites by their addresses.

use std::hash::BuildHasher;

use guest_state::GuestVirtAddr;
use rustc_hash::FxBuildHasher;

use crate::engine::sites::plain_site::PlainSite;

/// Plain sites by their virtual addresses, for hits.
///
/// A table with open addressing and linear probing (Knuth, The Art of Computer Programming, vol. 3, 6.4, algorithms L
/// and R). With thousands of sites what a hit looks at is in memory and not in the processor's caches. Here that is one
/// line of the caches for most sites. A table that keeps tags of its entries apart from them, as the standard library's
/// does, needs a line of tags first.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlainMap {
    /// Empty, or a power of two of slots, of which a third is free at least.
    slots: Box<[Option<Slot>]>,
    len: usize,
}

/// A plain site, in a line of its own.
#[derive(Debug, Clone)]
#[repr(align(64))]
struct Slot {
    at: GuestVirtAddr,
    plain: PlainSite,
}

/// Where a table's slots are in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    pub(crate) start: usize,
    /// The number of slots, less one.
    pub(crate) mask: usize,
}

impl Places {
    /// The address in memory of the slot that the site at `at` has if no other site has taken it.
    pub(crate) fn of(self, at: GuestVirtAddr) -> usize {
        self.start
            .wrapping_add(home(at, self.mask).wrapping_mul(size_of::<Option<Slot>>()))
    }
}

/// Which of `mask + 1` slots the site at `at` has if no other site has taken it.
fn home(at: GuestVirtAddr, mask: usize) -> usize {
    hash(at) as usize & mask
}

/// Hashes a site's address, for its place in tables.
pub(crate) fn hash(at: GuestVirtAddr) -> u64 {
    FxBuildHasher.hash_one(at.0)
}

/// How many slots a table has at least, if it has any.
const LEAST: usize = 4;

impl PlainMap {
    pub(crate) fn get(&self, at: GuestVirtAddr) -> Option<&PlainSite> {
        let place = self.place(at)?;
        self.slots[place].as_ref().map(|slot| &slot.plain)
    }

    /// Where the slots are.
    pub(crate) fn places(&self) -> Places {
        Places {
            start: self.slots.as_ptr().addr(),
            mask: self.slots.len().saturating_sub(1),
        }
    }

    /// Sets, or removes if `None`, the site at an address.
    pub(crate) fn set(&mut self, at: GuestVirtAddr, plain: Option<PlainSite>) {
        match plain {
            Some(plain) => self.insert(at, plain),
            None => self.remove(at),
        }
    }

    fn insert(&mut self, at: GuestVirtAddr, plain: PlainSite) {
        let slot = Some(Slot { at, plain });
        if let Some(place) = self.place(at) {
            self.slots[place] = slot;
            return;
        }
        if 3 * (self.len + 1) > 2 * self.slots.len() {
            self.grow();
        }
        self.put(slot);
        self.len += 1;
    }

    fn remove(&mut self, at: GuestVirtAddr) {
        let Some(mut hole) = self.place(at) else {
            return;
        };
        self.len -= 1;
        self.slots[hole] = None;
        // A site that was put behind the hole because its own slot was taken moves into the hole.
        let mut next = self.after(hole);
        while let Some(slot) = &self.slots[next] {
            let (home, mask) = (self.home(slot.at), self.slots.len() - 1);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.slots.swap(hole, next);
                hole = next;
            }
            next = self.after(next);
        }
    }

    /// Which slot the site at `at` is in.
    fn place(&self, at: GuestVirtAddr) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut place = self.home(at);
        while let Some(slot) = &self.slots[place] {
            if slot.at == at {
                return Some(place);
            }
            place = self.after(place);
        }
        None
    }

    /// Puts a site that isn't in the table into the first free slot from its own on.
    fn put(&mut self, slot: Option<Slot>) {
        let Some(at) = slot.as_ref().map(|slot| slot.at) else {
            return;
        };
        let mut place = self.home(at);
        while self.slots[place].is_some() {
            place = self.after(place);
        }
        self.slots[place] = slot;
    }

    fn grow(&mut self) {
        let more = (2 * self.slots.len()).max(LEAST);
        let fewer = std::mem::replace(&mut self.slots, (0..more).map(|_| None).collect());
        fewer.into_iter().for_each(|slot| self.put(slot));
    }

    /// Which slot the site at `at` has if no other site has taken it.
    fn home(&self, at: GuestVirtAddr) -> usize {
        home(at, self.slots.len() - 1)
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests;
