//! The parts of the hole below the kernel image.

use std::ops::Range;

use guest_state::GuestVirtAddr;

/// Length of a slot in bytes. The longest code is 21 (an instruction, a byte and a jump); a slot of 32 that
/// begins at a multiple of 32 also keeps a jump from touching such a border, past which some
/// processors don't cache decoded instructions (Intel, "Mitigations for Jump Conditional Code
/// Erratum").
pub const SLOT_LEN: usize = 32;
/// How many slots there can be: 8 MiB of them, four for each function of a distribution's kernel.
pub(super) const SLOTS: usize = 1 << 18;

/// The addresses that the kernel leaves unused.
pub const HOLE: Range<GuestVirtAddr> =
    GuestVirtAddr(0xffff_ffff_0000_0000)..GuestVirtAddr(0xffff_ffff_8000_0000);

/// The top of the hole, where slots are. From anywhere in these 8 MiB a jump reaches all of the
/// image and of the modules' area, which ends at ffffffffff000000.
pub const SLOT_AREA: Range<GuestVirtAddr> =
    GuestVirtAddr(HOLE.end.0 - SLOTS as u64 * SLOT_LEN as u64)..HOLE.end;

/// Where springboards for jumps in modules are. A jump with an uppermost byte of 0xCC leads 0.8 GiB below itself. From
/// the modules' space, that is behind the kernel's image, where the kernel maps nothing once it has started
/// (`cleanup_highmap` in `arch/x86/mm/init_64.c`). The modules in the first 48 MiB of their space reach this, and they
/// are loaded from its bottom on.
pub const MODULE_BOARDS: Range<GuestVirtAddr> =
    GuestVirtAddr(0xffff_ffff_8c00_0000)..GuestVirtAddr(0xffff_ffff_9000_0000);

/// The bottom of the hole: a window for the vCPUs' blocks ([`crate::ring::layout`]), which lie in it at
/// distances that are the guest's choice. Memory is there as far as [`super::blocks_len`] says.
pub const BLOCKS: Range<GuestVirtAddr> = HOLE.start..GuestVirtAddr(HOLE.start.0 + (64 << 20));

/// Behind the blocks: the table of the calls that are followed ([`crate::calls::layout`]).
pub const CALLS: Range<GuestVirtAddr> =
    BLOCKS.end..GuestVirtAddr(BLOCKS.end.0 + crate::calls::layout::WINDOW);

/// Where the first ring is. Each is there twice in a row, so that a record that goes past its end goes on at its
/// beginning ([`crate::ring::layout::RING_LEN`]).
pub const RINGS: GuestVirtAddr = GuestVirtAddr(HOLE.start.0 + (256 << 20));

/// Where the guest's RAM is mapped once more, for detours to read: physical address 0 is at this address. The
/// kernel leaves these 444 GiB unused (`Documentation/arch/x86/x86_64/mm.rst`), and every address space has
/// them by the same table as the hole.
pub const RAM_WINDOW: GuestVirtAddr = GuestVirtAddr(0xffff_ff80_0000_0000);
