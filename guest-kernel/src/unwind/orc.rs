//! A table of ORC entries: that of the kernel's image, or of one module.

use std::collections::HashMap;
use std::ops::Range;

use guest_state::GuestVirtAddr;

use super::entry::{FrameType, OrcEntry};
use super::error::OrcError;
use super::format::{Bits, ENTRY_LEN, Format, Numbers};
use crate::banner;
use crate::btf::Btf;
use crate::image::Image;
use crate::symbols::Symbols;

/// Bytes of the distance that leads to an entry's code.
pub(super) const IP_LEN: usize = 4;

/// How to unwind from each place of the code of a kernel image or a module. Takes about 6 bytes for each
/// entry: 2.6 MB for a distribution's kernel.
#[derive(Debug)]
pub struct Orc {
    pub(super) format: Format,
    /// The code that the table is for.
    code: Vec<Range<GuestVirtAddr>>,
    /// The address of the first entry.
    base: u64,
    /// Where each entry begins, from `base` on, in ascending order.
    starts: Vec<u32>,
    /// Which of the kinds each entry is, by its index.
    numbers: Vec<u16>,
    kinds: Vec<OrcEntry>,
}

/// The two halves of a table as memory has them.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawOrc<'a> {
    /// Where the first half begins.
    pub(super) address: GuestVirtAddr,
    /// The distance of each entry's code from the distance itself (s32).
    pub(super) ips: &'a [u8],
    /// The entries, in the same order.
    pub(super) entries: &'a [u8],
}

impl Orc {
    /// Reads the table of a vmlinux; `None` where the kernel was built without (`CONFIG_UNWINDER_ORC`).
    ///
    /// # Errors
    /// See [`OrcError`].
    pub fn from_image(
        image: &Image<'_>,
        symbols: &Symbols,
        btf: Option<&Btf>,
    ) -> Result<Option<Self>, OrcError> {
        // include/asm-generic/vmlinux.lds.h, ORC_UNWIND_TABLE
        let find = |table: &'static str, end: &str| {
            let address = |name| Some(symbols.by_name(name).next()?.address);
            let (start, end) = (address(table)?, address(end)?);
            let bytes = image.bytes(&(start.0..end.0));
            let bytes = bytes.ok_or(OrcError::Outside { table, start, end });
            Some(bytes.map(|bytes| (start, bytes)))
        };
        let ips = find("__start_orc_unwind_ip", "__stop_orc_unwind_ip").transpose()?;
        let entries = find("__start_orc_unwind", "__stop_orc_unwind").transpose()?;
        let (Some((address, ips)), Some((_, entries))) = (ips, entries) else {
            return Ok(None);
        };
        let typed = btf.map(Bits::of_types).transpose()?.flatten();
        let by_release = || Bits::of_release(&banner::version(image, symbols)?);
        let bits = typed.or_else(by_release);
        let format = Format {
            bits: bits.ok_or(OrcError::UnknownFormat)?,
            numbers: Numbers::of_entries(entries.as_chunks().0),
        };
        let raw = RawOrc {
            address,
            ips,
            entries,
        };
        let code = vec![symbols.text(), symbols.init_text()];
        Ok(Some(Self::new(raw, format, code)?).filter(|orc| !orc.starts.is_empty()))
    }

    /// Makes a table from its two halves, for some code.
    ///
    /// # Errors
    /// [`OrcError::Uneven`], [`OrcError::Damaged`]
    pub(super) fn new(
        raw: RawOrc<'_>,
        format: Format,
        code: Vec<Range<GuestVirtAddr>>,
    ) -> Result<Self, OrcError> {
        let (ips, rest) = raw.ips.as_chunks::<IP_LEN>();
        let (entries, rest_of_entries) = raw.entries.as_chunks::<ENTRY_LEN>();
        if ips.len() != entries.len() || !rest.is_empty() || !rest_of_entries.is_empty() {
            return Err(OrcError::Uneven {
                ips: raw.ips.len(),
                entries: raw.entries.len(),
            });
        }
        let damaged = |what| move || OrcError::Damaged { what };
        let mut kinds = Vec::new();
        let mut known = HashMap::new();
        let mut found = Vec::with_capacity(entries.len());
        for ((ip, bytes), i) in ips.iter().zip(entries).zip(0..) {
            let number = match known.get(bytes) {
                Some(number) => *number,
                None => {
                    let number = u16::try_from(kinds.len())
                        .ok()
                        .ok_or_else(damaged("it has too many kinds of entries"))?;
                    kinds.push(format.decode(*bytes));
                    known.insert(*bytes, number);
                    number
                }
            };
            let distance = i64::from(i32::from_le_bytes(*ip)).cast_unsigned();
            let from_start = IP_LEN as u64 * i;
            let start = raw.address.wrapping_add(from_start).wrapping_add(distance);
            found.push((start.0, number));
        }
        // Of two entries for one place, the one that only ends the code before it is dropped. It comes first
        // (`orc_sort_cmp` in scripts/sorttable.c). Images and loaded modules are sorted already.
        let is_end = |number: u16| {
            let kind = kinds.get(usize::from(number));
            kind.is_some_and(|kind| kind.frame == FrameType::Undefined)
        };
        found.sort_by_key(|(start, number)| (*start, !is_end(*number)));
        let base = found.first().map_or(0, |(start, _)| *start);
        let mut orc = Self {
            format,
            code,
            base,
            starts: Vec::with_capacity(found.len()),
            numbers: Vec::with_capacity(found.len()),
            kinds: Vec::new(),
        };
        for (start, number) in found {
            let start = u32::try_from(start - base)
                .ok()
                .ok_or_else(damaged("its code is too far apart"))?;
            if orc.starts.last() == Some(&start) {
                orc.starts.pop();
                orc.numbers.pop();
            }
            if orc.numbers.last() != Some(&number) {
                orc.starts.push(start);
                orc.numbers.push(number);
            }
        }
        orc.kinds = kinds;
        orc.starts.shrink_to_fit();
        orc.numbers.shrink_to_fit();
        Ok(orc)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns true if the table is for the code at an address.
    pub fn covers(&self, at: GuestVirtAddr) -> bool {
        self.code.iter().any(|range| range.contains(&at))
    }

    /// Returns what the table says of the instruction at an address; `None` for code that it isn't for.
    pub fn find(&self, at: GuestVirtAddr) -> Option<OrcEntry> {
        if !self.covers(at) {
            return None;
        }
        let offset = at.0.checked_sub(self.base)?;
        let behind = self
            .starts
            .partition_point(|start| u64::from(*start) <= offset);
        let number = self.numbers.get(behind.checked_sub(1)?)?;
        self.kinds.get(usize::from(*number)).copied()
    }
}
