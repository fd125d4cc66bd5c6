//! Random numbers, which are the same for the same seed.

/// A generator: `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
#[derive(Debug, Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// Makes the generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which must not be zero. The remainder's bias is negligible for small bounds.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// Returns true once in `times`, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns `count` of these, in the order in which they are drawn; all if there are fewer.
    pub fn draw<T>(&mut self, mut all: Vec<T>, count: usize) -> Vec<T> {
        let count = count.min(all.len());
        for at in 0..count {
            let rest = (all.len() - at) as u64;
            all.swap(at, at + self.below(rest) as usize);
        }
        all.truncate(count);
        all
    }

    /// Fills a buffer.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns a value that often breaks arithmetic, or any value.
    pub fn value(&mut self) -> u64 {
        const EDGES: [u64; 12] = [
            0,
            1,
            2,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0x7fff_ffff,
            0x8000_0000,
            0x7fff_ffff_ffff_ffff,
            0x8000_0000_0000_0000,
        ];
        match self.below(4) {
            0 => self.pick(&EDGES),
            1 => self.pick(&EDGES).wrapping_neg(),
            _ => self.bits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        // The first number of the reference implementation.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_draw_takes_each_item_once() {
        let mut drawn = Random::new(3).draw((0..50).collect(), 20);
        assert_eq!(drawn.len(), 20);
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 20);
        assert_eq!(Random::new(3).draw(vec![7], 20), [7]);
    }
}
