use guest_kernel::symbols::synthetic;
use guest_state::testing::TestMemory;
use guest_state::{GuestPhysAddr, Segment};

use super::*;

const TEXT: u64 = synthetic::TEXT;
const ARRAY: u64 = TEXT + 0x2000;
/// Where the image has its copy of the CPUs' variables.
const LOAD: u64 = TEXT + 0x3000;
const IMAGE_LEN: u64 = 0x4000;
const FIRST: u64 = 0xffff_8880_7dc0_0000;
const MIB: u64 = 1 << 20;
const OFFSETS: &str = "__per_cpu_offset";

fn symbols(more: &[(u64, &str)]) -> Symbols {
    let bounds = [(TEXT, "_stext"), (TEXT + 0x1000, "_etext")];
    let all = bounds.iter().chain(more);
    let all: Vec<_> = all.map(|(at, name)| (*at, 'T', (*name).into())).collect();
    Symbols::from_elf_symtab(&synthetic::unstripped(&all)).unwrap()
}

fn find_with(symbols: &Symbols, offsets: &[u64]) -> Result<PerCpu, PerCpuError> {
    let memory = TestMemory::new(IMAGE_LEN as usize);
    let image = ImageMap::new(vec![Segment {
        virt: GuestVirtAddr(TEXT),
        phys: GuestPhysAddr(0),
        len: IMAGE_LEN,
    }]);
    let bytes: Vec<_> = offsets.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(GuestPhysAddr(ARRAY - TEXT), &bytes).unwrap();
    let variables = Variables::default();
    PerCpu::find(&memory, &image, symbols, &variables, offsets.len() as u32)
}

fn find(offsets: &[u64]) -> Result<PerCpu, PerCpuError> {
    find_with(&symbols(&[(ARRAY, OFFSETS)]), offsets)
}

#[test]
fn blocks_lie_as_far_apart_as_the_cpus_variables_and_one_constant_leads_to_each() {
    let far = FIRST + 10 * MIB;
    for (offsets, cells) in [
        (&[FIRST][..], 2 * MIB),
        (&[FIRST, FIRST + MIB], MIB),
        (
            &[FIRST, FIRST + 0x4_0000, FIRST + 0x8_0000, FIRST + 0xc_0000],
            0x4_0000,
        ),
        // In no order, and of two nodes.
        (&[far, FIRST + 0x4_1000, FIRST, far + 0x4_0000], 0x4_0000),
        // The last has what is left of the window.
        (&[FIRST + 16 * MIB - PAGE_SIZE, FIRST], PAGE_SIZE),
        // As from Linux 6.15 on, where the area is linked high.
        (&[0x88_fac0_0000, 0x88_fad0_0000], MIB),
    ] {
        let found = find(offsets).unwrap();
        assert_eq!(u64::from(found.cells()), (cells - 64) / 4, "{offsets:x?}");
        let block = |offset: &u64| GuestVirtAddr(offset.wrapping_add(found.environment().block));
        let blocks: Vec<_> = offsets.iter().map(block).collect();
        assert_eq!(found.blocks(), blocks, "{offsets:x?}");
        for block in blocks {
            let end = block.wrapping_add(layout::CELLS + u64::from(found.cells()) * layout::CELL);
            assert!(BLOCKS.start <= block && end <= BLOCKS.end, "{offsets:x?}");
            assert!(block.0.is_multiple_of(64));
        }
        assert_eq!(found.environment().rings, RINGS);
    }
}

#[test]
fn cpus_that_the_kernel_does_not_use_have_no_block() {
    let found = find(&[FIRST, FIRST + MIB, LOAD, LOAD]).unwrap();
    assert_eq!(found.blocks().len(), 2);
    assert_eq!(find(&[FIRST, 0]).unwrap().blocks().len(), 1);
}

#[test]
fn offsets_that_can_be_no_cpu_s_variables_are_refused_with_the_reason() {
    for offsets in [&[LOAD; 4][..], &[0; 2], &[LOAD, FIRST], &[]] {
        assert_eq!(
            find(offsets),
            Err(OffsetsError::NotStarted.into()),
            "{offsets:x?}"
        );
    }
    for (offsets, cpu) in [
        (&[FIRST, FIRST][..], 1),
        (&[FIRST, FIRST + 0x800], 1),
        (&[FIRST, FIRST + MIB, FIRST + 8], 2),
        (&[FIRST, LOAD, FIRST + MIB], 1),
    ] {
        let offset = offsets[cpu as usize];
        let refused = Err(OffsetsError::NotPlausible { cpu, offset }.into());
        assert_eq!(find(offsets), refused, "{offsets:x?}");
    }
    for offsets in [
        [FIRST, FIRST + 16 * MIB],
        [FIRST, FIRST - 16 * MIB],
        [FIRST, FIRST.wrapping_add(1 << 63)],
        [FIRST, 1],
        [u64::MAX, i64::MAX as u64],
    ] {
        let refused = find(&offsets);
        assert!(
            matches!(refused, Err(PerCpuError::TooFar { .. })),
            "{refused:?}"
        );
    }
    let limit = layout::RINGS;
    // 512 KiB apart, as with checks of locks.
    let many: Vec<_> = (0..=limit).map(|cpu| FIRST + cpu * MIB / 2).collect();
    let vcpus = many.len() as u32;
    assert_eq!(find(&many), Err(PerCpuError::TooMany { vcpus, limit }));
    let found = find(&many[1..]).unwrap();
    assert_eq!(found.blocks().len() as u64, limit);
    assert_eq!(u64::from(found.cells()), (MIB / 2 - 64) / 4);
}

#[test]
fn a_kernel_that_does_not_tell_is_refused() {
    let refused = find_with(&symbols(&[]), &[FIRST]);
    assert!(matches!(
        refused,
        Err(PerCpuError::Offsets(OffsetsError::NoSymbol(_)))
    ));
    let address = TEXT + IMAGE_LEN - 8;
    let symbols = symbols(&[(address, OFFSETS)]);
    let address = GuestVirtAddr(address);
    let refused = find_with(&symbols, &[FIRST, FIRST + MIB]);
    assert_eq!(refused, Err(OffsetsError::NotLoaded { address }.into()));
}
