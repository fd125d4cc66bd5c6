//! Shares of the tests, for several machines that divide them.

use std::fmt;
use std::str::FromStr;

/// One share of several: every n-th test, so that tests of one subject, which are alike in length, are
/// spread over all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1 on.
    number: usize,
    of: usize,
}

impl Shard {
    /// All tests.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Returns true if the test with this index among all is in this share.
    pub fn has(self, index: usize) -> bool {
        index % self.of + 1 == self.number
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('/');
        let numbers =
            numbers.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err("a share is its number and how many there are: 1/3, 2/3, 3/3".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_is_in_one_share() {
        let shards: Vec<Shard> = (1..=3).map(|n| format!("{n}/3").parse().unwrap()).collect();
        for index in 0..10 {
            assert_eq!(shards.iter().filter(|shard| shard.has(index)).count(), 1);
        }
        assert!((0..10).all(|index| Shard::WHOLE.has(index)));
    }

    #[test]
    fn a_share_that_is_none_is_refused() {
        for text in ["", "1", "0/3", "4/3", "1/0", "-1/3", "a/b", "1/3/5"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
