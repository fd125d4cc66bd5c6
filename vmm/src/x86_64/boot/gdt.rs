//! The segment descriptors in force at the kernel's entry.
//!
//! Linux `Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol": a GDT with
//! `__BOOT_CS` (0x10) and `__BOOT_DS` (0x18), both flat 4 GiB segments, must be
//! loaded. Encoding: Intel SDM vol. 3, 3.4.5 and 7.2.3.

use kvm_bindings::{kvm_dtable, kvm_segment};

use crate::x86_64::layout;

/// `__BOOT_CS`.
pub(crate) const CODE: u16 = 0x10;
/// `__BOOT_DS`.
pub(crate) const DATA: u16 = 0x18;
/// Code in 32-bit mode.
pub(crate) const CODE_32: u16 = 0x30;
/// A task state segment, which a processor in long mode must have.
pub(crate) const TASK: u16 = 0x20;

/// Descriptors by selector / 8; the task segment's takes two places.
const TABLE: [u64; 7] = [
    0,
    0,
    // Present, code, readable, accessed; 64-bit, 4 KiB granularity.
    0x00af_9b00_0000_ffff,
    // Present, data, writable, accessed; 4 KiB granularity.
    0x00cf_9300_0000_ffff,
    // Present, busy 64-bit TSS at 0, of the architectural 0x68 bytes.
    0x0000_8b00_0000_0067,
    0,
    // Present, code, readable, accessed; 32-bit, 4 KiB granularity.
    0x00cf_9b00_0000_ffff,
];

/// The table as it goes into guest memory at [`layout::GDT`].
pub(crate) fn bytes() -> Vec<u8> {
    TABLE
        .iter()
        .flat_map(|descriptor| descriptor.to_le_bytes())
        .collect()
}

/// The register that points at the table.
pub(crate) fn register() -> kvm_dtable {
    kvm_dtable {
        base: layout::GDT,
        limit: (size_of_val(&TABLE) - 1) as u16,
        ..kvm_dtable::default()
    }
}

/// What a processor holds of the segment that `selector` names.
pub(crate) fn segment(selector: u16) -> kvm_segment {
    let descriptor = TABLE.get(usize::from(selector / 8)).copied().unwrap_or(0);
    let bit = |n: u32| (descriptor >> n & 1) as u8;
    let limit = (descriptor & 0xffff | descriptor >> 32 & 0xf_0000) as u32;
    kvm_segment {
        // All our segments begin at 0.
        base: 0,
        limit: if bit(55) == 1 {
            limit << 12 | 0xfff
        } else {
            limit
        },
        selector,
        type_: (descriptor >> 40 & 0xf) as u8,
        present: bit(47),
        dpl: (descriptor >> 45 & 3) as u8,
        db: bit(54),
        s: bit(44),
        l: bit(53),
        g: bit(55),
        avl: bit(52),
        unusable: 1 - bit(47),
        padding: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_what_the_boot_protocol_asks_for() {
        let code = segment(CODE);
        assert_eq!(
            (code.limit, code.type_, code.s, code.l, code.db),
            (u32::MAX, 0xb, 1, 1, 0)
        );
        let data = segment(DATA);
        assert_eq!(
            (data.limit, data.type_, data.s, data.l, data.db),
            (u32::MAX, 0x3, 1, 0, 1)
        );
        let task = segment(TASK);
        assert_eq!(
            (task.limit, task.type_, task.s, task.present),
            (0x67, 0xb, 0, 1)
        );
        assert_eq!(usize::from(register().limit) + 1, bytes().len());
        assert_eq!(segment(0).unusable, 1);
    }
}
