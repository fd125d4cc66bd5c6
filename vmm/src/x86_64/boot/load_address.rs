//! Load addresses: whether a kernel fits into low guest memory, and where its initramfs goes.

use std::ops::Range;

use guest_state::x86_64::PAGE_SIZE;

use super::error::LoadError;
use crate::{ram::MIB, x86_64::layout};

/// Checks that a part of the kernel lies between 1 MiB and `low_end`.
///
/// # Errors
/// [`LoadError::KernelTooLow`], [`LoadError::KernelOutOfReach`],
/// [`LoadError::KernelTooLarge`].
pub(super) fn check_kernel(start: u64, len: u64, low_end: u64) -> Result<Range<u64>, LoadError> {
    if start < layout::HIGH_RAM {
        return Err(LoadError::KernelTooLow { start });
    }
    let end = start.saturating_add(len);
    if end > layout::DEVICE_HOLE {
        return Err(LoadError::KernelOutOfReach { end });
    }
    if end > low_end {
        return Err(LoadError::KernelTooLarge {
            start,
            end,
            memory: low_end / MIB,
            needed: end.div_ceil(MIB),
        });
    }
    Ok(start..end)
}

/// The place for an initramfs of `len` bytes: as high as it can be below `limit`
/// and `low_end`, at the start of a page, above the kernel.
///
/// # Errors
/// [`LoadError::InitramfsTooLarge`], [`LoadError::InitramfsOutOfReach`].
pub(super) fn place_initramfs(
    len: u64,
    kernel_end: u64,
    limit: u64,
    low_end: u64,
) -> Result<u64, LoadError> {
    let limit = limit.min(layout::DEVICE_HOLE);
    let first = kernel_end.next_multiple_of(PAGE_SIZE);
    let end = limit.min(low_end);
    let start = end
        .checked_sub(len)
        .map(|start| start / PAGE_SIZE * PAGE_SIZE);
    if let Some(start) = start.filter(|start| *start >= first) {
        return Ok(start);
    }
    let room = end.saturating_sub(first);
    let enough = first.saturating_add(len).next_multiple_of(MIB);
    if first.saturating_add(len) > limit {
        return Err(LoadError::InitramfsOutOfReach {
            needed: len,
            room: limit.saturating_sub(first),
        });
    }
    Err(LoadError::InitramfsTooLarge {
        needed: len,
        room,
        memory: enough / MIB,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: u64 = layout::DEVICE_HOLE;

    #[test]
    fn an_initramfs_goes_to_the_top_of_low_memory() {
        let cases = [
            // length, end of kernel, limit, end of memory, place
            (0x1000, 0x200_0000, NO_LIMIT, 0x400_0000, 0x3ff_f000),
            (0x1001, 0x200_0000, NO_LIMIT, 0x400_0000, 0x3ff_e000),
            (0x1000, 0x200_0000, 0x8000_0000, 0xc000_0000, 0x7fff_f000),
            (0x200_0000, 0x1ff_f001, NO_LIMIT, 0x400_0000, 0x200_0000),
        ];
        for (len, kernel_end, limit, low_end, place) in cases {
            assert_eq!(
                place_initramfs(len, kernel_end, limit, low_end).unwrap(),
                place
            );
        }
    }

    #[test]
    fn an_initramfs_that_does_not_fit_names_the_memory_that_would_do() {
        // One byte too many: the kernel's last page is taken whole.
        for (len, kernel_end) in [(0x200_0001, 0x200_0000), (0x200_0000, 0x200_0001)] {
            let error = place_initramfs(len, kernel_end, NO_LIMIT, 0x400_0000).unwrap_err();
            let LoadError::InitramfsTooLarge { memory, .. } = error else {
                panic!("{error}")
            };
            assert_eq!(memory, 65);
            assert!(place_initramfs(len, kernel_end, NO_LIMIT, memory * MIB).is_ok());
        }
        let error = place_initramfs(100 * MIB, 0x200_0000, NO_LIMIT, 0x400_0000).unwrap_err();
        assert!(error.to_string().contains("132 MiB"), "{error}");
    }

    #[test]
    fn an_initramfs_over_the_kernels_limit_is_not_blamed_on_memory() {
        let error = place_initramfs(2 << 30, 0x200_0000, 0x8000_0000, 0xc000_0000).unwrap_err();
        assert!(
            matches!(error, LoadError::InitramfsOutOfReach { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_kernel_must_lie_between_1_mib_and_the_end_of_low_memory() {
        let check = |start, len| check_kernel(start, len, 64 * MIB);
        assert_eq!(check(MIB, 63 * MIB).unwrap(), MIB..64 * MIB);
        assert!(matches!(
            check(0x9000, 0x1000),
            Err(LoadError::KernelTooLow { start: 0x9000 })
        ));
        assert!(matches!(
            check(u64::MAX, 2),
            Err(LoadError::KernelOutOfReach { .. })
        ));
        assert!(matches!(
            check(16 * MIB, 48 * MIB + 1),
            Err(LoadError::KernelTooLarge {
                memory: 64,
                needed: 65,
                ..
            })
        ));
    }
}
