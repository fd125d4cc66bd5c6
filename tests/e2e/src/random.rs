//! Numbers drawn at random, the same ones again for the same seed.

/// A generator: `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// So many of these, in the order in which they are drawn; all if there are fewer.
    pub fn draw<T>(&mut self, mut all: Vec<T>, count: usize) -> Vec<T> {
        let count = count.min(all.len());
        for at in 0..count {
            let rest = (all.len() - at) as u64;
            // The bias of the remainder is nothing for so few.
            all.swap(at, at + (self.next() % rest) as usize);
        }
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        // The first of the reference implementation.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn what_is_drawn_is_drawn_once() {
        let mut drawn = Random::new(3).draw((0..50).collect(), 20);
        assert_eq!(drawn.len(), 20);
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 20);
        assert_eq!(Random::new(3).draw(vec![7], 20), [7]);
    }
}
