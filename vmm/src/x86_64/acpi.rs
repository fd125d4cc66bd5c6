//! The ACPI tables that tell the guest of its processors, its serial port and
//! how to switch itself off.
//!
//! The platform is a "hardware-reduced" one (ACPI 6.5, 4.1): no SCI, no PM
//! timer, no legacy interrupt controller; sleep and reset are one register each.

use acpi_tables::{
    Aml, AmlSink,
    aml::{
        self, AddressSpace as Window, AddressSpaceCacheable, EISAName, IO, Interrupt, Name,
        Package, Path, ResourceTemplate,
    },
    fadt::{FADTBuilder, Flags, PmProfile},
    gas::{AccessSize, AddressSpace, GAS},
    madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic},
    rsdp::Rsdp,
    sdt::Sdt,
    xsdt::XSDT,
};

use guest_state::{GuestMemory, GuestPhysAddr, MemoryError};

use crate::{
    devices::end_register::{RESET_VALUE, S5_SLEEP_TYPE},
    ram::GuestRam,
    x86_64::{cpu::Topology, layout, numa},
};

const OEM: [u8; 6] = *b"VMPROB";
const OEM_TABLE: [u8; 8] = *b"VMPROBE ";
const REVISION: u32 = 1;
const IDS: ([u8; 6], [u8; 8], u32) = (OEM, OEM_TABLE, REVISION);

/// FADT `IAPC_BOOT_ARCH`: there is no VGA (bit 2) and no CMOS clock (bit 5)
/// (ACPI 6.5, table 5.11).
const BOOT_ARCH_NO_VGA_NO_CMOS: u16 = 1 << 2 | 1 << 5;

/// What the tables tell of, besides what every guest has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hardware {
    /// Number of processors.
    pub(crate) vcpus: u32,
    /// Number of NUMA nodes.
    pub(crate) nodes: u32,
    /// There is a PCI bus.
    pub(crate) has_pci: bool,
}

/// Writes all tables; returns the address of the root pointer.
pub(crate) fn write_tables(ram: &GuestRam, hardware: Hardware) -> Result<u64, MemoryError> {
    let rsdp_at = layout::ACPI;
    let mut next = rsdp_at + 64;
    let mut put = |bytes: &[u8]| -> Result<u64, MemoryError> {
        let at = next;
        debug_assert!(at + bytes.len() as u64 <= layout::ACPI_END);
        ram.write(GuestPhysAddr(at), bytes)?;
        next = (at + bytes.len() as u64).next_multiple_of(64);
        Ok(at)
    };

    let dsdt = put(&dsdt(hardware.has_pci))?;
    let fadt = put(&bytes_of(&fadt(dsdt)))?;
    let madt = put(&bytes_of(&madt(hardware.vcpus, hardware.nodes)))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    if hardware.nodes > 1 {
        let affinity = numa::srat(IDS, &ram.ranges(), (hardware.vcpus, hardware.nodes));
        xsdt.add_entry(put(&affinity)?);
        xsdt.add_entry(put(&numa::slit(IDS, hardware.nodes))?);
    }
    let xsdt = put(&bytes_of(&xsdt))?;
    ram.write(GuestPhysAddr(rsdp_at), &bytes_of(&Rsdp::new(OEM, xsdt)))?;
    Ok(rsdp_at)
}

fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

fn io_register(port: u16) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        u64::from(port),
    )
}

fn fadt(dsdt: u64) -> impl Aml {
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, REVISION)
        .dsdt_64(dsdt)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless);
    fadt.iapc_boot_arch = BOOT_ARCH_NO_VGA_NO_CMOS.into();
    fadt.reset_reg = io_register(layout::RESET_PORT);
    fadt.reset_value = RESET_VALUE;
    fadt.sleep_control_reg = io_register(layout::SLEEP_CONTROL_PORT);
    fadt.sleep_status_reg = io_register(layout::SLEEP_CONTROL_PORT + 1);
    fadt.finalize()
}

fn madt(vcpus: u32, nodes: u32) -> MADT {
    let mut madt = MADT::new(
        OEM,
        OEM_TABLE,
        REVISION,
        LocalInterruptController::Address(layout::LOCAL_APIC),
    );
    let mut last = 0;
    for cpu in 0..vcpus {
        last = Topology::new(cpu, vcpus, nodes).apic_id() as u8;
        let enabled = EnabledStatus::Enabled;
        madt.add_structure(ProcessorLocalApic::new(cpu as u8, last, enabled));
    }
    madt.add_structure(IoApic::new(last + 1, layout::IO_APIC, 0));
    madt
}

fn dsdt(has_pci: bool) -> Vec<u8> {
    // 36 bytes of header, which Sdt::new writes (ACPI 6.5, 5.2.6).
    let mut dsdt = Sdt::new(*b"DSDT", 36, 6, OEM, OEM_TABLE, REVISION);
    let mut devices = [serial(), pvpanic()].concat();
    if has_pci {
        devices.extend(pci());
    }
    dsdt.vec(&aml::Scope::raw(Path::new("_SB_"), devices));
    let soft_off = Package::new(vec![&S5_SLEEP_TYPE, &aml::ZERO, &aml::ZERO, &aml::ZERO]);
    Name::new(Path::new("_S5_"), &soft_off).to_aml_bytes(&mut dsdt);
    dsdt.as_slice().to_vec()
}

fn serial() -> Vec<u8> {
    let ports = IO::new(
        layout::COM1_PORT,
        layout::COM1_PORT,
        0,
        layout::COM1_PORTS as u8,
    );
    let line = Interrupt::new(true, true, false, false, layout::COM1_IRQ);
    bytes_of(&aml::Device::new(
        Path::new("COM1"),
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
            &Name::new(Path::new("_UID"), &aml::ZERO),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![&ports, &line]),
            ),
        ],
    ))
}

/// The root of the PCI bus, its configuration ports and the window of its functions' memory. There are no
/// interrupt lines to tell of.
fn pci() -> Vec<u8> {
    let bus = Window::new_bus_number(0u16, 0);
    let ports = IO::new(
        layout::PCI_CONFIG_ADDRESS_PORT,
        layout::PCI_CONFIG_ADDRESS_PORT,
        1,
        8,
    );
    let window = Window::new_memory(
        AddressSpaceCacheable::NotCacheable,
        true,
        layout::PCI_WINDOW,
        layout::PCI_WINDOW + (layout::PCI_WINDOW_LEN - 1),
        None,
    );
    let resources = ResourceTemplate::new(vec![&bus, &ports, &window]);
    bytes_of(&aml::Device::new(
        Path::new("PCI0"),
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0A03")),
            &Name::new(Path::new("_UID"), &aml::ZERO),
            &Name::new(Path::new("_CRS"), &resources),
        ],
    ))
}

/// The device that Linux's pvpanic driver binds to (drivers/misc/pvpanic).
fn pvpanic() -> Vec<u8> {
    let port = IO::new(layout::PVPANIC_PORT, layout::PVPANIC_PORT, 1, 1);
    bytes_of(&aml::Device::new(
        Path::new("PEVT"),
        vec![
            &Name::new(Path::new("_HID"), &"QEMU0001"),
            &Name::new(Path::new("_STA"), &0x0fu8),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&port])),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_adds_up_to_zero_and_is_found_from_the_root() {
        let ram = GuestRam::new(64).unwrap();
        let hardware = Hardware {
            vcpus: 64,
            nodes: 8,
            has_pci: true,
        };
        let root = write_tables(&ram, hardware).unwrap();
        let bytes = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            ram.read(GuestPhysAddr(at), &mut bytes).unwrap();
            bytes
        };
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, b| sum.wrapping_add(*b));
        let pointer = |at: u64| u64::from_le_bytes(bytes(at, 8).try_into().unwrap());
        let table = |at: u64| {
            let len = u32::from_le_bytes(bytes(at + 4, 4).try_into().unwrap());
            let table = bytes(at, len as usize);
            assert_eq!(sum(&table), 0, "checksum of {:?}", &table[..4]);
            table
        };
        assert_eq!(&bytes(root, 8), b"RSD PTR ");
        assert_eq!(sum(&bytes(root, 36)), 0);
        let xsdt_at = pointer(root + 24);
        assert_eq!(&table(xsdt_at)[..4], b"XSDT");
        let fadt = table(pointer(xsdt_at + 36));
        assert_eq!(&fadt[..4], b"FACP");
        let dsdt = u64::from_le_bytes(fadt[140..148].try_into().unwrap());
        assert_eq!(&table(dsdt)[..4], b"DSDT");
        let madt = table(pointer(xsdt_at + 44));
        assert_eq!(&madt[..4], b"APIC");
        // 44 bytes of header, 8 for each processor, 12 for the I/O APIC.
        assert_eq!(madt.len(), 44 + 64 * 8 + 12);
        for (entry, signature) in [(52, b"SRAT"), (60, b"SLIT")] {
            assert_eq!(&table(pointer(xsdt_at + entry))[..4], signature);
        }
    }
}
