//! The int3s that are instructions of the kernel's own.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::INT3;

use crate::address_set::AddressSet;
use crate::image::Image;

/// The int3s in some parts of an image. One that is found there later is a breakpoint that somebody has set,
/// and hides the first byte of an instruction; these hide nothing. Of bytes in a row none is among them: that
/// is padding, which nothing executes.
pub(crate) fn find(image: &Image<'_>, parts: [Range<GuestVirtAddr>; 2]) -> AddressSet {
    let found = parts.into_iter().flat_map(|part| {
        let text = image.bytes(&(part.start.0..part.end.0)).unwrap_or_default();
        let is_int3 = |at: usize| text.get(at) == Some(&INT3);
        let is_alone = move |at: &usize| {
            is_int3(*at) && !is_int3(at + 1) && !at.checked_sub(1).is_some_and(is_int3)
        };
        let places = (0..text.len()).filter(is_alone);
        places.map(move |at| part.start.wrapping_add(at as u64))
    });
    AddressSet::new(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::synthetic::{TEXT, elf};

    #[test]
    fn an_int3_of_the_text_is_found_unless_it_is_padding() {
        // nop; int3; nop; ret; int3; int3; nop; int3, and one that is in none of the parts.
        let file = elf(b"\x90\xcc\x90\xc3\xcc\xcc\x90\xcc\x90\xcc");
        let image = Image::parse(&file).unwrap();
        let part = |from: u64, to: u64| GuestVirtAddr(TEXT + from)..GuestVirtAddr(TEXT + to);
        let outside = GuestVirtAddr(0)..GuestVirtAddr(1);
        for parts in [[part(0, 9), outside.clone()], [part(0, 6), part(6, 9)]] {
            let int3s = find(&image, parts);
            let found = (0..10).filter(|offset| int3s.contains(GuestVirtAddr(TEXT + offset)));
            assert_eq!(found.collect::<Vec<_>>(), [1, 7]);
        }
        let nowhere = find(&image, [outside.clone(), outside]);
        assert!(!nowhere.contains(GuestVirtAddr(TEXT + 1)));
    }
}
