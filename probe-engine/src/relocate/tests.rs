use guest_state::Registers;
use proptest::prelude::*;

use super::*;
use crate::emulate::Touched;

/// Where the instruction is, a place within 2 GiB of it, and one that is not.
const HERE: u64 = 0xffff_ffff_8123_4567;
const NEAR: u64 = 0xffff_ffff_7fff_f000;
const FAR: u64 = 0xffff_8880_0000_1000;

fn relocate(bytes: &[u8], to: u64) -> Result<Vec<u8>, Reason> {
    let code = decode(bytes, GuestVirtAddr(HERE)).expect("an instruction");
    one(&code, bytes, GuestVirtAddr(to)).map(|copied| copied.bytes)
}

fn raises(bytes: &[u8]) -> Raises {
    Raises::by(&decode(bytes, GuestVirtAddr(HERE)).unwrap().insn)
}

/// `before`, the displacement from the end of the instruction at `from` to `target`, `after`.
fn rip_relative(before: &[u8], from: u64, target: u64, after: &[u8]) -> Vec<u8> {
    let end = from + (before.len() + 4 + after.len()) as u64;
    let by = target.wrapping_sub(end) as u32;
    [before, &by.to_le_bytes(), after].concat()
}

#[test]
fn an_instruction_that_needs_no_change_is_copied_verbatim() {
    for code in [
        // mov %rax,%rbx; the same with redundant prefixes; nopl 0(%rax,%rax,1)
        &[0x48, 0x89, 0xc3][..],
        &[0x2e, 0x66, 0x40, 0x48, 0x89, 0xc3],
        &[0x0f, 0x1f, 0x44, 0, 0],
        // mov (%rsp),%rax; mov 0x12345678(%r12,%r13,8),%rax; mov %gs:0x10,%rax
        &[0x48, 0x8b, 0x04, 0x24],
        &[0x4b, 0x8b, 0x84, 0xec, 0x78, 0x56, 0x34, 0x12],
        &[0x65, 0x48, 0x8b, 0x04, 0x25, 0x10, 0, 0, 0],
        // movabs 0x1122334455667788,%al; mov 0x10(%ebx),%eax; mov $0x1122334455667788,%rax
        &[0xa0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
        &[0x67, 0x8b, 0x43, 0x10],
        &[0x48, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
        // push %rbp; rep movsb; lock incl (%rdi); wrmsr; vmovdqa %ymm0,(%rdi); div %rcx
        &[0x55],
        &[0xf3, 0xa4],
        &[0xf0, 0xff, 0x07],
        &[0x0f, 0x30],
        &[0xc5, 0xfd, 0x7f, 0x07],
        &[0x48, 0xf7, 0xf1],
    ] {
        for to in [NEAR, FAR, 0] {
            assert_eq!(relocate(code, to).as_deref(), Ok(code), "{code:x?}");
        }
    }
}

/// What is before the displacement and after it.
const RIP_RELATIVE: &[(&[u8], &[u8])] = &[
    // mov x(%rip),%rax; mov %gs:x(%rip),%rax; lea x(%rip),%r15
    (&[0x48, 0x8b, 0x05], &[]),
    (&[0x65, 0x48, 0x8b, 0x05], &[]),
    (&[0x4c, 0x8d, 0x3d], &[]),
    // cmpb $7,x(%rip); cmpl $0x11223344,x(%rip); testq $-1,x(%rip); bts $3,x(%rip)
    (&[0x80, 0x3d], &[7]),
    (&[0x81, 0x3d], &[0x44, 0x33, 0x22, 0x11]),
    (&[0x48, 0xf7, 0x05], &[0xff, 0xff, 0xff, 0xff]),
    (&[0x0f, 0xba, 0x2d], &[3]),
    // cmpw $0x1122,x(%rip); lock incl %gs:x(%rip); lock cmpxchg %rcx,x(%rip)
    (&[0x66, 0x81, 0x3d], &[0x22, 0x11]),
    (&[0xf0, 0x65, 0xff, 0x05], &[]),
    (&[0xf0, 0x48, 0x0f, 0xb1, 0x0d], &[]),
    // a useless rex.b and a useless ds prefix; incl %fs:x(%rip)
    (&[0x3e, 0x41, 0xff, 0x05], &[]),
    (&[0x64, 0xff, 0x05], &[]),
    // movups x(%rip),%xmm3; pshufd $1,x(%rip),%xmm1; 3DNow pfadd x(%rip),%mm0
    (&[0x0f, 0x10, 0x1d], &[]),
    (&[0x66, 0x0f, 0x70, 0x0d], &[1]),
    (&[0x0f, 0x0f, 0x05], &[0x9e]),
    // vmovdqu x(%rip),%ymm2 (2 and 3 bytes of VEX); vblendvps %xmm4,x(%rip),%xmm2,%xmm3
    (&[0xc5, 0xfe, 0x6f, 0x15], &[]),
    (&[0xc4, 0xe1, 0x7e, 0x6f, 0x15], &[]),
    (&[0xc4, 0xe3, 0x69, 0x4a, 0x1d], &[0x40]),
    // vmovdqu64 x(%rip),%zmm17{%k1}{z}; vaddps x(%rip){1to16},%zmm2,%zmm1
    (&[0x62, 0xe1, 0xfe, 0xc9, 0x6f, 0x0d], &[]),
    (&[0x62, 0xf1, 0x6c, 0x58, 0x58, 0x0d], &[]),
];

#[test]
fn operands_addressed_by_rip_stay_where_they_are() {
    for (before, after) in RIP_RELATIVE {
        for target in [0xffff_ffff_8280_0000, HERE, 0xffff_ffff_8000_0000] {
            let code = rip_relative(before, HERE, target, after);
            let expected = rip_relative(before, NEAR, target, after);
            assert_eq!(relocate(&code, NEAR), Ok(expected), "{code:x?}");
        }
    }
}

#[test]
fn operands_out_of_reach_are_addressed_absolutely() {
    for (before, after) in RIP_RELATIVE {
        // A per-CPU offset, which wraps around from the image, from just below the image; data of
        // the image from far away.
        for (target, to) in [
            (0x2_1880_u64, NEAR),
            (0x10, NEAR),
            (0xffff_ffff_8280_0000, FAR),
        ] {
            let code = rip_relative(before, HERE, target, after);
            let (mod_rm, opcode) = before.split_last().unwrap();
            let address = (target as u32).to_le_bytes();
            let expected = [opcode, &[mod_rm - 1, 0x25], &address, after].concat();
            assert_eq!(relocate(&code, to), Ok(expected), "{code:x?}");
        }
    }
}

#[test]
fn addresses_of_32_bits_wrap_around() {
    // mov x(%eip),%eax
    let before = &[0x67, 0x8b, 0x05];
    let code = rip_relative(before, HERE, 0x1000, &[]);
    for to in [NEAR, FAR, 0x5000] {
        let expected = rip_relative(before, to, 0x1000, &[]);
        assert_eq!(relocate(&code, to), Ok(expected));
    }
}

#[test]
fn an_operand_that_the_copy_can_t_address_is_refused() {
    // A far operand that isn't within the last or first 2 GiB.
    let code = rip_relative(
        &[0x48, 0x8b, 0x05],
        HERE,
        HERE.wrapping_sub(0x7000_0000),
        &[],
    );
    assert!(relocate(&code, FAR).unwrap_err().contains("out of reach"));
    // 15 bytes already: rep prefixes before cs mov $imm32,x(%rip)
    let code = rip_relative(
        &[0x2e, 0x2e, 0x2e, 0x2e, 0x48, 0xc7, 0x05],
        HERE,
        0x10,
        &[1, 2, 3, 4],
    );
    assert_eq!(code.len(), MAX_INSTRUCTION_LEN);
    assert!(relocate(&code, NEAR).unwrap_err().contains("no room"));
    // A useless rex.x, which would become an index.
    let code = rip_relative(&[0x4a, 0x8b, 0x05], HERE, 0x10, &[]);
    assert!(
        relocate(&code, NEAR)
            .unwrap_err()
            .contains("can't be addressed")
    );
}

#[test]
fn an_instruction_that_depends_on_its_place_is_refused() {
    for (code, why) in [
        (&[0xe8, 0, 0, 0, 0][..], "call"),
        (&[0xff, 0xd0], "call"),
        (&[0xff, 0x15, 0, 0, 0, 0], "call"),
        (&[0xe9, 0, 0, 0, 0], "relative branch"),
        (&[0xeb, 0], "relative branch"),
        (&[0x74, 0], "relative branch"),
        (&[0x0f, 0x85, 0, 0, 0, 0], "relative branch"),
        (&[0xe3, 0], "relative branch"),
        (&[0xe2, 0], "relative branch"),
        (&[0xff, 0xe0], "branch"),
        (&[0xc3], "branch"),
        (&[0xcb], "far branch"),
        (&[0x48, 0xff, 0x2f], "far branch"),
        (&[0xff, 0x1f], "far branch"),
        (&[0xcc], "exception"),
        (&[0x0f, 0x0b], "exception"),
        (&[0xcd, 0x80], "software interrupt"),
        (&[0x48, 0xcf], "flags"),
        (&[0x0f, 0x05], "privilege level"),
        (&[0x0f, 0x01, 0xc1], "virtual machine"),
        (&[0xf3, 0x0f, 0x01, 0xd9], "hypervisor"),
        (&[0xc7, 0xf8, 0, 0, 0, 0], "transaction"),
        (&[0xfb], "holds interrupts back"),
        (&[0x8e, 0xd0], "blocks interrupts"),
        (&[0xfa], "interrupts and debug exceptions"),
        (&[0x9d], "interrupts and debug exceptions"),
        (&[0xf4], "waits"),
        (&[0x0f, 0x22, 0xd8], "page tables"),
        (&[0x0f, 0x22, 0xc0], "page tables"),
        // fadd %st(1),%st; fldl (%rax)
        (&[0xd8, 0xc1], "FPU"),
        (&[0xdd, 0x00], "FPU"),
    ] {
        let refused = relocate(code, NEAR).unwrap_err();
        assert!(refused.contains(why), "{code:x?}: {refused}");
    }
    // mov %cr3,%rax; mov %rax,%cr8; fninit; fxsave (%rax) record nothing and map nothing
    for code in [
        &[0x0f, 0x20, 0xd8][..],
        &[0x44, 0x0f, 0x22, 0xc0],
        &[0xdb, 0xe3],
        &[0x0f, 0xae, 0x00],
    ] {
        assert_eq!(relocate(code, NEAR).as_deref(), Ok(code));
    }
}

#[test]
fn a_copy_goes_on_after_the_original_by_way_of_a_byte_to_trap_on() {
    let copied = Copied {
        to: GuestVirtAddr(NEAR),
        bytes: vec![0x48, 0x89, 0xc3],
    };
    let next = GuestVirtAddr(HERE + 3);
    let code = passing(&copied, next).unwrap();
    assert_eq!(code[..4], [0x48, 0x89, 0xc3, 0x90]);
    let jump = decode(&code[4..], GuestVirtAddr(NEAR + 4)).unwrap();
    assert_eq!((jump.insn.near_branch_target(), code.len()), (next.0, 9));
    assert!(passing(&copied, GuestVirtAddr(FAR)).is_err());
}

#[test]
fn only_plain_integer_work_raises_nothing_but_page_faults() {
    use Raises::{Nothing, Others, PageFaults};
    use Vector::{
        DeviceNotAvailable, DivideError, FloatingPoint, GeneralProtection, InvalidOpcode,
        PageFault, SimdFloatingPoint,
    };
    const PRIVILEGED: Raises = Others(&[GeneralProtection, InvalidOpcode]);
    const REST: Raises = Others(&[InvalidOpcode, GeneralProtection]);
    const SSE: Raises = Others(&[DeviceNotAvailable, GeneralProtection, SimdFloatingPoint]);
    const AVX: Raises = Others(&[InvalidOpcode, DeviceNotAvailable, SimdFloatingPoint]);
    const FPU: Raises = Others(&[DeviceNotAvailable, FloatingPoint]);
    for (code, expected) in [
        // add %rax,%rbx; imul %rcx; bsf %rax,%rbx; lea; nopl (%rax); rdtsc; cpuid; cmove; sete
        (&[0x48, 0x01, 0xc3][..], Nothing),
        (&[0x48, 0xf7, 0xe9], Nothing),
        (&[0x48, 0x0f, 0xbc, 0xd8], Nothing),
        (&[0x48, 0x8d, 0x04, 0x08], Nothing),
        (&[0x0f, 0x1f, 0x00], Nothing),
        (&[0x0f, 0x31], Nothing),
        (&[0x0f, 0xa2], Nothing),
        (&[0x0f, 0x44, 0xc1], Nothing),
        (&[0x0f, 0x94, 0xc0], Nothing),
        // tzcnt %rax,%rbx; lzcnt %rax,%rbx
        (&[0xf3, 0x48, 0x0f, 0xbc, 0xd8], Nothing),
        (&[0xf3, 0x48, 0x0f, 0xbd, 0xd8], Nothing),
        // prefetcht0 (%rax); invlpg (%rax); in (%dx),%al; mov %ds,%eax; mfence
        (&[0x0f, 0x18, 0x08], Nothing),
        (&[0x0f, 0x01, 0x38], Nothing),
        (&[0xec], Nothing),
        (&[0x8c, 0xd8], Nothing),
        (&[0x0f, 0xae, 0xf0], Nothing),
        // lock incl (%rdi); mov x(%rip),%rax; push %rax; bt %rax,(%rbx); movsb; lock cmpxchg8b
        (&[0xf0, 0xff, 0x07], PageFaults),
        (&[0x48, 0x8b, 0x05, 0, 0, 0, 0], PageFaults),
        (&[0x50], PageFaults),
        (&[0x48, 0x0f, 0xa3, 0x03], PageFaults),
        (&[0xa4], PageFaults),
        (&[0xf0, 0x0f, 0xc7, 0x0f], PageFaults),
        (&[0x0f, 0x94, 0x00], PageFaults),
        (&[0x48, 0x0f, 0xc3, 0x07], PageFaults),
        // rep movsb; mov (%ebx),%eax; xlat, whose index is a byte
        (&[0xf3, 0xa4], Others(&[PageFault])),
        (&[0x67, 0x8b, 0x03], Others(&[PageFault])),
        (&[0xd7], REST),
        (&[0x48, 0xf7, 0xf1], Others(&[DivideError])),
        // wrmsr; mov %cr3,%rax; mov %rax,%db7; xsetbv; lgdt (%rax); mov %eax,%ds; pop %fs
        (&[0x0f, 0x30], PRIVILEGED),
        (&[0x0f, 0x20, 0xd8], PRIVILEGED),
        (&[0x0f, 0x23, 0xf8], PRIVILEGED),
        (&[0x0f, 0x01, 0xd1], PRIVILEGED),
        (&[0x0f, 0x01, 0x10], PRIVILEGED),
        (&[0x8e, 0xd8], REST),
        (&[0x0f, 0xa1], REST),
        // rdpid %rax; xsave (%rdi); popcnt; stac; lock cmpxchg16b (%rdi); clflush (%rax)
        (&[0xf3, 0x0f, 0xc7, 0xf8], REST),
        (&[0x0f, 0xae, 0x27], REST),
        (&[0xf3, 0x48, 0x0f, 0xb8, 0xc1], REST),
        (&[0x0f, 0x01, 0xcb], PRIVILEGED),
        (&[0xf0, 0x48, 0x0f, 0xc7, 0x0f], REST),
        (&[0x0f, 0xae, 0x38], REST),
        // movaps %xmm0,(%rdi); cmpsd $0,%xmm1,%xmm0; vmovdqa %ymm0,(%rdi); fldl (%rax); fxsave
        (&[0x0f, 0x29, 0x07], SSE),
        (&[0xf2, 0x0f, 0xc2, 0xc1, 0], SSE),
        (&[0xc5, 0xfd, 0x7f, 0x07], AVX),
        (&[0xdd, 0x00], FPU),
        (&[0x0f, 0xae, 0x07], FPU),
    ] {
        assert_eq!(raises(code), expected, "{code:x?}");
        if expected == PageFaults {
            let insn = decode(code, GuestVirtAddr(HERE)).unwrap().insn;
            assert!(!Touched::by(&insn, false).is_empty(), "{code:x?}");
        }
    }
}

#[test]
fn a_division_that_will_fault_is_known() {
    const MIN: u64 = 1 << 63;
    let ones = u64::MAX;
    // Code, RDX, RAX, divisor, faults.
    let table: &[(&[u8], u64, u64, u64, bool)] = &[
        // div %rcx, %ecx, %cx, %cl
        (&[0x48, 0xf7, 0xf1], 0, 5, 0, true),
        (&[0x48, 0xf7, 0xf1], 0, 5, 1, false),
        (&[0x48, 0xf7, 0xf1], 1, 0, 1, true),
        (&[0x48, 0xf7, 0xf1], 1, 0, 2, false),
        (&[0xf7, 0xf1], MIN, 5, MIN, true),
        (&[0xf7, 0xf1], MIN, 5, 1, false),
        (&[0x66, 0xf7, 0xf1], 0x7, 0, 0x7, true),
        (&[0x66, 0xf7, 0xf1], 0x6, 0xffff, 0x7, false),
        (&[0xf6, 0xf1], ones, 0x0200, 2, true),
        (&[0xf6, 0xf1], ones, 0x01ff, 2, false),
        // idiv %rcx, %ecx, %cl
        (&[0x48, 0xf7, 0xf9], ones, MIN, ones, true),
        (&[0x48, 0xf7, 0xf9], ones, MIN, 1, false),
        (&[0x48, 0xf7, 0xf9], MIN, 0, ones, true),
        (&[0x48, 0xf7, 0xf9], 0, MIN, 1, true),
        (&[0x48, 0xf7, 0xf9], 0, 7, 0, true),
        (&[0xf7, 0xf9], 0xffff_ffff, 0x8000_0000, 0xffff_ffff, true),
        (&[0xf7, 0xf9], 0xffff_ffff, 0x8000_0001, 0xffff_ffff, false),
        (&[0xf6, 0xf9], 0, 0xff80, 0xff, true),
        (&[0xf6, 0xf9], 0, 0xff81, 0xff, false),
    ];
    for &(code, rdx, rax, divisor, faults) in table {
        let insn = decode(code, GuestVirtAddr(HERE)).unwrap().insn;
        let division = Division::of(&insn).unwrap();
        let regs = Registers {
            rdx,
            rax,
            ..Registers::default()
        };
        let case = format!("{code:x?} {rdx:#x} {rax:#x} {divisor:#x}");
        assert_eq!(division.faults(&regs, divisor), faults, "{case}");
    }
    let not = decode(&[0x90], GuestVirtAddr(HERE)).unwrap().insn;
    assert_eq!(Division::of(&not), None);
}

/// Bytes of which many decode, a good part of them with an operand addressed by RIP.
fn likely_code() -> impl Strategy<Value = Vec<u8>> {
    let prefixes = prop::collection::vec(
        prop::sample::select(
            &[
                0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x64, 0x65, 0x48, 0x44, 0x4f,
            ][..],
        ),
        0..4,
    );
    let opcode = prop_oneof![
        any::<u8>().prop_map(|a| vec![a]),
        any::<u8>().prop_map(|a| vec![0x0f, a]),
        any::<u8>().prop_map(|a| vec![0x0f, 0x38, a]),
        any::<u8>().prop_map(|a| vec![0x0f, 0x3a, a]),
        any::<[u8; 2]>().prop_map(|[a, b]| vec![0xc5, a, b]),
        any::<[u8; 3]>().prop_map(|[a, b, c]| vec![0xc4, a, b, c]),
        any::<[u8; 4]>().prop_map(|[a, b, c, d]| vec![0x62, a, b, c, d]),
    ];
    let mod_rm = prop_oneof![any::<u8>(), any::<u8>().prop_map(|reg| reg & 0x38 | RM_RIP)];
    (prefixes, opcode, mod_rm, any::<[u8; 9]>()).prop_map(|(prefixes, opcode, mod_rm, rest)| {
        [&prefixes[..], &opcode, &[mod_rm], &rest].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn relocating_there_and_back_keeps_the_instruction_and_its_operands(
        bytes in likely_code(),
        to in prop_oneof![Just(NEAR), Just(FAR), Just(HERE + 1), any::<u64>()],
    ) {
        let here = GuestVirtAddr(HERE);
        let Ok(code) = decode(&bytes, here) else { return Ok(()) };
        let Ok(there) = one(&code, &bytes, GuestVirtAddr(to)) else { return Ok(()) };
        let code_there = decode(&there.bytes, there.to).unwrap();
        prop_assert_eq!(code_there.insn.len(), there.bytes.len());
        prop_assert_eq!(code_there.prefixes, code.prefixes);
        prop_assert!(there.bytes.len() <= MAX_INSTRUCTION_LEN);
        let back = one(&code_there, &there.bytes, here).unwrap();
        let code_back = decode(&back.bytes, here).unwrap();
        prop_assert!(same(&code.insn, &code_back.insn));
        prop_assert_eq!(code.insn.memory_displacement64(), code_back.insn.memory_displacement64());
        if there.bytes.len() == code.insn.len() {
            prop_assert_eq!(&back.bytes[..], &bytes[..code.insn.len()]);
        }
        let slot = passing(&there, GuestVirtAddr(HERE + code.insn.len() as u64));
        prop_assert!(slot.is_err() || slot.unwrap().len() <= crate::arena::SLOT_LEN);
    }
}
