//! The tables of a kernel image, found by the symbols around them.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::MAX_INSTRUCTION_LEN;

use super::format::{Format, Pointer, RawTable};
use super::{BlacklistError, ExceptionTable, Landings};
use crate::btf::Btf;
use crate::image::Image;
use crate::symbols::Symbols;

/// Offset of the second field in an entry for an exception or a jump label, in bytes: where execution continues.
const TARGET: usize = 4;

/// The tables of one kernel.
#[derive(Debug)]
pub struct ImageTables<'a> {
    image: &'a Image<'a>,
    pub(super) symbols: &'a Symbols,
    pub(super) btf: Option<&'a Btf>,
    exceptions: Option<RawTable<'a>>,
    pub(super) jump_labels: Option<RawTable<'a>>,
}

impl<'a> ImageTables<'a> {
    /// Finds the tables of an image.
    ///
    /// # Errors
    /// [`BlacklistError::Outside`]
    pub fn of(
        image: &'a Image<'a>,
        symbols: &'a Symbols,
        btf: Option<&'a Btf>,
    ) -> Result<Self, BlacklistError> {
        let mut tables = Self {
            image,
            symbols,
            btf,
            exceptions: None,
            jump_labels: None,
        };
        tables.exceptions = tables.find("__start___ex_table", "__stop___ex_table")?;
        tables.jump_labels = tables.find("__start___jump_table", "__stop___jump_table")?;
        Ok(tables)
    }

    /// Returns the instructions whose faults the kernel has fix-ups for; none where it has no such table.
    ///
    /// # Errors
    /// See [`BlacklistError`].
    pub fn exceptions(&self) -> Result<ExceptionTable, BlacklistError> {
        let Some(table) = self.exceptions else {
            return Ok(ExceptionTable::default());
        };
        let places = self.places(table, Format::exception(self.btf))?;
        Ok(ExceptionTable::new(
            places.into_iter().map(|place| place.start),
        ))
    }

    /// Returns the addresses where execution continues according to the tables.
    ///
    /// Sources: `arch/x86/include/asm/extable.h` (instruction, fix-up), `include/linux/jump_label.h`
    /// (code, target, key); each field is the distance from itself.
    ///
    /// # Errors
    /// See [`BlacklistError`].
    pub fn landings(&self) -> Result<Landings, BlacklistError> {
        Ok(Landings {
            fix_ups: targets(self.exceptions, Format::exception(self.btf))?,
            labels: targets(self.jump_labels, Format::JUMP_LABEL)?,
        })
    }

    pub(super) fn address(&self, symbol: &str) -> Option<GuestVirtAddr> {
        Some(self.symbols.by_name(symbol).next()?.address)
    }

    pub(super) fn range(&self, start: &str, end: &str) -> Option<Range<GuestVirtAddr>> {
        Some(self.address(start)?..self.address(end)?)
    }

    /// Returns the table between two symbols; `None` where the kernel has no such table.
    pub(super) fn find(
        &self,
        start: &'a str,
        end: &str,
    ) -> Result<Option<RawTable<'a>>, BlacklistError> {
        let Some(range) = self.range(start, end) else {
            return Ok(None);
        };
        let bytes = self.image.bytes(&(range.start.0..range.end.0));
        let bytes = bytes.ok_or_else(|| BlacklistError::Outside {
            table: start.to_owned(),
            start: range.start,
            end: range.end,
        })?;
        Ok(Some(RawTable {
            name: start,
            address: range.start,
            bytes,
        }))
    }

    /// Returns the places that a table names, all of which must be in the image. They may be in any segment: some
    /// kernels have init text in a segment that isn't marked as executable, and code to be copied in their data.
    pub(super) fn places(
        &self,
        table: RawTable<'a>,
        format: Format,
    ) -> Result<Vec<Range<GuestVirtAddr>>, BlacklistError> {
        let code = |at: GuestVirtAddr| {
            let rest = self.image.from(at.0)?;
            Some(&rest[..rest.len().min(MAX_INSTRUCTION_LEN)])
        };
        format.places(table, code)?.collect()
    }
}

/// Returns the targets of the entries of a table, in ascending order.
pub(crate) fn targets(
    table: Option<RawTable<'_>>,
    format: Format,
) -> Result<Vec<GuestVirtAddr>, BlacklistError> {
    let Some(table) = table else {
        return Ok(Vec::new());
    };
    let target = |(at, entry): (GuestVirtAddr, &[u8])| {
        Pointer::Relative.read(entry.get(TARGET..)?, at.wrapping_add(TARGET as u64))
    };
    let mut targets: Vec<_> = format.entries(table)?.filter_map(target).collect();
    targets.sort_unstable();
    Ok(targets)
}
