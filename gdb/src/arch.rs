//! The registers of a vCPU as gdb numbers them.
//!
//! Source: the features `org.gnu.gdb.i386.core`, `.sse` and `.segments` of gdb's manual (G.5.8), whose registers come
//! in the order of gdb's own `features/i386/64bit-core.xml` and `64bit-sse.xml`. What `target.xml` says is what is done
//! here.

use std::num::NonZeroUsize;

use gdbstub::arch::{Arch, RegId, Registers};
use vmprobe_client::v1;

/// x86-64 in 64-bit mode, with the registers of a kernel.
pub(crate) enum X86_64 {}

impl Arch for X86_64 {
    type Usize = u64;
    type Registers = VcpuRegisters;
    type BreakpointKind = usize;
    type RegId = Number;

    fn target_description_xml() -> Option<&'static str> {
        Some(include_str!("target.xml"))
    }
}

/// General registers, RIP and the flags: those that can be set.
const GENERAL: usize = 18;
const RIP: usize = 16;
const FLAGS: usize = 17;
/// Segment selectors.
const SELECTORS: usize = 6;
/// The FPU's stack, and what it has besides.
const ST: usize = GENERAL + SELECTORS;
const ST_LEN: usize = 10;
const FPU_CONTROL: usize = ST + 8;
/// The registers of SSE.
const XMM: usize = FPU_CONTROL + 8;
const XMM_LEN: usize = 16;
const MXCSR: usize = XMM + 16;
/// The first of the bases of segments and control registers.
const SYSTEM: usize = MXCSR + 1;
const SYSTEM_COUNT: usize = 9;
/// All registers.
const COUNT: usize = SYSTEM + SYSTEM_COUNT;

/// The number of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) usize);

impl Number {
    /// Returns its length in bytes.
    fn len(self) -> usize {
        match self.0 {
            FLAGS..ST => 4,
            ST..FPU_CONTROL => ST_LEN,
            FPU_CONTROL..XMM => 4,
            XMM..MXCSR => XMM_LEN,
            MXCSR => 4,
            _ => 8,
        }
    }
}

impl RegId for Number {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        let number = Self(id);
        (id < COUNT).then(|| (number, NonZeroUsize::new(number.len())))
    }

    fn to_raw_id(&self) -> Option<usize> {
        Some(self.0)
    }
}

/// The registers of a vCPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct VcpuRegisters(pub(crate) v1::VcpuState);

impl VcpuRegisters {
    /// Returns the value of a register, in its length; `None` for one that isn't known.
    pub(crate) fn get(&self, number: Number) -> Option<Vec<u8>> {
        let state = &self.0;
        let general = state.registers.unwrap_or_default();
        let value = match number.0 {
            index @ 0..GENERAL => read(&general, index),
            18 => state.cs.into(),
            19 => state.ss.into(),
            20 => state.ds.into(),
            21 => state.es.into(),
            22 => state.fs.into(),
            23 => state.gs.into(),
            index @ ST..SYSTEM => return fpu(state.fpu.as_ref()?, index),
            index => *[
                state.fs_base,
                state.gs_base,
                state.kernel_gs_base,
                state.cr0,
                state.cr2,
                state.cr3,
                state.cr4,
                state.cr8,
                state.efer,
            ]
            .get(index - SYSTEM)?,
        };
        let mut bytes = value.to_le_bytes().to_vec();
        bytes.truncate(number.len());
        Some(bytes)
    }

    /// Sets a register. Returns false for one that can't be set, or for too few bytes.
    pub(crate) fn set(&mut self, number: Number, bytes: &[u8]) -> bool {
        let len = number.len();
        let general = self.0.registers.get_or_insert_default();
        let place = (number.0 < GENERAL).then(|| place(general, number.0));
        let (Some(place), Some(bytes)) = (place, bytes.get(..len)) else {
            return false;
        };
        let mut value = [0; 8];
        value[..len].copy_from_slice(bytes);
        *place = u64::from_le_bytes(value);
        true
    }
}

impl Registers for VcpuRegisters {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        read(&self.0.registers.unwrap_or_default(), RIP)
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        for number in (0..COUNT).map(Number) {
            match self.get(number) {
                Some(bytes) => bytes.into_iter().for_each(|byte| write_byte(Some(byte))),
                None => (0..number.len()).for_each(|_| write_byte(None)),
            }
        }
    }

    /// Leaves the registers that can't be set as they are.
    fn gdb_deserialize(&mut self, mut bytes: &[u8]) -> Result<(), ()> {
        for number in (0..GENERAL).map(Number) {
            let (value, rest) = bytes.split_at_checked(number.len()).ok_or(())?;
            self.set(number, value);
            bytes = rest;
        }
        Ok(())
    }
}

/// Returns a register of the FPU or of SSE by gdb's number.
fn fpu(fpu: &v1::FpuState, index: usize) -> Option<Vec<u8>> {
    let of = |bytes: &[u8], len, number| bytes.chunks_exact(len).nth(number).map(<[u8]>::to_vec);
    let value = match index {
        ST..FPU_CONTROL => return of(&fpu.st, ST_LEN, index - ST),
        XMM..MXCSR => return of(&fpu.xmm, XMM_LEN, index - XMM),
        MXCSR => fpu.mxcsr,
        // An address is in two registers. Its upper half is where 32-bit code has a segment.
        _ => *[
            fpu.control,
            fpu.status,
            fpu.tags,
            (fpu.instruction >> 32) as u32,
            fpu.instruction as u32,
            (fpu.operand >> 32) as u32,
            fpu.operand as u32,
            fpu.opcode,
        ]
        .get(index - FPU_CONTROL)?,
    };
    Some(value.to_le_bytes().to_vec())
}

fn read(registers: &v1::Registers, index: usize) -> u64 {
    let mut copy = *registers;
    *place(&mut copy, index)
}

/// Returns a register by gdb's number, of those that can be set.
fn place(r: &mut v1::Registers, index: usize) -> &mut u64 {
    match index {
        0 => &mut r.rax,
        1 => &mut r.rbx,
        2 => &mut r.rcx,
        3 => &mut r.rdx,
        4 => &mut r.rsi,
        5 => &mut r.rdi,
        6 => &mut r.rbp,
        7 => &mut r.rsp,
        8 => &mut r.r8,
        9 => &mut r.r9,
        10 => &mut r.r10,
        11 => &mut r.r11,
        12 => &mut r.r12,
        13 => &mut r.r13,
        14 => &mut r.r14,
        15 => &mut r.r15,
        RIP => &mut r.rip,
        _ => &mut r.rflags,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bits of each register, in the order of the description.
    fn described() -> Vec<(String, usize)> {
        let xml = X86_64::target_description_xml().unwrap();
        let attribute = |text: &str, name: &str| {
            let start = text.split_once(&format!("{name}=\"")).unwrap().1;
            start.split_once('"').unwrap().0.to_owned()
        };
        xml.split("<reg ")
            .skip(1)
            .map(|reg| {
                let bits = attribute(reg, "bitsize").parse().unwrap();
                (attribute(reg, "name"), bits)
            })
            .collect()
    }

    fn state() -> VcpuRegisters {
        VcpuRegisters(v1::VcpuState {
            registers: Some(v1::Registers {
                rax: 0x0102_0304_0506_0708,
                rbp: 6,
                rsp: 7,
                r15: 15,
                rip: 0xffff_ffff_8100_0000,
                rflags: 0x246,
                ..Default::default()
            }),
            cs: 0x10,
            gs: 0x2b,
            fs_base: 40,
            gs_base: 41,
            efer: 0xd01,
            fpu: Some(v1::FpuState {
                st: (0..80).collect(),
                control: 0x37f,
                tags: 0xfffc,
                instruction: 0x0102_0304_0506_0708,
                opcode: 0x7ff,
                xmm: (0..=255).collect(),
                mxcsr: 0x1f80,
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    #[test]
    fn each_register_is_as_long_as_its_description_says() {
        let described = described();
        assert_eq!(described.len(), COUNT);
        for (index, (name, bits)) in described.iter().enumerate() {
            assert_eq!(Number(index).len() * 8, *bits, "{name}");
        }
        assert_eq!(Number::from_raw_id(COUNT), None);
    }

    #[test]
    fn registers_have_the_numbers_of_their_description() {
        let (state, described) = (state(), described());
        for (name, value) in [
            ("rax", 0x0102_0304_0506_0708_u64),
            ("rbp", 6),
            ("rsp", 7),
            ("r15", 15),
            ("rip", 0xffff_ffff_8100_0000),
            ("eflags", 0x246),
            ("cs", 0x10),
            ("gs", 0x2b),
            ("fs_base", 40),
            ("gs_base", 41),
            ("efer", 0xd01),
            ("st1", 0x1110_0f0e_0d0c_0b0a),
            ("fctrl", 0x37f),
            ("ftag", 0xfffc),
            ("fiseg", 0x0102_0304),
            ("fioff", 0x0506_0708),
            ("fop", 0x7ff),
            ("xmm2", 0x2726_2524_2322_2120),
            ("mxcsr", 0x1f80),
        ] {
            let index = described.iter().position(|(it, _)| it == name).unwrap();
            let bytes = state.get(Number(index)).unwrap();
            let len = bytes.len().min(8);
            assert_eq!(bytes[..len], value.to_le_bytes()[..len], "{name}");
        }
        let without = VcpuRegisters::default();
        assert_eq!(without.get(Number(ST)), None, "the FPU's aren't known");
    }

    #[test]
    fn a_whole_set_of_registers_goes_to_gdb_and_back() {
        let state = state();
        let mut bytes = Vec::new();
        state.gdb_serialize(|byte| bytes.push(byte.unwrap_or(0)));
        let bits: usize = described().iter().map(|(_, bits)| bits).sum();
        assert_eq!(bytes.len() * 8, bits);
        let mut back = VcpuRegisters::default();
        back.gdb_deserialize(&bytes).unwrap();
        assert_eq!(back.0.registers, state.0.registers);
        assert_eq!(back.gdb_deserialize(&bytes[..50]), Err(()));
        assert_eq!(state.pc(), 0xffff_ffff_8100_0000);
    }

    #[test]
    fn only_general_registers_can_be_set() {
        let mut state = state();
        assert!(state.set(Number(0), &7_u64.to_le_bytes()));
        assert!(state.set(Number(FLAGS), &2_u32.to_le_bytes()));
        assert!(!state.set(Number(0), &[1, 2]));
        assert!(!state.set(Number(18), &[0; 4]));
        let general = state.0.registers.unwrap();
        assert_eq!((general.rax, general.rflags), (7, 2));
    }
}
