use super::*;
use crate::btf::synthetic::Builder;

#[test]
fn the_word_of_an_entry_is_read_as_each_version_has_it() {
    use Bits::{LongTypeSignal, TypeEnd, TypeSignalEnd};
    let cases = [
        (TypeEnd, 0x0005, FrameType::Call, false),
        (TypeEnd, 0x0105, FrameType::Registers, true),
        (TypeEnd, 0x0205, FrameType::PartialRegisters, true),
        (TypeEnd, 0x0305, FrameType::Unknown, false),
        (TypeEnd, 0x0000, FrameType::Undefined, false),
        (TypeEnd, 0x0400, FrameType::EndOfStack, false),
        (TypeSignalEnd, 0x0005, FrameType::Call, false),
        (TypeSignalEnd, 0x0105, FrameType::Registers, false),
        (TypeSignalEnd, 0x0505, FrameType::Registers, true),
        (TypeSignalEnd, 0x0605, FrameType::PartialRegisters, true),
        (TypeSignalEnd, 0x0400, FrameType::Undefined, true),
        (TypeSignalEnd, 0x0800, FrameType::EndOfStack, false),
        (LongTypeSignal, 0x0005, FrameType::Undefined, false),
        (LongTypeSignal, 0x0100, FrameType::EndOfStack, false),
        (LongTypeSignal, 0x0205, FrameType::Call, false),
        (LongTypeSignal, 0x0b05, FrameType::Registers, true),
        (LongTypeSignal, 0x0305, FrameType::Registers, false),
        (LongTypeSignal, 0x0c05, FrameType::PartialRegisters, true),
        (LongTypeSignal, 0x0705, FrameType::Unknown, false),
    ];
    for (bits, word, frame, signal) in cases {
        let numbers = Numbers::Sp5;
        let [low, high] = u16::to_le_bytes(word);
        let found = Format { bits, numbers }.decode([8, 0, 0xf0, 0xff, low, high]);
        assert_eq!(
            (found.frame, found.signal),
            (frame, signal),
            "{bits:?} {word:#x}"
        );
        assert_eq!((found.sp_offset, found.bp_offset), (8, -16));
    }
}

#[test]
fn registers_are_numbered_as_the_kernel_does() {
    use Base::{Bp, BpIndirect, PreviousSp, Sp, SpIndirect, Undefined, Unknown};
    use Register::{R10, R13, Rax, Rdi, Rdx};
    let register = Base::Register;
    let older = [
        Undefined,
        PreviousSp,
        register(Rdx),
        register(Rdi),
        Bp,
        Sp,
        register(R10),
        register(R13),
        BpIndirect,
        SpIndirect,
        register(Rax),
    ];
    let newer = [
        Undefined,
        register(Rax),
        register(Rdx),
        Sp,
        Bp,
        register(Rdi),
        register(R10),
        register(R13),
        PreviousSp,
        SpIndirect,
        BpIndirect,
    ];
    for (numbers, known) in [(Numbers::Sp5, older), (Numbers::Sp3, newer)] {
        for number in 0..16 {
            let format = Format { numbers, ..FORMAT };
            let found = format.decode([0, 0, 0, 0, number | number << 4, 2]);
            let expected = known.get(usize::from(number)).copied().unwrap_or(Unknown);
            assert_eq!(
                (found.sp, found.bp),
                (expected, expected),
                "{numbers:?} {number}"
            );
        }
    }
}

#[test]
fn the_register_that_most_entries_use_is_rsp() {
    let table = |low: &[u8]| {
        let entries: Vec<_> = low.iter().map(|low| [8, 0, 0, 0, *low, 2]).collect();
        Numbers::of_entries(&entries)
    };
    assert_eq!(table(&[0x05, 0x15, 0x03, 0x00, 0x00, 0x00]), Numbers::Sp5);
    assert_eq!(table(&[0x03, 0x83, 0x05, 0x00, 0x00, 0x00]), Numbers::Sp3);
    assert_eq!(table(&[]), Numbers::Sp5);
}

/// Makes the kernel's type, with these fields behind the registers. Fields: name, first bit, bits.
fn types(size: u32, fields: &[(&'static str, u32, u32)]) -> Btf {
    let mut b = Builder::new();
    let short = b.int("short", 2);
    let int = b.int("unsigned int", 4);
    let mut members = vec![
        ("sp_offset", short, 0, 0),
        ("bp_offset", short, 16, 0),
        ("sp_reg", int, 32, 4),
        ("bp_reg", int, 36, 4),
    ];
    members.extend(fields.iter().map(|(name, at, len)| (*name, int, *at, *len)));
    b.bit_fields("orc_entry", size, &members);
    Btf::parse(&b.bytes()).unwrap()
}

#[test]
fn the_kernel_s_types_tell_the_form() {
    let unknown = Err(OrcError::UnknownFormat);
    let cases: [(u32, &[_], _); 6] = [
        (
            6,
            &[("type", 40, 2), ("end", 42, 1)],
            Ok(Some(Bits::TypeEnd)),
        ),
        (
            6,
            &[("type", 40, 2), ("signal", 42, 1), ("end", 43, 1)],
            Ok(Some(Bits::TypeSignalEnd)),
        ),
        (
            6,
            &[("type", 40, 3), ("signal", 43, 1)],
            Ok(Some(Bits::LongTypeSignal)),
        ),
        (8, &[("type", 40, 3), ("signal", 43, 1)], unknown.clone()),
        (6, &[("type", 40, 4), ("signal", 44, 1)], unknown.clone()),
        (6, &[], unknown),
    ];
    for (size, fields, expected) in cases {
        assert_eq!(Bits::of_types(&types(size, fields)), expected, "{fields:?}");
    }
    let none = Btf::parse(&Builder::new().bytes()).unwrap();
    assert_eq!(Bits::of_types(&none), Ok(None));
}

#[test]
fn the_release_tells_the_form_where_there_are_no_types() {
    for (release, expected) in [
        ("5.10.0-30-amd64 (debian)", Some(Bits::TypeEnd)),
        ("6.1.0-56-cloud-amd64", Some(Bits::TypeEnd)),
        ("6.3.10", Some(Bits::TypeSignalEnd)),
        ("6.4.0-rc1", Some(Bits::LongTypeSignal)),
        ("6.12.118+deb13", Some(Bits::LongTypeSignal)),
        ("7.2.1", Some(Bits::LongTypeSignal)),
        ("6", None),
        ("next", None),
        ("99999999999.1", None),
        ("", None),
    ] {
        assert_eq!(Bits::of_release(release), expected, "{release}");
    }
}
