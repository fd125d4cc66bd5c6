//! The CPUID leaves of a vCPU: those that KVM supports, with a topology of one package for each NUMA node, of
//! single-threaded cores. The APIC ids of the only package are 0, 1, 2 ...
//!
//! Leaves: Intel SDM vol. 2A, "CPUID"; AMD APM vol. 3, appendix E.

use kvm_bindings::{
    CpuId, KVM_CAP_TSC_DEADLINE_TIMER, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES,
    kvm_cpuid_entry2,
};
use kvm_ioctls::{Kvm, VcpuFd};

use super::CpuError;

/// Leaf 1, ECX: the local APIC timer can be set to a TSC value.
const TSC_DEADLINE: u32 = 1 << 24;
/// Leaf 1, ECX: there is a hypervisor.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1, EDX: the package has more than one logical processor.
const HTT: u32 = 1 << 28;
/// Leaf 0x80000001, EDX: page tables may map 1 GiB by one entry.
const PAGE_1GB: u32 = 1 << 26;
/// Leaf 0x80000001, ECX (AMD): the logical processors are cores, not threads.
const CMP_LEGACY: u32 = 1 << 1;

/// Extended topology leaves; 0x1f is the later one of the same form.
const TOPOLOGY: [u32; 2] = [0xb, 0x1f];
/// AMD's own later topology leaf, which describes the host's package.
const AMD_TOPOLOGY: u32 = 0x8000_0026;
/// The least bits of an APIC id for the cores of a node, where there are several: Linux takes some of AMD's processors
/// to share caches among 8 ids (`cacheinfo_amd_init_llc_id` in `arch/x86/kernel/cpu/cacheinfo.c`).
const LEAST_NODE_BITS: u32 = 3;
/// Level types of the extended topology leaves, in ECX bits 15:8.
const LEVEL_THREAD: u32 = 1 << 8;
const LEVEL_CORE: u32 = 2 << 8;

/// Sets the CPUID leaves of a vCPU.
///
/// The guest has no legacy timer to measure its local APIC's timer with, so the
/// TSC deadline mode is announced wherever KVM has it; KVM itself leaves that to
/// the monitor (Documentation/virt/kvm/api.rst, `KVM_GET_SUPPORTED_CPUID`).
pub(crate) fn configure_cpuid(
    kvm: &Kvm,
    vcpu: &VcpuFd,
    topology: &Topology,
) -> Result<(), CpuError> {
    let supported = supported(kvm)?;
    let deadline = kvm.check_extension_raw(KVM_CAP_TSC_DEADLINE_TIMER.into()) > 0;
    if !deadline {
        tracing::debug!("this KVM has no TSC deadline timer; the guest may find no timer at all");
    }
    let leaves = topology.describe(supported.as_slice(), deadline);
    let leaves = CpuId::from_entries(&leaves).map_err(|_| CpuError::TooManyLeaves {
        count: leaves.len(),
    })?;
    vcpu.set_cpuid2(&leaves)
        .map_err(CpuError::refused("set the CPUID leaves"))
}

/// The leaves that KVM supports.
fn supported(kvm: &Kvm) -> Result<CpuId, CpuError> {
    kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(CpuError::refused("tell the CPUID leaves"))
}

/// Returns true if the guest's page tables may map 1 GiB by one entry (SDM vol. 3, 4.1.4).
pub(crate) fn has_gigabyte_pages(kvm: &Kvm) -> Result<bool, CpuError> {
    let supported = supported(kvm)?;
    let mut leaves = supported.as_slice().iter();
    Ok(leaves.any(|leaf| leaf.function == 0x8000_0001 && leaf.edx & PAGE_1GB != 0))
}

/// Bits of a guest physical address, as CPUID leaf 0x80000008 tells the guest:
/// EAX 7:0, or, where they are set, 23:16 (AMD APM vol. 3, E.4.7).
pub(crate) fn physical_address_bits(kvm: &Kvm) -> Result<u32, CpuError> {
    Ok(address_bits(supported(kvm)?.as_slice()))
}

fn address_bits(leaves: &[kvm_cpuid_entry2]) -> u32 {
    // What every processor with long mode has at least (SDM vol. 2A, CPUID).
    const LEAST: u32 = 36;
    let leaf = leaves.iter().find(|leaf| leaf.function == 0x8000_0008);
    leaf.map_or(LEAST, |leaf| match leaf.eax >> 16 & 0xff {
        0 => leaf.eax & 0xff,
        guest => guest,
    })
    // Of 64-bit addresses no more than 52 bits can be physical (SDM vol. 3, 4.1.4).
    .clamp(LEAST, 52)
}

/// The place of one vCPU among all. Each NUMA node is a package.
#[derive(Debug)]
pub(crate) struct Topology {
    apic_id: u32,
    node: u32,
    /// Cores in the package.
    count: u32,
    /// Bits of the APIC id that tell the cores of a package apart.
    bits: u32,
}

impl Topology {
    /// vCPU `index` of `vcpus` in `nodes` NUMA nodes.
    pub(crate) fn new(index: u32, vcpus: u32, nodes: u32) -> Self {
        let (vcpus, nodes) = (vcpus.max(1), nodes.max(1));
        let node = node_of(index, vcpus, nodes);
        let first = first_of_node(node, vcpus, nodes);
        let bits = match nodes {
            1 => core_bits(vcpus),
            _ => core_bits(vcpus.div_ceil(nodes)).max(LEAST_NODE_BITS),
        };
        Self {
            apic_id: node << bits | (index - first),
            node,
            count: first_of_node(node + 1, vcpus, nodes) - first,
            bits,
        }
    }

    /// The vCPU's APIC id, by which KVM and the guest know it.
    pub(crate) fn apic_id(&self) -> u32 {
        self.apic_id
    }

    /// Its NUMA node.
    pub(crate) fn node(&self) -> u32 {
        self.node
    }

    /// APIC ids set apart for the package, as far as `max`.
    fn ids(&self, max: u32) -> u32 {
        (1 << self.bits).min(max)
    }

    fn describe(&self, supported: &[kvm_cpuid_entry2], deadline: bool) -> Vec<kvm_cpuid_entry2> {
        let leaf_0 = supported.iter().find(|leaf| leaf.function == 0);
        let max_leaf = leaf_0.map_or(0, |leaf| leaf.eax);
        // The first four letters of "AuthenticAMD" and "HygonGenuine".
        let amd = leaf_0.is_some_and(|leaf| [*b"Auth", *b"Hygo"].contains(&leaf.ebx.to_le_bytes()));
        let mut leaves: Vec<_> = supported
            .iter()
            .filter(|leaf| !TOPOLOGY.contains(&leaf.function) && leaf.function != AMD_TOPOLOGY)
            .copied()
            .collect();
        for leaf in &mut leaves {
            match leaf.function {
                1 => self.features(leaf, deadline),
                4 => self.intel_cache(leaf),
                0x8000_0001 if amd => set(&mut leaf.ecx, CMP_LEGACY, self.count > 1),
                // NC, bits 7:0, is the cores less one; ApicIdSize is bits 15:12.
                0x8000_0008 if amd => {
                    let counts = (self.count - 1).min(0xff) | self.bits << 12;
                    leaf.ecx = leaf.ecx & !0xf0ff | counts;
                }
                0x8000_001d if amd => self.shared_cache(leaf, 0xfff),
                // The APIC id; the core's id, one thread each; the node, one in each package.
                0x8000_001e if amd => {
                    let core = self.apic_id & (self.ids(0x100) - 1);
                    (leaf.eax, leaf.ebx, leaf.ecx) = (self.apic_id, core, self.node);
                }
                _ => {}
            }
        }
        for function in TOPOLOGY.into_iter().filter(|leaf| *leaf <= max_leaf) {
            leaves.extend(self.levels(function));
        }
        leaves
    }

    fn features(&self, leaf: &mut kvm_cpuid_entry2, deadline: bool) {
        // EBX: the APIC id in bits 31:24, ids in this package in bits 23:16.
        leaf.ebx = leaf.ebx & 0xffff | self.apic_id << 24 | self.ids(0xff) << 16;
        set(&mut leaf.ecx, HYPERVISOR, true);
        set(&mut leaf.ecx, TSC_DEADLINE, deadline);
        set(&mut leaf.edx, HTT, self.count > 1);
    }

    fn intel_cache(&self, leaf: &mut kvm_cpuid_entry2) {
        // EAX 4:0 is 0 after the last cache; EAX 31:26 is core ids in the package, less one.
        if leaf.eax & 0x1f != 0 {
            leaf.eax = leaf.eax & !(0x3f << 26) | (self.ids(64) - 1) << 26;
            self.shared_cache(leaf, 0xfff);
        }
    }

    /// EAX 25:14: ids that share this cache, less one. All of a package share the third level.
    fn shared_cache(&self, leaf: &mut kvm_cpuid_entry2, mask: u32) {
        let level = leaf.eax >> 5 & 7;
        let sharing = if level >= 3 {
            self.ids(mask + 1) - 1
        } else {
            0
        };
        leaf.eax = leaf.eax & !(mask << 14) | sharing << 14;
    }

    /// The subleaves of an extended topology leaf: threads, cores, the end.
    fn levels(&self, function: u32) -> [kvm_cpuid_entry2; 3] {
        let level = |index: u32, eax: u32, ebx: u32, ecx: u32| kvm_cpuid_entry2 {
            function,
            index,
            flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
            eax,
            ebx,
            ecx: ecx | index,
            edx: self.apic_id,
            ..kvm_cpuid_entry2::default()
        };
        [
            level(0, 0, 1, LEVEL_THREAD),
            level(1, self.bits, self.count, LEVEL_CORE),
            level(2, 0, 0, 0),
        ]
    }
}

/// The first of `vcpus` vCPUs that belongs to a NUMA node. Nodes differ by one vCPU at most.
fn first_of_node(node: u32, vcpus: u32, nodes: u32) -> u32 {
    (node * vcpus).div_ceil(nodes)
}

/// The node of a vCPU.
fn node_of(vcpu: u32, vcpus: u32, nodes: u32) -> u32 {
    let later = (1..nodes).filter(|node| first_of_node(*node, vcpus, nodes) <= vcpu);
    later.count() as u32
}

/// The number of bits that tell `cores` cores apart.
fn core_bits(cores: u32) -> u32 {
    cores.next_power_of_two().trailing_zeros()
}

fn set(register: &mut u32, bits: u32, on: bool) {
    *register = if on {
        *register | bits
    } else {
        *register & !bits
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32, index: u32, registers: [u32; 4]) -> kvm_cpuid_entry2 {
        let [eax, ebx, ecx, edx] = registers;
        kvm_cpuid_entry2 {
            function,
            index,
            eax,
            ebx,
            ecx,
            edx,
            ..kvm_cpuid_entry2::default()
        }
    }

    #[test]
    fn the_width_of_physical_addresses_is_what_the_guest_is_told() {
        for (eax, bits) in [(0x3028, 40), (0x2e_3030, 46), (0, 36), (0xff, 52)] {
            assert_eq!(address_bits(&[leaf(0x8000_0008, 0, [eax, 0, 0, 0])]), bits);
        }
        assert_eq!(address_bits(&[]), 36);
    }

    /// A host of many threads, as KVM shows it.
    fn host(vendor: [u8; 4], max_leaf: u32) -> Vec<kvm_cpuid_entry2> {
        vec![
            leaf(0, 0, [max_leaf, u32::from_le_bytes(vendor), 0, 0]),
            leaf(1, 0, [0x306a9, 0x4220_0800, 0x1, HTT | 1]),
            leaf(4, 0, [0x3c00_4121, 1, 2, 3]),
            leaf(4, 3, [0x3c07_c163, 1, 2, 3]),
            leaf(4, 4, [0, 0, 0, 0]),
            leaf(0xb, 0, [1, 2, 0x100, 0x42]),
            leaf(0xb, 1, [6, 32, 0x201, 0x42]),
            leaf(0x8000_0001, 0, [0, 0, CMP_LEGACY | 1, 0]),
            leaf(0x8000_0008, 0, [0x3030, 0, 0x603f, 0]),
            leaf(0x8000_001d, 3, [0x3c163, 0, 0, 0]),
            leaf(0x8000_001e, 0, [0x42, 0x121, 0x103, 0]),
            leaf(AMD_TOPOLOGY, 0, [1, 2, 3, 0x42]),
        ]
    }

    fn find(leaves: &[kvm_cpuid_entry2], function: u32, index: u32) -> [u32; 4] {
        let mut found = leaves
            .iter()
            .filter(|l| (l.function, l.index) == (function, index));
        let leaf = found.next().unwrap();
        assert!(
            found.next().is_none(),
            "leaf {function:#x}.{index} stands there twice"
        );
        [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]
    }

    #[test]
    fn a_core_of_several_on_intel() {
        let leaves = Topology::new(2, 3, 1).describe(&host(*b"Genu", 0x1f), true);
        let features = find(&leaves, 1, 0);
        assert_eq!(
            features,
            [0x306a9, 0x0204_0800, HYPERVISOR | TSC_DEADLINE | 1, HTT | 1]
        );
        assert_eq!(find(&leaves, 4, 0), [3 << 26 | 0x121, 1, 2, 3]);
        assert_eq!(find(&leaves, 4, 3), [3 << 26 | 3 << 14 | 0x163, 1, 2, 3]);
        assert_eq!(find(&leaves, 4, 4), [0; 4]);
        for function in TOPOLOGY {
            assert_eq!(find(&leaves, function, 0), [0, 1, 0x100, 2]);
            assert_eq!(find(&leaves, function, 1), [2, 3, 0x201, 2]);
            assert_eq!(find(&leaves, function, 2), [0, 0, 2, 2]);
        }
        // Reserved on Intel, so left alone.
        assert_eq!(find(&leaves, 0x8000_0008, 0), [0x3030, 0, 0x603f, 0]);
    }

    #[test]
    fn a_core_of_several_on_amd() {
        let leaves = Topology::new(1, 4, 1).describe(&host(*b"Auth", 0x10), true);
        assert_eq!(find(&leaves, 1, 0)[1], 0x0104_0800);
        assert_eq!(find(&leaves, 0x8000_0001, 0)[2], CMP_LEGACY | 1);
        assert_eq!(find(&leaves, 0x8000_0008, 0)[2], 0x2003);
        assert_eq!(find(&leaves, 0x8000_001d, 3)[0], 0xc163);
        assert_eq!(find(&leaves, 0x8000_001e, 0), [1, 1, 0, 0]);
        assert_eq!(find(&leaves, 0xb, 1), [2, 4, 0x201, 1]);
        assert!(
            !leaves
                .iter()
                .any(|l| l.function == 0x1f || l.function == AMD_TOPOLOGY)
        );
    }

    #[test]
    fn a_lone_core_has_no_siblings() {
        for vendor in [*b"Genu", *b"Auth"] {
            let leaves = Topology::new(0, 1, 1).describe(&host(vendor, 0xb), false);
            let features = find(&leaves, 1, 0);
            assert_eq!(features, [0x306a9, 0x0001_0800, HYPERVISOR | 1, 1]);
            assert_eq!(find(&leaves, 4, 3)[0], 0x163);
            assert_eq!(find(&leaves, 0xb, 1), [0, 1, 0x201, 0]);
        }
        let leaves = Topology::new(0, 1, 1).describe(&host(*b"Auth", 0xb), false);
        assert_eq!(find(&leaves, 0x8000_0001, 0)[2], 1);
        assert_eq!(find(&leaves, 0x8000_0008, 0)[2], 0);
    }

    #[test]
    fn each_node_is_a_package_with_apic_ids_and_a_cache_of_its_own() {
        // The last of six in two nodes: the third core of the second package.
        let last = Topology::new(5, 6, 2);
        assert_eq!((last.apic_id(), last.node()), (1 << 3 | 2, 1));
        let leaves = last.describe(&host(*b"Auth", 0xb), true);
        assert_eq!(find(&leaves, 1, 0)[1], 0x0a08_0800);
        assert_eq!(find(&leaves, 0xb, 1), [3, 3, 0x201, 0xa]);
        assert_eq!(find(&leaves, 0x8000_0008, 0)[2], 0x3002);
        assert_eq!(find(&leaves, 0x8000_001d, 3)[0], 7 << 14 | 0x163);
        assert_eq!(find(&leaves, 0x8000_001e, 0), [0xa, 2, 1, 0]);

        let ids = |vcpus, nodes| -> Vec<_> {
            let place = |vcpu| Topology::new(vcpu, vcpus, nodes);
            (0..vcpus)
                .map(place)
                .map(|it| (it.node(), it.apic_id()))
                .collect()
        };
        assert_eq!(ids(4, 1), [(0, 0), (0, 1), (0, 2), (0, 3)]);
        assert_eq!(
            ids(7, 3),
            [(0, 0), (0, 1), (0, 2), (1, 8), (1, 9), (2, 16), (2, 17)]
        );
        // As many as there can be stay below the id that means all.
        let highest = (1..=8).map(|nodes| ids(64, nodes).last().map(|(_, id)| *id));
        assert!(highest.flatten().all(|id| id < 0xff));
    }

    #[test]
    fn a_processor_without_extended_topology_gets_none() {
        let mut old = host(*b"Auth", 7);
        old.retain(|l| l.function != 0xb);
        let leaves = Topology::new(0, 2, 1).describe(&old, true);
        assert_eq!(leaves.len(), old.len() - 1);
    }

    #[test]
    fn more_cores_than_a_field_holds_do_not_spill_over() {
        let leaves = Topology::new(254, 255, 1).describe(&host(*b"Genu", 0xb), true);
        assert_eq!(find(&leaves, 1, 0)[1], 0xfeff_0800);
        assert_eq!(find(&leaves, 4, 0)[0], 63 << 26 | 0x121);
        assert_eq!(find(&leaves, 4, 3)[0], 63 << 26 | 255 << 14 | 0x163);
    }
}
