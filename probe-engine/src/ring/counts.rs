//! The counters in the vCPUs' blocks.

use std::ops::Range;

use guest_state::{GuestMemory, GuestPhysAddr, MemoryError};

use super::layout;
use super::memory::CHUNK;

/// What the counters have come to. They have 32 bits and wrap around, so each total grows by how
/// much a counter has grown since it was read last.
#[derive(Debug)]
pub struct Counts {
    /// For each block, what each of its counters was when it was read last.
    seen: Vec<Vec<u32>>,
    totals: Vec<u64>,
}

impl Counts {
    pub fn new(blocks: usize) -> Self {
        Self {
            seen: vec![Vec::new(); blocks],
            totals: Vec::new(),
        }
    }

    /// Adds what these counters of all blocks have grown by to the totals.
    pub fn update(
        &mut self,
        memory: &dyn GuestMemory,
        blocks: impl Iterator<Item = GuestPhysAddr>,
        cells: Range<u32>,
    ) -> Result<(), MemoryError> {
        let Range { start, end } = cells.start as usize..cells.end as usize;
        if self.totals.len() < end {
            self.totals.resize(end, 0);
        }
        let mut bytes = vec![0; CHUNK.min((end.saturating_sub(start)) * layout::CELL as usize)];
        for (block, seen) in blocks.zip(&mut self.seen) {
            if seen.len() < end {
                seen.resize(end, 0);
            }
            let mut at = start;
            while at < end {
                let len = bytes.len().min((end - at) * layout::CELL as usize);
                let offset = layout::CELLS + at as u64 * layout::CELL;
                memory.read(block.wrapping_add(offset), &mut bytes[..len])?;
                let (cells, _) = bytes[..len].as_chunks();
                let counters = seen[at..].iter_mut().zip(&mut self.totals[at..]);
                for ((seen, total), cell) in counters.zip(cells) {
                    let now = u32::from_le_bytes(*cell);
                    *total = total.wrapping_add(now.wrapping_sub(*seen).into());
                    *seen = now;
                }
                at += cells.len();
            }
        }
        Ok(())
    }

    pub fn total(&self, cell: u32) -> u64 {
        self.totals.get(cell as usize).copied().unwrap_or_default()
    }
}
