//! What a hit records: a list of fetches, each of which takes one value.
//!
//! Breakpoints and detours use the same list. A breakpoint takes the values from the stopped vCPU (`Fetches::take`).
//! The code of a detour writes them into a record ([`Fetches::layout`] tells where), and the reader of the rings gets
//! them from there ([`Fetched`]).

use guest_state::Registers;

/// Bytes of a value.
const VALUE: u64 = 8;

/// One value to take at a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// A general register, by its number in instruction encodings: 0 is RAX, 4 is RSP, 15 is R15
    /// (Intel SDM vol. 2, table 2-4). There are no others.
    Register(u8),
    /// RFLAGS.
    Flags,
}

impl Fetch {
    /// The number of [`Self::Flags`]; those of the registers are below.
    const FLAGS: u8 = 16;

    /// The fetch of a register by its number; 16 is RFLAGS.
    pub fn numbered(number: u8) -> Option<Self> {
        match number {
            0..Self::FLAGS => Some(Self::Register(number)),
            Self::FLAGS => Some(Self::Flags),
            _ => None,
        }
    }

    /// The number by which [`Self::numbered`] finds it.
    pub fn number(self) -> u8 {
        match self {
            Self::Register(number) => number,
            Self::Flags => Self::FLAGS,
        }
    }

    /// Its bit in a list; 0 for a register that doesn't exist.
    fn bit(self) -> u32 {
        match self {
            Self::Register(0..Self::FLAGS) | Self::Flags => 1 << self.number(),
            Self::Register(_) => 0,
        }
    }

    /// The place of its value among the registers.
    fn of(self, registers: &mut Registers) -> &mut u64 {
        match self {
            Self::Register(number) => registers.by_number_mut(number),
            Self::Flags => &mut registers.rflags,
        }
    }
}

/// A list of fetches without repetitions: the general registers by their numbers, then RFLAGS.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fetches(u32);

impl Fetches {
    /// The general registers and RFLAGS.
    pub const ALL: Self = Self((1 << (Fetch::FLAGS + 1)) - 1);

    /// These and one more.
    #[must_use]
    pub fn with(self, fetch: Fetch) -> Self {
        Self(self.0 | fetch.bit())
    }

    /// The fetches of both lists.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns true if the fetch is in the list.
    pub fn contains(self, fetch: Fetch) -> bool {
        self.0 & fetch.bit() != 0
    }

    /// The fetches in the order in which a record has their values.
    pub fn iter(self) -> impl Iterator<Item = Fetch> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let fetch = Fetch::numbered(left.trailing_zeros() as u8)?;
            left &= left - 1;
            Some(fetch)
        })
    }

    /// Each fetch, and where its value is, in bytes from the first value of a record.
    pub fn layout(self) -> impl Iterator<Item = (Fetch, u64)> {
        self.iter().zip((0..).step_by(VALUE as usize))
    }

    /// Bytes that the values take in a record.
    pub const fn len_bytes(self) -> u64 {
        VALUE * self.0.count_ones() as u64
    }

    /// Takes the values, and RIP, from the registers at a hit; what isn't fetched is 0.
    pub(crate) fn take(self, hit: &Registers) -> Registers {
        if self == Self::ALL {
            return *hit;
        }
        let mut hit = *hit;
        let mut taken = Registers {
            rip: hit.rip,
            ..Registers::default()
        };
        for fetch in self.iter() {
            *fetch.of(&mut taken) = *fetch.of(&mut hit);
        }
        taken
    }

    /// Takes the values from the front of a record's words. `None` if there are too few words.
    pub(crate) fn split_off<'a>(self, words: &mut &'a [[u8; 8]]) -> Option<Fetched<'a>> {
        let values = words.split_off(..self.0.count_ones() as usize)?;
        Some(Fetched {
            fetches: self,
            values,
        })
    }
}

/// The values of a list as a record has them.
#[derive(Debug, Clone, Copy)]
pub struct Fetched<'a> {
    fetches: Fetches,
    /// As many as there are fetches.
    values: &'a [[u8; 8]],
}

impl Fetched<'_> {
    /// The values in their registers; what isn't fetched, and RIP, is 0.
    pub fn registers(self) -> Registers {
        if let Some(all) = self.values.as_array() {
            return all_of(all);
        }
        let mut taken = Registers::default();
        for (fetch, value) in self.fetches.iter().zip(self.values) {
            *fetch.of(&mut taken) = u64::from_le_bytes(*value);
        }
        taken
    }
}

/// The registers of a record that has [`Fetches::ALL`]. Most records do, so the list isn't gone
/// through.
fn all_of(values: &[[u8; 8]; Fetch::FLAGS as usize + 1]) -> Registers {
    let [general @ .., rflags] = values.map(u64::from_le_bytes);
    Registers {
        rflags,
        ..Registers::numbered(general)
    }
}

impl FromIterator<Fetch> for Fetches {
    fn from_iter<T: IntoIterator<Item = Fetch>>(fetches: T) -> Self {
        fetches.into_iter().fold(Self::default(), Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Registers {
        let mut values = Registers {
            rip: 99,
            ..Registers::default()
        };
        for fetch in Fetches::ALL.iter() {
            *fetch.of(&mut values) = 100 + u64::from(fetch.number());
        }
        values
    }

    #[test]
    fn a_list_has_each_fetch_once_and_in_one_order() {
        let list: Fetches = [Fetch::Register(7), Fetch::Flags, Fetch::Register(2)]
            .into_iter()
            .chain([
                Fetch::Register(7),
                Fetch::Register(16),
                Fetch::Register(200),
            ])
            .collect();
        let layout: Vec<_> = list.layout().collect();
        let expected = [
            (Fetch::Register(2), 0),
            (Fetch::Register(7), 8),
            (Fetch::Flags, 16),
        ];
        assert_eq!(layout, expected);
        assert_eq!(list.len_bytes(), 24);
        assert!(list.contains(Fetch::Flags) && !list.contains(Fetch::Register(0)));
        assert_eq!((0..=255).filter_map(Fetch::numbered).count(), 17);
        assert_eq!(Fetches::ALL.iter().count(), 17);
        assert_eq!(Fetches::default().iter().next(), None);
    }

    #[test]
    fn a_breakpoint_and_a_record_have_the_same_values() {
        let lists = [
            Fetches::default(),
            Fetches::default().with(Fetch::Register(4)),
            [Fetch::Register(0), Fetch::Flags].into_iter().collect(),
            Fetches::ALL,
        ];
        for list in lists {
            let words = list.iter().map(|fetch| 100 + u64::from(fetch.number()));
            let words: Vec<_> = words.chain([7]).map(u64::to_le_bytes).collect();
            let mut left = &words[..];
            let mut decoded = list.split_off(&mut left).unwrap().registers();
            assert_eq!(left, [7_u64.to_le_bytes()]);
            decoded.rip = 99;
            assert_eq!(list.take(&values()), decoded, "{list:?}");
            assert_eq!(list.take(&values()).rip, 99);
        }
        assert!(Fetches::ALL.split_off(&mut &[[1; 8]; 16][..]).is_none());
    }
}
