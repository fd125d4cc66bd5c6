//! Pages of the kernel's ring buffer (`kernel/trace/ring_buffer.c`): a header of two words, the time of the
//! first record and how many bytes of records follow, then the records. Each has a word with its length and the
//! time since the one before, as `ring_buffer_print_entry_header` there describes it.

/// The size of a page in bytes.
pub(super) const PAGE: usize = 4096;
/// The page's header: `timestamp` and `commit` of `struct buffer_data_page`.
pub(super) const HEADER: usize = 16;
/// The longest data of a record: what fits a page with two words of its own, a time before it, and the number of
/// lost events behind it.
pub(super) const DATA_MAX: usize = PAGE - HEADER - 8 - 8 - 8;

/// Data of more bytes has its length in a word of its own (`RINGBUF_TYPE_DATA_TYPE_LEN_MAX`, in words).
const SMALL_DATA_MAX: usize = 28 * 4;
/// Bits of the time since the record before (`TS_SHIFT`).
const DELTA_BITS: u32 = 27;
const TYPE_TIME_EXTEND: u32 = 30;
const TYPE_TIME_STAMP: u32 = 31;
/// Bits of an absolute time: those of a word and those of a delta (`ABS_TS_MASK`).
const ABSOLUTE_BITS: u32 = 59;

/// Bits of `commit`: events were lost before this page, and their number stands behind its records
/// (`RB_MISSED_EVENTS` and `RB_MISSED_STORED`).
const MISSED_EVENTS: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;

/// A page that is being filled.
#[derive(Debug)]
pub(super) struct Page {
    first: u64,
    last: u64,
    missed: u64,
    records: Vec<u8>,
}

impl Page {
    /// Makes an empty page, before whose first event `missed` events were lost.
    pub(super) fn new(missed: u64) -> Self {
        Self {
            first: 0,
            last: 0,
            missed,
            records: Vec::with_capacity(PAGE - HEADER),
        }
    }

    /// Appends a record of at most [`DATA_MAX`] bytes. Returns false if the page has no room for it or can't tell its
    /// time. An empty page takes it.
    pub(super) fn push(&mut self, time: u64, data: &[u8]) -> bool {
        if self.records.is_empty() {
            (self.first, self.last) = (time, time);
        }
        // A reader completes an absolute time with the upper bits of the page's time.
        let absolute = time < self.last;
        if absolute && time >> ABSOLUTE_BITS != self.first >> ABSOLUTE_BITS {
            return false;
        }
        let mut delta = if absolute { 0 } else { time - self.last };
        if delta >> ABSOLUTE_BITS != 0 {
            return false;
        }
        let padded = data.len().next_multiple_of(4);
        let extend = absolute || delta >> DELTA_BITS != 0;
        let size = padded + 4 + usize::from(extend) * 8 + usize::from(padded > SMALL_DATA_MAX) * 4;
        let reserved = if self.missed > 0 { 8 } else { 0 };
        if self.records.len() + size > PAGE - HEADER - reserved {
            return false;
        }
        if absolute {
            self.push_time(TYPE_TIME_STAMP, time & ((1 << ABSOLUTE_BITS) - 1));
        } else if extend {
            self.push_time(TYPE_TIME_EXTEND, delta);
            delta = 0;
        }
        if padded > SMALL_DATA_MAX {
            self.push_word(word(0, delta));
            self.push_word(low_word(padded as u64 + 4));
        } else {
            self.push_word(word(low_word((padded / 4).max(1) as u64), delta));
        }
        self.records.extend_from_slice(data);
        let end = self.records.len() + (padded - data.len());
        self.records.resize(end, 0);
        if padded == 0 {
            // A length of 0 here says that the length has a word of its own, so it can't stand for empty data.
            self.push_word(0);
        }
        self.last = time;
        true
    }

    fn push_time(&mut self, kind: u32, time: u64) {
        self.push_word(word(kind, time & ((1 << DELTA_BITS) - 1)));
        self.push_word(low_word(time >> DELTA_BITS));
    }

    fn push_word(&mut self, word: u32) {
        self.records.extend_from_slice(&word.to_le_bytes());
    }

    /// Returns the whole page.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut commit = self.records.len() as u64;
        if self.missed > 0 {
            commit |= MISSED_EVENTS | MISSED_STORED;
        }
        let mut bytes = Vec::with_capacity(PAGE);
        bytes.extend_from_slice(&self.first.to_le_bytes());
        bytes.extend_from_slice(&commit.to_le_bytes());
        bytes.extend_from_slice(&self.records);
        if self.missed > 0 {
            bytes.extend_from_slice(&self.missed.to_le_bytes());
        }
        bytes.resize(PAGE, 0);
        bytes
    }
}

/// Makes a record's first word: five bits of type or length, and the time.
fn word(kind: u32, delta: u64) -> u32 {
    kind | low_word(delta << 5)
}

fn low_word(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(page: &Page) -> Vec<u32> {
        let words = page.records.chunks(4);
        words
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn a_record_has_its_length_in_words_and_the_time_since_the_last() {
        let mut page = Page::new(0);
        assert!(page.push(1000, &[1, 0, 0, 0, 2, 0, 0]));
        assert!(page.push(1007, &[3, 0, 0, 0]));
        assert_eq!(words(&page), [2, 1, 2, 7 << 5 | 1, 3]);
        let bytes = page.bytes();
        assert_eq!(bytes.len(), PAGE);
        assert_eq!(bytes[..8], 1000_u64.to_le_bytes());
        assert_eq!(bytes[8..16], 20_u64.to_le_bytes());
    }

    #[test]
    fn long_data_has_its_length_in_a_word_of_its_own() {
        let mut page = Page::new(0);
        assert!(page.push(5, &[0; 112]));
        assert_eq!(words(&page)[0], 28);
        let mut page = Page::new(0);
        assert!(page.push(5, &[0; 113]));
        assert_eq!(words(&page)[..2], [0, 116 + 4]);
    }

    #[test]
    fn a_long_time_has_a_record_of_its_own_and_so_has_a_step_back() {
        let mut page = Page::new(0);
        assert!(page.push(0, &[1, 0, 0, 0]));
        let time = 3 << 27 | 5;
        assert!(page.push(time, &[2, 0, 0, 0]));
        assert!(page.push(time - 1, &[3, 0, 0, 0]));
        assert_eq!(
            words(&page),
            [1, 1, 5 << 5 | 30, 3, 1, 2, 4 << 5 | 31, 3, 1, 3]
        );
        assert!(!page.push(u64::MAX, &[4, 0, 0, 0]), "too far");
        let mut page = Page::new(0);
        assert!(page.push(u64::MAX, &[1, 0, 0, 0]));
        assert!(!page.push(0, &[2, 0, 0, 0]), "too far back");
    }

    #[test]
    fn a_page_takes_no_more_than_it_holds() {
        for missed in [0, 3] {
            let mut page = Page::new(missed);
            assert!(page.push(9, &[7; DATA_MAX]));
            let mut page = Page::new(missed);
            let mut count = 0;
            while page.push(count, &[0; 44]) {
                count += 1;
            }
            assert_eq!(count, if missed == 0 { 85 } else { 84 });
            let bytes = page.bytes();
            assert_eq!(bytes.len(), PAGE);
            if missed > 0 {
                let end = HEADER + page.records.len();
                assert_eq!(bytes[end..end + 8], 3_u64.to_le_bytes());
                assert_eq!(bytes[11] >> 6, 3);
            }
        }
    }
}
