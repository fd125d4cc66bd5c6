//! The int3s that are the kernel's own.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::INT3;

use crate::image::Image;

/// The int3s in the text of an image: padding, and a few that are executed, as `native_machine_emergency_restart`
/// (`arch/x86/kernel/reboot.c`) has one. An int3 that is found elsewhere is a breakpoint that was set later, and hides
/// the first byte of an instruction. Those of the image hide nothing.
#[derive(Debug, Clone, Default)]
pub struct Int3s {
    /// Each row of int3s is one range. Sorted by where they begin.
    runs: Vec<Range<GuestVirtAddr>>,
}

impl Int3s {
    /// Finds the int3s in two parts of an image.
    pub(crate) fn find(image: &Image<'_>, parts: [Range<GuestVirtAddr>; 2]) -> Self {
        let mut runs: Vec<Range<GuestVirtAddr>> = Vec::new();
        for part in parts {
            let text = image.bytes(&(part.start.0..part.end.0)).unwrap_or_default();
            for at in (0..text.len()).filter(|at| text[*at] == INT3) {
                let address = part.start.wrapping_add(at as u64);
                match runs.last_mut() {
                    Some(run) if run.end == address => run.end = address.wrapping_add(1),
                    _ => runs.push(address..address.wrapping_add(1)),
                }
            }
        }
        runs.sort_unstable_by_key(|run| run.start);
        Self { runs }
    }

    /// Makes a list of one int3.
    #[cfg(any(test, feature = "testing"))]
    pub fn one(address: GuestVirtAddr) -> Self {
        let run = address..address.wrapping_add(1);
        Self { runs: vec![run] }
    }

    /// Returns true if one of these int3s is at an address.
    pub fn contains(&self, address: GuestVirtAddr) -> bool {
        let before = self.runs.partition_point(|run| run.start <= address);
        let run = before.checked_sub(1).and_then(|last| self.runs.get(last));
        run.is_some_and(|run| run.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::synthetic::{TEXT, elf};

    #[test]
    fn each_int3_of_the_text_is_found() {
        // nop; int3; nop; ret; int3; int3; nop; int3, and one that is in none of the parts.
        let file = elf(b"\x90\xcc\x90\xc3\xcc\xcc\x90\xcc\x90\xcc");
        let image = Image::parse(&file).unwrap();
        let part = |from: u64, to: u64| GuestVirtAddr(TEXT + from)..GuestVirtAddr(TEXT + to);
        let outside = GuestVirtAddr(0)..GuestVirtAddr(1);
        for parts in [[part(0, 9), outside.clone()], [part(0, 5), part(5, 9)]] {
            let int3s = Int3s::find(&image, parts);
            let found = (0..10).filter(|offset| int3s.contains(GuestVirtAddr(TEXT + offset)));
            assert_eq!(found.collect::<Vec<_>>(), [1, 4, 5, 7]);
        }
        let nowhere = Int3s::find(&image, [outside.clone(), outside]);
        assert!(!nowhere.contains(GuestVirtAddr(TEXT + 1)));
    }
}
