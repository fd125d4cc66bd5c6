//! Many places of guest memory, one after the other.

use guest_state::{GuestMemory, GuestPhysAddr};

/// How many places ahead the processor fetches. One place takes 3 to 10 ns to deal with, and a line of memory 100 to
/// 200 ns to come.
const AHEAD: usize = 64;

/// The items, in order. When one of them is taken, the processor fetches what is in guest memory for a later one. The
/// places of a batch of probes are in as many lines of memory, and waiting for each of these takes most of a stop.
pub(crate) fn prefetched<'a, T>(
    items: &'a [T],
    memory: &'a dyn GuestMemory,
    place: impl Fn(&T) -> GuestPhysAddr + 'a,
) -> impl Iterator<Item = &'a T> {
    let later = items.iter().skip(AHEAD).map(Some);
    let later = later.chain(std::iter::repeat(None));
    items.iter().zip(later).map(move |(item, later)| {
        if let Some(later) = later {
            memory.prefetch(place(later));
        }
        item
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use guest_state::MemoryError;

    use super::*;

    /// Memory that notes what it is told to prefetch.
    #[derive(Default)]
    struct Noting(RefCell<Vec<u64>>);

    impl GuestMemory for Noting {
        fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
            let len = into.len();
            Err(MemoryError { at, len })
        }

        fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
            let len = from.len();
            Err(MemoryError { at, len })
        }

        fn prefetch(&self, at: GuestPhysAddr) {
            self.0.borrow_mut().push(at.0);
        }
    }

    #[test]
    fn each_place_is_fetched_before_its_item_is_taken() {
        let all: Vec<u64> = (0..3 * AHEAD as u64).collect();
        for count in [0, 1, AHEAD, AHEAD + 1, all.len()] {
            let (items, memory) = (&all[..count], Noting::default());
            let mut taken = 0;
            for item in prefetched(items, &memory, |item| GuestPhysAddr(0x1000 + item)) {
                assert_eq!(*item, taken);
                taken += 1;
                let fetched: Vec<u64> = memory.0.borrow().iter().map(|at| at - 0x1000).collect();
                let last = (taken + AHEAD as u64).min(count as u64);
                let expected: Vec<u64> = (AHEAD as u64..last).collect();
                assert_eq!(fetched, expected, "{taken} of {count}");
            }
            assert_eq!(taken, count as u64);
        }
    }
}
