//! Where the kernel's tables say that execution goes on, though no branch in the text leads there.

use std::ops::Range;

use guest_state::GuestVirtAddr;

use super::BlacklistError;
use super::format::{Format, Pointer, Table};
use super::image::Reader;
use crate::btf::Btf;
use crate::symbols::Symbols;
use crate::symbols::image::Image;

/// The second field of an entry of either table, right behind the first: where to go on.
const TARGET: usize = 4;

/// Where the kernel's tables lead. Addresses that are no text may be among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Landings {
    /// Where the kernel goes on after a fault that it expects (`__ex_table`), in ascending order.
    pub fix_ups: Vec<GuestVirtAddr>,
    /// Where its jump labels lead when they are switched on (`__jump_table`), in ascending order.
    pub labels: Vec<GuestVirtAddr>,
}

impl Landings {
    /// Whether the kernel goes on at an address in the range after a fault that it expects.
    pub fn any_fix_up(&self, range: Range<GuestVirtAddr>) -> bool {
        let first = self.fix_ups.partition_point(|at| *at < range.start);
        self.fix_ups.get(first).is_some_and(|at| *at < range.end)
    }
}

/// Reads where the kernel's tables lead.
///
/// Sources: `arch/x86/include/asm/extable.h` (instruction, fix-up), `include/linux/jump_label.h`
/// (code, target, key); each field is the distance from itself.
///
/// # Errors
/// See [`BlacklistError`].
pub fn landings(
    image: &[u8],
    symbols: &Symbols,
    btf: Option<&Btf>,
) -> Result<Landings, BlacklistError> {
    let image = Image::parse(image)?;
    let reader = Reader {
        image: &image,
        symbols,
    };
    let mut fix_ups = Vec::new();
    if let Some(table) = reader.bytes("__start___ex_table", "__stop___ex_table")? {
        add(&mut fix_ups, table, Format::exception(btf).stride)?;
    }
    let mut labels = Vec::new();
    if let Some(table) = reader.bytes("__start___jump_table", "__stop___jump_table")? {
        add(&mut labels, table, Format::JUMP_LABEL.stride)?;
    }
    fix_ups.sort_unstable();
    labels.sort_unstable();
    Ok(Landings { fix_ups, labels })
}

fn add(
    landings: &mut Vec<GuestVirtAddr>,
    table: Table<'_>,
    stride: usize,
) -> Result<(), BlacklistError> {
    if stride == 0 || !table.bytes.len().is_multiple_of(stride) {
        return Err(BlacklistError::Uneven {
            table: table.name.to_owned(),
            len: table.bytes.len(),
            entry: stride,
        });
    }
    let entries = table.bytes.chunks_exact(stride).zip(0_u64..);
    landings.extend(entries.filter_map(|(entry, index)| {
        let field = table
            .address
            .wrapping_add(index * stride as u64 + TARGET as u64);
        Pointer::Relative.read(entry.get(TARGET..)?, field)
    }));
    Ok(())
}
