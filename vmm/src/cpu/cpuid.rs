//! What CPUID tells the guest: what this KVM supports, with the number and the
//! place of this processor among its siblings -- cores of one package.

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use kvm_ioctls::{Cap, Kvm, VcpuFd};

use super::{CpuError, refused};

/// Leaf 1, ECX: the local APIC timer has a TSC deadline mode; and: a hypervisor
/// is below (SDM vol. 2, CPUID).
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1, EDX: EBX tells a number of logical processors.
const HTT: u32 = 1 << 28;

/// Level types of leaf 0xb's ECX.
const LEVEL_SMT: u32 = 1;
const LEVEL_CORE: u32 = 2;

/// Sets what processor `index` of `count` says of itself.
pub(crate) fn configure_cpuid(
    kvm: &Kvm,
    vcpu: &VcpuFd,
    index: u32,
    count: u32,
) -> Result<(), CpuError> {
    let supported =
        kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(refused("features"))?;
    let mut entries = supported.as_slice().to_vec();
    // KVM has the mode without listing it (api.rst, "KVM_GET_SUPPORTED_CPUID").
    let deadline = kvm.check_extension(Cap::TscDeadlineTimer);
    describe(&mut entries, index, count, deadline);
    let cpuid = CpuId::from_entries(&entries)
        .map_err(|_| CpuError { what: "features", cause: kvm_ioctls::Error::new(libc::E2BIG) })?;
    vcpu.set_cpuid2(&cpuid).map_err(refused("features"))
}

/// Writes number and place of processor `index` of `count` into `entries`.
fn describe(entries: &mut Vec<kvm_cpuid_entry2>, index: u32, count: u32, deadline: bool) {
    let id_bits = count.next_power_of_two().trailing_zeros();
    // Leaf 0x1f says the same as 0xb where it is; without it 0xb is used.
    entries.retain(|entry| entry.function != 0x1f && entry.function != 0xb);
    for entry in entries.iter_mut() {
        match entry.function {
            0x1 => {
                entry.ebx = entry.ebx & 0xffff | count << 16 | index << 24;
                entry.ecx |= HYPERVISOR;
                if deadline {
                    entry.ecx |= TSC_DEADLINE;
                }
                entry.edx = if count > 1 { entry.edx | HTT } else { entry.edx & !HTT };
            }
            // Cores of the package, less one; each cache is one core's, but the
            // last level is everybody's.
            0x4 if entry.eax & 0x1f != 0 => {
                let level = entry.eax >> 5 & 7;
                let sharers = if level >= 3 { count - 1 } else { 0 };
                entry.eax = entry.eax & 0x3fff | sharers << 14 | (count - 1) << 26;
            }
            // AMD APM vol. 3, E.4.7: NC and ApicIdCoreIdSize.
            0x8000_0008 => entry.ecx = (count - 1) | id_bits << 12,
            // AMD APM vol. 3, E.4.16: extended APIC id, core id with one thread
            // each, node 0 of one.
            0x8000_001e => {
                (entry.eax, entry.ebx, entry.ecx) = (index, index, 0);
            }
            _ => {}
        }
    }
    // SDM vol. 2, CPUID leaf 0xb: threads of a core, cores of the package, end.
    let levels = [(LEVEL_SMT, 0, 1), (LEVEL_CORE, id_bits, count), (0, 0, 0)];
    for (subleaf, (level, shift, processors)) in (0u32..).zip(levels) {
        entries.push(kvm_cpuid_entry2 {
            function: 0xb,
            index: subleaf,
            flags: kvm_bindings::KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
            eax: shift,
            ebx: processors,
            ecx: subleaf | level << 8,
            edx: index,
            ..Default::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(function: u32, edx: u32, index: u32, count: u32) -> Vec<kvm_cpuid_entry2> {
        let entry = kvm_cpuid_entry2 { function, edx, ebx: 0xaaaa_0800, ..Default::default() };
        let mut entries = vec![entry];
        describe(&mut entries, index, count, true);
        entries
    }

    #[test]
    fn each_processor_says_its_own_number_in_every_leaf() {
        let leaf1 = described(1, 0, 5, 8)[0];
        assert_eq!(leaf1.ebx, 5 << 24 | 8 << 16 | 0x0800);
        assert_eq!(leaf1.ecx, HYPERVISOR | TSC_DEADLINE);
        assert_eq!(leaf1.edx, HTT);
        let all = described(0x8000_001e, 0, 5, 8);
        assert_eq!((all[0].eax, all[0].ebx & 0xff), (5, 5));
        let topology: Vec<_> =
            all[1..].iter().map(|e| (e.index, e.eax, e.ebx, e.ecx, e.edx)).collect();
        assert_eq!(topology, [(0, 0, 1, 0x100, 5), (1, 3, 8, 0x201, 5), (2, 0, 0, 2, 5)]);
    }

    #[test]
    fn a_lone_processor_has_no_siblings() {
        assert_eq!(described(1, HTT, 0, 1)[0].edx, 0);
        assert_eq!(described(0x8000_0008, 0, 0, 1)[0].ecx, 0);
    }
}
