//! What a guest starts with: its tables, exception handlers and registers.

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_dtable, kvm_regs, kvm_segment, kvm_xcrs};
use kvm_ioctls::{Kvm, VcpuFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::error::{GuestError, MEMORY_SIZE, failed};

const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
const PML4: u64 = 0x3000;
const PDPT: u64 = 0x4000;
const PAGE_DIRECTORY: u64 = 0x5000;
const TSS: u64 = 0x6000;
const HANDLERS: u64 = 0x7000;
/// Where the guest's code lies and starts.
pub(crate) const CODE: u64 = 0x8000;
const STACK_TOP: u64 = 0x1_8000;
/// Zeroes for the guest's use, 4 KiB-aligned; RDI points here at the start.
pub(crate) const DATA: u64 = 0x2_0000;

/// Port of the handler of exception 0; that of exception n follows n further on.
pub(crate) const EXCEPTION_PORT: u16 = 0x40;
pub(crate) const EXCEPTIONS: u16 = 32;
/// The exceptions that push an error code (Intel SDM volume 3A, table 7-1).
pub(crate) const WITH_ERROR_CODE: [u8; 10] = [8, 10, 11, 12, 13, 14, 17, 21, 29, 30];

const CODE_SELECTOR: u16 = 0x08;
const DATA_SELECTOR: u16 = 0x10;
const TSS_SELECTOR: u16 = 0x18;

/// The guest's memory: tables (Intel SDM volume 3A, chapters 3, 4 and 7),
/// exception handlers and `code`.
pub(crate) fn memory_with(code: &[u8]) -> Result<GuestMemoryMmap, GuestError> {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_SIZE)])
        .map_err(|e| GuestError::Memory(e.to_string()))?;
    let write = |address: u64, bytes: &[u8]| {
        memory
            .write_slice(bytes, GuestAddress(address))
            .map_err(|e| GuestError::Memory(e.to_string()))
    };
    // Null, 64-bit code, data, and an available 64-bit TSS of 0x68 bytes.
    let tss = 0x0000_8900_0000_0067 | (TSS & 0xff_ffff) << 16;
    for (index, entry) in
        (0u64..).zip([0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff_u64, tss, 0])
    {
        write(GDT + index * 8, &entry.to_le_bytes())?;
    }
    // Present and writable; the last also a 2 MiB page.
    write(PML4, &(PDPT | 0x3).to_le_bytes())?;
    write(PDPT, &(PAGE_DIRECTORY | 0x3).to_le_bytes())?;
    write(PAGE_DIRECTORY, &0x83_u64.to_le_bytes())?;
    for vector in 0..EXCEPTIONS {
        let handler = HANDLERS + u64::from(vector) * 8;
        // A present interrupt gate for CPL 0 to 3.
        let gate = u64::from(CODE_SELECTOR) << 16 | handler & 0xffff | 0xee00 << 32;
        write(IDT + u64::from(vector) * 16, &gate.to_le_bytes())?;
        // out EXCEPTION_PORT+vector, al; hlt
        let port = (EXCEPTION_PORT + vector) as u8;
        write(handler, &[0xe6, port, 0xf4])?;
    }
    write(CODE, code)?;
    Ok(memory)
}

pub(crate) fn set_up(kvm: &Kvm, vcpu: &VcpuFd) -> Result<(), GuestError> {
    let cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
    vcpu.set_cpuid2(&cpuid).map_err(failed("KVM_SET_CPUID2"))?;
    let leaf = |function: u32| {
        cpuid
            .as_slice()
            .iter()
            .find(|leaf| leaf.function == function && leaf.index == 0)
    };
    let has_xsave = leaf(1).is_some_and(|leaf| leaf.ecx & 1 << 26 != 0);

    let mut sregs = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    let code = kvm_segment {
        limit: 0xffff_ffff,
        selector: CODE_SELECTOR,
        type_: 11,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment {
        selector: DATA_SELECTOR,
        type_: 3,
        l: 0,
        db: 1,
        ..code
    };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = kvm_segment {
        base: TSS,
        limit: 0x67,
        selector: TSS_SELECTOR,
        type_: 11,
        present: 1,
        ..Default::default()
    };
    sregs.gdt = kvm_dtable {
        base: GDT,
        limit: 5 * 8 - 1,
        ..Default::default()
    };
    sregs.idt = kvm_dtable {
        base: IDT,
        limit: EXCEPTIONS * 16 - 1,
        ..Default::default()
    };
    sregs.cr3 = PML4;
    // PE, MP, ET, NE, WP and PG, as Linux has them.
    sregs.cr0 = 0x8001_0033;
    // PAE, OSFXSR, OSXMMEXCPT, and OSXSAVE.
    sregs.cr4 = 0x620 | u64::from(has_xsave) << 18;
    // LME and LMA.
    sregs.efer = 0x500;
    vcpu.set_sregs(&sregs).map_err(failed("KVM_SET_SREGS"))?;

    if has_xsave {
        let mut xcrs = kvm_xcrs {
            nr_xcrs: 1,
            ..Default::default()
        };
        // x87, SSE and AVX, as far as leaf 0Dh offers them.
        xcrs.xcrs[0].value = leaf(0xd).map_or(1, |leaf| u64::from(leaf.eax) & 0x7);
        vcpu.set_xcrs(&xcrs).map_err(failed("KVM_SET_XCRS"))?;
    }
    let registers = kvm_regs {
        rip: CODE,
        rsp: STACK_TOP,
        rdi: DATA,
        rflags: 0x2,
        ..Default::default()
    };
    vcpu.set_regs(&registers).map_err(failed("KVM_SET_REGS"))
}
