//! kallsyms' dictionary: 256 short texts, and the offset of each.
//!
//! Source: Linux `scripts/kallsyms.c`, `write_src()`. `kallsyms_token_table` holds the texts, each
//! ended by a NUL, in the order of their codes; `kallsyms_token_index`, right behind it, holds
//! 256 offsets (u16) into it. This pair is the one part of
//! kallsyms that looks the same in every version and like nothing else in a kernel, so it is what
//! the search for the others starts from.

/// How many codes there are.
const CODES: usize = 256;
/// The tables' least alignment in bytes: 8 in older kernels, 4 in newer ones.
const ALIGN: usize = 4;
/// The most bytes of padding behind the texts.
const MAX_PADDING: usize = 7;
/// Length of the index in bytes.
const INDEX_LEN: usize = CODES * 2;
/// The longest text of a code: a symbol's name and type (`KSYM_NAME_LEN`, 512 since Linux 6.1).
const MAX_TEXT: usize = 512;

/// A dictionary found in a segment.
pub struct Tokens<'a> {
    texts: Vec<&'a str>,
    /// Where its first table begins, in bytes from the start of the segment.
    pub start: usize,
    /// Where its last table ends.
    pub end: usize,
}

impl<'a> Tokens<'a> {
    /// Returns everything in `data` that could be a dictionary.
    pub fn find_all(data: &'a [u8]) -> impl Iterator<Item = Self> {
        let (words, _) = data.as_chunks::<ALIGN>();
        let pairs = words.windows(2).zip((0..).step_by(ALIGN));
        pairs
            .filter(|(pair, _)| may_be_index(pair))
            .filter_map(|(_, at)| Self::at(data, at))
    }

    /// Returns the text that a code stands for.
    pub fn text(&self, code: u8) -> &'a str {
        self.texts[usize::from(code)]
    }

    /// Reads the dictionary whose index is at `at`; `None` if there is none.
    fn at(data: &'a [u8], at: usize) -> Option<Self> {
        let index: Vec<usize> = data
            .get(at..at + INDEX_LEN)?
            .as_chunks::<2>()
            .0
            .iter()
            .map(|offset| usize::from(u16::from_le_bytes(*offset)))
            .collect();
        if !index.is_sorted_by(|a, b| a < b) {
            return None;
        }
        // The last text's length isn't known, so neither is where the table begins.
        let shortest = (index[CODES - 1] + 1).next_multiple_of(ALIGN);
        (shortest..=shortest + MAX_TEXT + MAX_PADDING)
            .step_by(ALIGN)
            .find_map(|len| {
                let start = at.checked_sub(len)?;
                let texts = texts(&data[start..at], &index)?;
                Some(Self {
                    texts,
                    start,
                    end: at + INDEX_LEN,
                })
            })
    }
}

/// Returns true if two words may begin an index: the first offset is 0 and the next ones grow.
fn may_be_index(words: &[[u8; ALIGN]]) -> bool {
    let [first, next] = words else {
        return false;
    };
    let first = u32::from_le_bytes(*first);
    let second = first >> 16;
    let third = || u32::from_le_bytes(*next) & 0xffff;
    first & 0xffff == 0 && second > 0 && second < third()
}

/// Reads the texts of a table. They must match the index, and zeros must follow them to the table's
/// end.
fn texts<'a>(table: &'a [u8], index: &[usize]) -> Option<Vec<&'a str>> {
    let last = table.get(*index.last()?..)?;
    let end = table.len() - last.len() + last.iter().position(|byte| *byte == 0)?;
    if table.len() - end > 1 + MAX_PADDING || table[end..].iter().any(|byte| *byte != 0) {
        return None;
    }
    let ends = index.iter().skip(1).map(|next| next - 1).chain([end]);
    let texts: Vec<&str> = index
        .iter()
        .zip(ends)
        .map(|(start, end)| {
            let text = table.get(*start..end)?;
            let ended = table[end] == 0;
            let graphic = text.iter().all(u8::is_ascii_graphic);
            (ended && graphic && text.len() <= MAX_TEXT).then_some(())?;
            str::from_utf8(text).ok()
        })
        .collect::<Option<_>>()?;
    // A table of zeros would match, too.
    texts.iter().any(|text| !text.is_empty()).then_some(texts)
}
