//! Where things are in the guest's physical address space.

/// First byte of the table of segment descriptors used at entry.
pub(crate) const GDT: u64 = 0x500;
/// The Linux "zero page", `struct boot_params`.
pub(crate) const ZERO_PAGE: u64 = 0x7000;
/// `hvm_start_info` of a kernel that is entered by PVH, which has no zero page; its list of modules; its memory map.
pub(crate) const START_INFO: u64 = ZERO_PAGE;
pub(crate) const START_MODULES: u64 = START_INFO + 0x100;
pub(crate) const START_MAP: u64 = START_INFO + 0x200;
/// Stack pointer at entry; Linux sets its own at once.
pub(crate) const BOOT_STACK: u64 = 0x8ff0;
/// Page tables used at entry: one PML4, one PDPT, four page directories.
pub(crate) const PAGE_TABLES: u64 = 0x9000;
/// The kernel's command line.
pub(crate) const CMDLINE: u64 = 0x2_0000;
/// Longest command line in bytes, its final NUL included (`COMMAND_LINE_SIZE`
/// of arch/x86/include/asm/setup.h).
pub(crate) const CMDLINE_MAX: usize = 2048;
/// End of the memory below 640 KiB that is the guest's to use.
pub(crate) const LOW_RAM_END: u64 = 0x9_fc00;
/// ACPI tables, in the range where an ACPI system looks for its root pointer
/// (ACPI 6.5, 5.2.5.1), the root pointer first.
pub(crate) const ACPI: u64 = 0xe_0000;
/// End of the room for ACPI tables.
pub(crate) const ACPI_END: u64 = RESET_VECTOR;
/// Where a PC's firmware takes over after a reset, and where a kernel jumps in
/// real mode that restarts "through the BIOS" (arch/x86/kernel/reboot.c,
/// `machine_real_restart`).
pub(crate) const RESET_VECTOR: u64 = 0xf_fff0;
/// Where extended memory begins.
pub(crate) const HIGH_RAM: u64 = 0x10_0000;

/// Guest memory makes room for devices below 4 GiB from here on.
pub(crate) const DEVICE_HOLE: u64 = 0xc000_0000;
/// Guest memory goes on here.
pub(crate) const DEVICE_HOLE_END: u64 = 0x1_0000_0000;
/// Page tables of the arena. Linux maps all below 1 MiB and leaves what isn't RAM
/// there alone (arch/x86/mm/init.c, `init_mem_mapping`); option ROMs, for which it
/// looks here, begin with 55 aa (`arch/x86/kernel/probe_roms.c`).
pub(crate) const ARENA_TABLES: u64 = 0xc_0000;
/// Bytes of the arena for code, as many as one page directory maps: a jump's
/// target may have to be far from the jump. It is only address space until it is
/// used.
pub(crate) const ARENA_CODE_LEN: u64 = 1 << 30;
/// Bytes of the arena for data for `vcpus` vCPUs: room for their counters, the table of calls that are followed, and
/// their rings of records of 4 MiB each (`probe-engine/src/arena/data.rs`). As the guest can write there, this is
/// memory that it can have beyond its own.
pub(crate) fn arena_data_len(vcpus: u32) -> u64 {
    const MIB: u64 = 1 << 20;
    let vcpus = u64::from(vcpus);
    let counters = vcpus.max(16).next_multiple_of(2) * MIB;
    counters + 16 * MIB + vcpus.max(8) * 4 * MIB
}
/// The arena's address is a multiple of this: nothing else comes within 1 GiB below it or above, so that nothing
/// that runs off the end of the guest's own memory gets into it.
pub(crate) const ARENA_ALIGN: u64 = 1 << 30;
/// Where the memory of PCI functions may be, in the device hole.
pub(crate) const PCI_WINDOW: u32 = DEVICE_HOLE as u32;
/// Bytes of it, up to what chips have there.
pub(crate) const PCI_WINDOW_LEN: u32 = 0x3000_0000;
/// I/O APIC of KVM's in-kernel interrupt chip.
pub(crate) const IO_APIC: u32 = 0xfec0_0000;
/// Local APICs of KVM's in-kernel interrupt chip.
pub(crate) const LOCAL_APIC: u32 = 0xfee0_0000;
/// Page that KVM needs on VMX hosts for its identity map, in the device hole
/// (Documentation/virt/kvm/api.rst, `KVM_SET_IDENTITY_MAP_ADDR`).
pub(crate) const KVM_IDENTITY_MAP: u64 = 0xfeff_c000;
/// Three pages that KVM needs on VMX hosts for a task state segment.
pub(crate) const KVM_TSS: u64 = 0xfeff_d000;

/// First serial port, as on every PC.
pub(crate) const COM1_PORT: u16 = 0x3f8;
/// Its registers, one a port.
pub(crate) const COM1_PORTS: u16 = 8;
/// Its interrupt.
pub(crate) const COM1_IRQ: u32 = 4;
/// pvpanic's port (docs/specs/pvpanic.rst of QEMU).
pub(crate) const PVPANIC_PORT: u16 = 0x505;
/// ACPI sleep control register, named in the FADT; its status register follows.
pub(crate) const SLEEP_CONTROL_PORT: u16 = 0x600;
/// PC reset control register, named in the FADT.
pub(crate) const RESET_PORT: u16 = 0xcf9;
/// Port of the address of PCI configuration spaces; the reset register is among its bytes.
pub(crate) const PCI_CONFIG_ADDRESS_PORT: u16 = 0xcf8;
/// Ports of the configuration register that is addressed.
pub(crate) const PCI_CONFIG_DATA_PORT: u16 = 0xcfc;
/// Keyboard controller command port, where an old kernel asks for a reset.
pub(crate) const I8042_COMMAND_PORT: u16 = 0x64;
