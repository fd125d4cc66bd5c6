//! Values of a stopped vCPU.

use guest_state::Registers;

use super::{Base, INTERRUPT_STACK_LEN, Load, Space, Take, Value};

/// Where values begin at a hit.
#[derive(Debug, Clone, Copy)]
pub struct Bases<'a> {
    /// The registers.
    pub registers: &'a Registers,
    /// The registers at the call's entry, at a return.
    pub entry: Option<&'a Registers>,
    /// The address of the current task, if it is known.
    pub task: Option<u64>,
    /// The number of the vCPU.
    pub cpu: u32,
    /// Where the CPU's stack for interrupts has its top word, if that is known.
    pub interrupt_stack: Option<u64>,
}

/// Reads memory at a virtual address; returns false if part of it isn't there.
pub type ReadVirt<'a> = dyn FnMut(u64, &mut [u8]) -> bool + 'a;

/// A page's length: memory is mapped page by page.
const PAGE: u64 = guest_state::x86_64::PAGE_SIZE;

impl Bases<'_> {
    fn of(&self, base: Base) -> Option<u64> {
        Some(match base {
            Base::Register(number) => self.registers.by_number(number),
            Base::EntryRegister(number) => self.entry?.by_number(number),
            Base::Flags => self.registers.rflags,
            Base::InstructionPointer => self.registers.rip,
            Base::Constant(constant) => constant,
            Base::Task => self.task?,
            Base::Cpu => self.cpu.into(),
        })
    }
}

/// Takes a value; `None` where a pointer leads to memory that isn't there.
pub fn take(value: &Value, bases: &Bases<'_>, read: &mut ReadVirt<'_>) -> Option<Vec<u8>> {
    let mut word = bases.of(value.base)?;
    for load in &value.loads {
        let mut bytes = [0; 8];
        let at = address(word, *load)?;
        if !read(at, &mut bytes) {
            return None;
        }
        word = u64::from_le_bytes(bytes);
    }
    match value.take {
        Take::Word => Some(word.to_le_bytes().to_vec()),
        Take::Memory { at, len } => {
            let mut bytes = vec![0; len.into()];
            read(address(word, at)?, &mut bytes).then_some(bytes)
        }
        Take::Text { at, most } => text(address(word, at)?, most.into(), read),
        Take::Stack { at, most } => {
            let at = address(word, at)?;
            Some(stack(at, most.into(), bases.interrupt_stack, read))
        }
    }
}

/// Reads the memory at an address, up to the first page that isn't there or `most` bytes.
fn prefix(at: u64, most: usize, read: &mut ReadVirt<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        let start = bytes.len();
        let from = at.wrapping_add(start as u64);
        let len = ((PAGE - from % PAGE) as usize).min(most - start);
        bytes.resize(start + len, 0);
        if !bytes
            .get_mut(start..)
            .is_some_and(|piece| read(from, piece))
        {
            bytes.truncate(start);
            break;
        }
    }
    bytes
}

/// Reads the pieces of a stack, with the length of the first one before them.
fn stack(at: u64, most: usize, top: Option<u64>, read: &mut ReadVirt<'_>) -> Vec<u8> {
    let to_top = top.map(|top| top.wrapping_sub(at));
    let to_top = to_top.filter(|len| *len <= INTERRUPT_STACK_LEN - 8);
    let to_end = to_top.map(|len| len as usize + 8);
    let to_end = to_end.filter(|len| *len < most);
    let first = prefix(at, to_end.unwrap_or(most), read);
    let left = first.last_chunk().copied().map(u64::from_le_bytes);
    let second = match (to_end, left) {
        (Some(len), Some(left)) if first.len() == len => prefix(left, most - len, read),
        _ => Vec::new(),
    };
    let len = (first.len() as u64).to_le_bytes();
    [&len[..], &first, &second].concat()
}

/// Returns where a pointer leads, if it may be followed.
fn address(word: u64, load: Load) -> Option<u64> {
    let at = word.wrapping_add_signed(load.offset);
    let is_users = at >> 63 == 0;
    (load.space == Space::Any || is_users).then_some(at)
}

/// Reads the text at an address, up to its first NUL or `most` bytes.
fn text(mut at: u64, most: usize, read: &mut ReadVirt<'_>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < most {
        let to_page_end = (PAGE - at % PAGE) as usize;
        let len = to_page_end.min(most - text.len());
        let start = text.len();
        text.resize(start + len, 0);
        let piece = text.get_mut(start..)?;
        if !read(at, piece) {
            return None;
        }
        if let Some(nul) = piece.iter().position(|byte| *byte == 0) {
            text.truncate(start + nul);
            break;
        }
        at = at.wrapping_add(len as u64);
    }
    Some(text)
}
