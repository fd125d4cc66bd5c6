//! Random numbers.

/// Random numbers that begin with a seed.
pub fn from(seed: u64) -> impl FnMut() -> u64 {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    }
}
