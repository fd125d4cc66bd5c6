//! The NUMA nodes of a guest: how memory and vCPUs are divided among them, and the ACPI tables that tell of it.

use acpi_tables::{
    Aml,
    slit::SLIT,
    srat::{MemoryAffinity, SRAT},
};
use guest_state::{GuestPhysAddr, PhysRange};

use super::cpu::Topology;

/// A node's memory begins and ends at multiples of this, in bytes.
const ALIGN: u64 = 2 << 20;
/// Distances of the SLIT (ACPI 6.5, 5.2.17): to the node itself, and what Linux takes for any other where it isn't told
/// (`include/linux/topology.h`, `REMOTE_DISTANCE`).
const REMOTE: u8 = 20;
/// Where an ACPI table has its length and its checksum (ACPI 6.5, 5.2.6).
const LENGTH: usize = 4;
const CHECKSUM: usize = 9;

/// The memory of each node: parts of RAM in the order of their addresses, of the same size as far as
/// [`ALIGN`] lets them.
pub(super) fn memory(ram: &[PhysRange], nodes: u32) -> Vec<Vec<PhysRange>> {
    let total: u64 = ram.iter().map(|range| range.len).sum();
    let end = |node: u32| match node + 1 == nodes {
        true => total,
        false => total / u64::from(nodes) * u64::from(node + 1) / ALIGN * ALIGN,
    };
    let starts = std::iter::once(0).chain((0..nodes).map(end));
    let bounds = starts.zip((0..nodes).map(end));
    bounds.map(|(start, end)| part(ram, start, end)).collect()
}

/// The parts of RAM from one byte of it to another, counted over all of it.
fn part(ram: &[PhysRange], start: u64, end: u64) -> Vec<PhysRange> {
    let mut before = 0;
    let mut parts = Vec::new();
    for range in ram {
        let (from, to) = (start.max(before), end.min(before + range.len));
        if from < to {
            parts.push(PhysRange {
                start: GuestPhysAddr(range.start.0 + (from - before)),
                len: to - from,
            });
        }
        before += range.len;
    }
    parts
}

/// The System Resource Affinity Table (ACPI 6.5, 5.2.16): of which node each vCPU and each part of memory is.
pub(super) fn srat(
    (oem, table, revision): ([u8; 6], [u8; 8], u32),
    ram: &[PhysRange],
    (vcpus, nodes): (u32, u32),
) -> Vec<u8> {
    let mut srat = SRAT::new(oem, table, revision);
    for (node, parts) in (0..).zip(memory(ram, nodes)) {
        for part in parts {
            srat.add_memory_affinity(MemoryAffinity::new(node, part.start.0, part.len).enabled());
        }
    }
    let mut bytes = Vec::new();
    srat.to_aml_bytes(&mut bytes);
    for vcpu in 0..vcpus {
        let place = Topology::new(vcpu, vcpus, nodes);
        bytes.extend(processor(place.apic_id() as u8, place.node() as u8));
    }
    finish(&mut bytes);
    bytes
}

/// A "Processor Local APIC/SAPIC Affinity Structure" (ACPI 6.5, 5.2.16.1) that is enabled. `acpi_tables` has none.
fn processor(apic_id: u8, node: u8) -> [u8; 16] {
    const ENABLED: u8 = 1;
    let mut bytes = [0; 16];
    (bytes[1], bytes[2], bytes[3], bytes[4]) = (16, node, apic_id, ENABLED);
    bytes
}

/// Corrects the length and the checksum of a table that has grown.
fn finish(table: &mut [u8]) {
    let length = (table.len() as u32).to_le_bytes();
    table[LENGTH..LENGTH + length.len()].copy_from_slice(&length);
    table[CHECKSUM] = 0;
    let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    table[CHECKSUM] = sum.wrapping_neg();
}

/// The System Locality Information Table (ACPI 6.5, 5.2.17): how far the nodes are from each other.
pub(super) fn slit((oem, table, revision): ([u8; 6], [u8; 8], u32), nodes: u32) -> Vec<u8> {
    let mut slit = SLIT::new(oem, table, revision, nodes);
    for (one, other) in (0..nodes).flat_map(|one| (0..nodes).map(move |other| (one, other))) {
        if one != other {
            slit.set_distance(one as usize, other as usize, REMOTE);
        }
    }
    let mut bytes = Vec::new();
    slit.to_aml_bytes(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const OEM: ([u8; 6], [u8; 8], u32) = (*b"VMPROB", *b"VMPROBE ", 1);

    fn range(start: u64, len: u64) -> PhysRange {
        PhysRange {
            start: GuestPhysAddr(start * MIB),
            len: len * MIB,
        }
    }

    #[test]
    fn memory_is_divided_evenly_across_the_device_hole() {
        let ram = [range(0, 3072), range(4096, 3072)];
        let halves = [vec![range(0, 3072)], vec![range(4096, 3072)]];
        assert_eq!(memory(&ram, 2), halves);
        let thirds = [
            vec![range(0, 2048)],
            vec![range(2048, 1024), range(4096, 1024)],
            vec![range(5120, 2048)],
        ];
        assert_eq!(memory(&ram, 3), thirds);
        // Bounds are multiples of 2 MiB.
        let odd = [
            vec![range(0, 66)],
            vec![range(66, 68)],
            vec![range(134, 67)],
        ];
        assert_eq!(memory(&[range(0, 201)], 3), odd);
    }

    #[test]
    fn the_tables_tell_of_every_vcpu_all_memory_and_distances() {
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        let srat = srat(OEM, &[range(0, 256)], (4, 2));
        assert_eq!((&srat[..4], sum(&srat)), (&b"SRAT"[..], 0));
        // 48 bytes of header, 40 for a part of memory, 16 for a vCPU.
        assert_eq!(srat.len(), 48 + 2 * 40 + 4 * 16);
        assert_eq!(srat[4..8], (srat.len() as u32).to_le_bytes());
        let (mut memory, mut processors) = (Vec::new(), Vec::new());
        let mut rest = &srat[48..];
        while let [kind, len, ..] = *rest {
            let word = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().unwrap());
            match kind {
                0 => processors.push((rest[3], rest[2], rest[4])),
                1 => memory.push((rest[2], word(8) / MIB, word(16) / MIB, rest[28])),
                _ => panic!("a structure of type {kind}"),
            }
            rest = &rest[usize::from(len)..];
        }
        assert_eq!(memory, [(0, 0, 128, 1), (1, 128, 128, 1)]);
        assert_eq!(processors, [(0, 0, 1), (1, 0, 1), (8, 1, 1), (9, 1, 1)]);
        let slit = slit(OEM, 2);
        assert_eq!((&slit[..4], sum(&slit)), (&b"SLIT"[..], 0));
        assert_eq!(slit[44..], [10, 20, 20, 10]);
    }
}
