use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Addresses that are likely to lead somewhere.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..TEXT_LEN).prop_map(|offset| TEXT + offset),
        (0..0x200_u64).prop_map(|offset| STACK + offset),
        (0..64_u64).prop_map(|offset| STACK + offset * 8),
        Just(KERNEL_CS),
        any::<u64>(),
    ]
}

fn raw_entry() -> impl Strategy<Value = (u64, [u8; ENTRY_LEN])> {
    let offset = prop_oneof![(0..64_i16).prop_map(|words| words * 8), any::<i16>()];
    let fields = (0..TEXT_LEN, offset.clone(), offset, any::<u8>(), 0..16_u8);
    fields.prop_map(|(at, sp, bp, registers, kind)| {
        let ([s0, s1], [b0, b1]) = (sp.to_le_bytes(), bp.to_le_bytes());
        (at, [s0, s1, b0, b1, registers, kind])
    })
}

fn format() -> impl Strategy<Value = Format> {
    let bits = prop_oneof![
        Just(Bits::TypeEnd),
        Just(Bits::TypeSignalEnd),
        Just(Bits::LongTypeSignal),
    ];
    let numbers = prop_oneof![Just(Numbers::Sp5), Just(Numbers::Sp3)];
    (bits, numbers).prop_map(|(bits, numbers)| Format { bits, numbers })
}

fn registers() -> impl Strategy<Value = Registers> {
    vec(word(), 18).prop_map(|words| {
        let mut values = [0; 16];
        values.copy_from_slice(&words[..16]);
        Registers {
            rip: words[16],
            ..Registers::numbered(values)
        }
    })
}

proptest! {
    #[test]
    fn any_table_and_stack_end(
        format in format(),
        entries in vec(raw_entry(), 0..40),
        stack in vec(word(), 64),
        start in registers(),
        by_frame_pointers in any::<bool>(),
    ) {
        let ips: Vec<_> = entries.iter().zip(0..).flat_map(|((at, _), i)| {
            let distance = at.wrapping_sub(0x10000 + i * 4) as i32;
            distance.to_le_bytes()
        }).collect();
        let kinds: Vec<_> = entries.iter().flat_map(|(_, kind)| *kind).collect();
        let raw = RawOrc {
            address: GuestVirtAddr(TEXT + 0x10000),
            ips: &ips,
            entries: &kinds,
        };
        let table = Orc::new(raw, format, vec![text()]).unwrap();
        let unwinder = unwinder((!by_frame_pointers).then_some(table));
        let bytes: Vec<_> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        let captured = CapturedStack { start: GuestVirtAddr(STACK), bytes: &bytes };
        let mut reads = 0_usize;
        let around = Surroundings {
            memory: &mut |at| {
                reads += 1;
                captured.read(at)
            },
            kernel: &mut |_| None,
            foreign: &mut |_, _, _| None,
            task: None,
        };
        let trace = unwinder.unwind(&start, around, usize::MAX);
        prop_assert!((1..=MAX_FRAMES).contains(&trace.addresses.len()));
        // A caller's stack pointer is above, but for a few changes of stacks.
        prop_assert!(trace.addresses.len() <= 9 * 64 + 10);
        prop_assert!(reads <= trace.addresses.len() * 8);
        // With a smaller limit the trace is the same, cut off.
        let around = Surroundings {
            memory: &mut |at| captured.read(at),
            kernel: &mut |_| None,
            foreign: &mut |_, _, _| None,
            task: None,
        };
        let shorter = unwinder.unwind(&start, around, 3);
        let len = trace.addresses.len().min(3);
        prop_assert_eq!(&shorter.addresses[..], &trace.addresses[..len]);
    }

    #[test]
    fn any_bytes_are_a_table_or_refused(
        format in format(),
        address in any::<u64>(),
        ips in vec(any::<u8>(), 0..100),
        kinds in vec(any::<u8>(), 0..150),
        at in any::<u64>(),
    ) {
        let raw = RawOrc { address: GuestVirtAddr(address), ips: &ips, entries: &kinds };
        if let Ok(table) = Orc::new(raw, format, vec![GuestVirtAddr(0)..GuestVirtAddr(u64::MAX)]) {
            let _ = table.find(GuestVirtAddr(at));
            prop_assert!(table.len() <= ips.len() / 4);
        }
    }
}
