//! Choosing registers and displacements so that an instruction reaches only what it may.

use iced_x86::{CodeSize, MemorySize, Mnemonic, OpKind, Register};
use iced_x86::{InstructionInfoFactory, InstructionInfoOptions};
use seeded_random::Random;

use crate::case::{ALWAYS, Case, FLAGS};
use crate::cpu::{DATA_LEN, Layout};
use crate::registers::{get, set};

/// The largest operand, except for the states that `xsave` and its like write.
const LARGEST: u64 = 64;
/// Room for those states, and their alignment.
const STATE: u64 = 4096;

/// Makes a relative branch go to the landing.
pub fn branch(case: &mut Case, layout: Layout) -> Result<(), &'static str> {
    if case.insn.op0_kind() != OpKind::NearBranch64 {
        return match case.insn.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 => Err("it branches to 16 or 32 bits"),
            _ => Ok(()),
        };
    }
    let offsets = case.offsets(layout);
    let by = layout
        .landing
        .wrapping_sub(layout.code + case.code.len() as u64);
    let (at, len) = (offsets.immediate_offset(), offsets.immediate_size());
    case.patch(at, &by.to_le_bytes()[..len], layout)
        .ok_or("its branch can't be aimed")
}

/// Sets registers that an instruction uses without naming them in an operand: of strings, and
/// counts.
pub fn implicit(case: &mut Case, random: &mut Random, layout: Layout) {
    let insn = case.insn;
    let mut middle = || layout.data + 1024 + 8 * random.below((DATA_LEN as u64 - 2048) / 8);
    let (a, b) = (middle(), middle());
    let strings = insn.is_string_instruction()
        || matches!(insn.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu);
    if strings {
        // With 32-bit addresses the upper halves are ignored.
        let upper = if has_address_size(&insn) {
            random.bits() << 32
        } else {
            0
        };
        (case.registers.rsi, case.registers.rdi) = (a | upper, b | upper);
        if insn.has_rep_prefix() || insn.has_repne_prefix() {
            case.registers.rcx = random.below(17) | upper;
        }
    }
    if matches!(insn.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) && random.once_in(2) {
        // Most quotients of random numbers don't fit.
        (case.registers.rax, case.registers.rdx) = (random.below(128), 0);
    }
    let bits = matches!(
        insn.mnemonic(),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
    );
    if bits && insn.op0_kind() == OpKind::Memory && insn.op1_kind() == OpKind::Register {
        // The bit may be this far beyond the operand, on either side.
        let offset = random.below(4096).wrapping_sub(2048);
        let _is_general = set(&mut case.registers, insn.op1_register(), offset);
    }
}

fn has_address_size(insn: &iced_x86::Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info_options(insn, InstructionInfoOptions::NO_REGISTER_USAGE);
    info.used_memory()
        .iter()
        .any(|used| used.address_size() == CodeSize::Code32)
}

/// Makes a memory operand lie in the data: by the displacement if it is the whole address, else by
/// the base register, else by the index register.
pub fn memory(case: &mut Case, random: &mut Random, layout: Layout) -> Result<(), &'static str> {
    let insn = case.insn;
    let is_memory = (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory);
    if !is_memory || computes_only(insn.mnemonic()) {
        return Ok(());
    }
    let gs = match insn.memory_segment() {
        Register::FS => return Err("the test process itself uses FS"),
        Register::GS => true,
        _ => false,
    };
    let wanted = place(&insn, random, layout);
    let (base, index) = (insn.memory_base(), insn.memory_index());
    let displacement = insn.memory_displacement64();
    let conflict = |register: Register| uses_as_bit_offset(&insn, register);
    let is_large = |register: Register| register.size() == 8;
    match (base, index) {
        (Register::RIP | Register::EIP | Register::None, Register::None) if gs => {
            // GS base may have any value, so the displacement stays.
            let address = wanted.wrapping_sub(displacement);
            if address < 1 << 46 {
                case.gs_base = address;
                return Ok(());
            }
            case.gs_base = 0x1000;
            displace(case, wanted - 0x1000, layout)
        }
        (Register::RIP | Register::EIP | Register::None, Register::None) => {
            displace(case, wanted, layout)
        }
        (base, index) => {
            let segment = if gs { random.below(1 << 20) } else { 0 };
            case.gs_base = segment;
            // The sum that the registers must have.
            let sum = wanted.wrapping_sub(segment).wrapping_sub(displacement);
            let scale = u64::from(insn.memory_index_scale());
            let register = if base == Register::None { index } else { base };
            if conflict(register) {
                return Err("its bit offset is a part of its address");
            }
            let factor = match (base, index) {
                (Register::None, _) => scale,
                (base, index) if base == index => 1 + scale,
                _ => 1,
            };
            let other = if base == Register::None || base == index || index == Register::None {
                0
            } else {
                get(&case.registers, index)
                    // Only `xlat` has a register of one byte there: AL.
                    .map(|value| {
                        if index.size() == 1 {
                            value & 0xff
                        } else {
                            value
                        }
                    })
                    .ok_or("its index is no general register")?
                    .wrapping_mul(scale)
            };
            let mut value = sum.wrapping_sub(other);
            if !is_large(register) {
                value &= 0xffff_ffff;
            }
            // Rounded towards the data's start. That moves it by less than its distance from the
            // start.
            let value =
                divide(value, factor, is_large(register)).ok_or("its address can't be aimed")?;
            let value = if is_large(register) {
                value
            } else {
                value | random.bits() << 32
            };
            let pushes = insn.is_stack_instruction();
            if register == Register::RSP && pushes && !fits_stack(value, layout) {
                return Err("its stack pointer would leave the data");
            }
            set(&mut case.registers, register, value).ok_or("its base is no general register")
        }
    }
}

/// Returns `value / factor`, such that multiplying it gives `value` or a little less; signed.
fn divide(value: u64, factor: u64, large: bool) -> Option<u64> {
    if large {
        Some(
            value
                .cast_signed()
                .checked_div_euclid(factor.cast_signed())?
                .cast_unsigned(),
        )
    } else {
        value.checked_div(factor)
    }
}

fn fits_stack(rsp: u64, layout: Layout) -> bool {
    (layout.data + 512..layout.data + DATA_LEN as u64 - 512).contains(&rsp)
}

/// Returns true if the operands are an address without an access, or with a hint only.
fn computes_only(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Lea | Mnemonic::Nop | Mnemonic::Reservednop
    )
}

fn uses_as_bit_offset(insn: &iced_x86::Instruction, register: Register) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
    ) && insn.op1_kind() == OpKind::Register
        && insn.op1_register().full_register() == register.full_register()
}

/// Returns the address for the operand.
fn place(insn: &iced_x86::Instruction, random: &mut Random, layout: Layout) -> u64 {
    let size = insn.memory_size().size() as u64;
    let len = DATA_LEN as u64;
    if insn.memory_size() == MemorySize::Unknown || size == 0 || size > LARGEST {
        return layout.data + 64 * random.below((len - STATE) / 64);
    }
    let stack = [insn.memory_base(), insn.memory_index()].contains(&Register::RSP);
    // Atomic accesses across cache lines may be slow or not allowed.
    let aligned = insn.has_lock_prefix()
        || insn.mnemonic() == Mnemonic::Xchg
        || size > 8 && !random.once_in(8);
    let border = !stack && !insn.has_lock_prefix() && insn.mnemonic() != Mnemonic::Xchg;
    let at = if border && random.once_in(16) {
        // Some or all of it may be in the next page, which faults.
        len - random.below(size + 1)
    } else {
        600 + random.below(len - 1200)
    };
    layout.data + if aligned { at & !(LARGEST - 1) } else { at }
}

/// Changes a displacement that is the whole address.
fn displace(case: &mut Case, wanted: u64, layout: Layout) -> Result<(), &'static str> {
    let offsets = case.offsets(layout);
    let (at, len) = (offsets.displacement_offset(), offsets.displacement_size());
    let value = if case.insn.is_ip_rel_memory_operand() {
        wanted.wrapping_sub(layout.code + case.code.len() as u64)
    } else {
        wanted
    };
    case.patch(at, &value.to_le_bytes()[..len.min(8)], layout)
        .ok_or("its displacement can't be changed")
}

/// Makes an indirect branch and a return go to the landing, and makes `popf` pop flags that user
/// mode may set.
pub fn target(case: &mut Case, layout: Layout) -> Result<(), &'static str> {
    const CANNOT: &str = "its target can't be aimed";
    let stack = case.registers.rsp;
    match (case.insn.mnemonic(), case.insn.op0_kind()) {
        (Mnemonic::Call | Mnemonic::Jmp, OpKind::Register) => {
            let register = case.insn.op0_register();
            if register.full_register() == Register::RSP || register.size() != 8 {
                // The stack would then be in the code.
                return Err(CANNOT);
            }
            set(&mut case.registers, register, layout.landing).ok_or(CANNOT)
        }
        (Mnemonic::Call | Mnemonic::Jmp, OpKind::Memory) => {
            let (registers, gs_base) = (case.registers, case.gs_base);
            let at = case
                .insn
                .virtual_address(0, 0, |register, _, _| match register {
                    Register::DS | Register::SS | Register::CS | Register::ES => Some(0),
                    Register::GS => Some(gs_base),
                    _ => part(get(&registers, register)?, register),
                });
            if case.insn.memory_size() != MemorySize::QwordOffset {
                return Err(CANNOT);
            }
            // An operand at the border can't be written, and faults instead.
            let _inside = case.poke(at.ok_or(CANNOT)?, layout.landing, layout);
            Ok(())
        }
        (Mnemonic::Ret, _) => {
            let is_64 = case.insn.stack_pointer_increment() >= 8;
            if !is_64 || case.code.contains(&0x66) {
                return Err(CANNOT);
            }
            case.poke(stack, layout.landing, layout).ok_or(CANNOT)
        }
        (Mnemonic::Popfq | Mnemonic::Popf, _) => {
            let flags = u64::from(case.data[0]) << 4 | u64::from(case.data[1]);
            case.poke(stack, flags & FLAGS | ALWAYS, layout)
                .ok_or(CANNOT)
        }
        _ => Ok(()),
    }
}

fn part(value: u64, register: Register) -> Option<u64> {
    match register.size() {
        8 => Some(value),
        4 => Some(value & 0xffff_ffff),
        _ => None,
    }
}
