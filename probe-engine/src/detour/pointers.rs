//! Following pointers in a detour, without a fault whatever their values.
//!
//! A detour may take no page fault: the kernel doesn't know its code. So a pointer is never dereferenced. It is
//! translated, by the guest's page tables, and what it leads to is read where the arena maps all of the guest's
//! RAM. Each physical address, of a table or of the memory itself, is compared with the RAM's ranges before it
//! is read. A table that is freed or overwritten meanwhile gives a wrong value at worst.
//!
//! Sources: Intel SDM vol. 3A, 4.5 (translation, entries, canonical addresses).

use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, qword_ptr, registers as reg,
};

use guest_state::x86_64::PAGE_SIZE;
use guest_state::x86_64::page_entry::{LARGE, PRESENT};

use super::environment::{Environment, Pointers, Root};
use super::error::DetourError;
use super::lead_back::LeadBack;
use crate::value::{Take, Value};

/// Bits of an entry that have a physical address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bits of an address within a page of 4 KiB.
const IN_PAGE: i32 = PAGE_SIZE as i32 - 1;
/// The bits of a table's index, as the offset of its entry.
const INDEX: i32 = 511 << 3;
/// The lowest bit of an address that is part of the index of a table of level 4.
const LEVEL_4: u32 = 39;

/// Bytes of a word.
const WORD: u64 = 8;

/// Where the next byte of a value goes, while it is copied.
pub(super) const TO: AsmRegister64 = reg::r11;
/// Where the value's first word is: its length.
pub(super) const VALUE: AsmRegister64 = reg::r9;

/// The routines of a detour that follow pointers. They are behind the rest of its code.
pub(super) struct Routines {
    /// What the routines need, if any of them is used.
    pointers: Option<Pointers>,
    lead_back: Option<LeadBack>,
    translate: CodeLabel,
    pub(super) word: CodeLabel,
    pub(super) copy: CodeLabel,
    pub(super) more: CodeLabel,
    pub(super) text: CodeLabel,
}

impl Routines {
    /// The routines of a detour that takes these values.
    ///
    /// # Errors
    /// A value takes following a pointer, which can't be done in this guest.
    pub(super) fn new<'v>(
        a: &mut CodeAssembler,
        values: impl Iterator<Item = &'v Value> + Clone,
        environment: &Environment,
    ) -> Result<Self, DetourError> {
        let is_stack = |value: &Value| matches!(value.take, Take::Stack { .. });
        let following = environment.following;
        let has_stack = values.clone().any(is_stack);
        let mut in_memory = values.filter(|value| !value.is_in_registers());
        let pointers = match in_memory.next() {
            Some(_) => Some(environment.pointers.ok_or(DetourError::Unknown {
                name: "direct mapping, or a mapping of its RAM,",
            })?),
            None => None,
        };
        Ok(Self {
            pointers,
            lead_back: following
                .filter(|_| has_stack)
                .map(|following| LeadBack::new(a, following)),
            translate: a.create_label(),
            word: a.create_label(),
            copy: a.create_label(),
            more: a.create_label(),
            text: a.create_label(),
        })
    }

    /// The routine that puts the original return addresses into a copy of the stack, if others may be in their places.
    pub(super) fn lead_back(&self) -> Option<CodeLabel> {
        self.lead_back.as_ref().map(LeadBack::label)
    }

    /// Writes the routines, if any is used. All but the one for return addresses take an address in RDI, and end with
    /// the carry flag set if it leads nowhere. They use RAX, RCX, RSI, RDI, R8, R10 and R11, the last three also RDX.
    ///
    /// - `word`: the 8 bytes there, in RAX.
    /// - `copy`: copies RDX bytes, at least one, to [`VALUE`] + 8. What can be read before the first page that isn't
    ///   there is copied all the same; [`TO`] is behind it.
    /// - `more`: the same, to [`TO`].
    /// - `text`: copies up to the first NUL, and RDX bytes at most, at least one; RAX is how many.
    pub(super) fn write(mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let Some(pointers) = self.pointers.take() else {
            return Ok(());
        };
        self.write_translate(a, &pointers)?;
        self.write_word(a, &pointers)?;
        self.write_copy(a)?;
        self.write_text(a)?;
        self.lead_back
            .map_or(Ok(()), |routine| routine.write(a, TO, VALUE))
    }

    /// Writes the routine that translates the address in RDI: then RSI is where it can be read, and RCX how many bytes
    /// of its page are left there. Uses RAX, R8 and R10.
    fn write_translate(
        &mut self,
        a: &mut CodeAssembler,
        pointers: &Pointers,
    ) -> Result<(), IcedError> {
        let [mut walk, mut walked, mut nowhere] = std::array::from_fn(|_| a.create_label());
        a.set_label(&mut self.translate)?;
        a.mov(reg::eax, reg::edi)?;
        a.and(reg::eax, IN_PAGE)?;
        a.mov(reg::ecx, PAGE_SIZE as u32)?;
        a.sub(reg::ecx, reg::eax)?;
        a.mov(reg::rax, pointers.direct_map)?;
        a.mov(reg::rsi, reg::rdi)?;
        a.sub(reg::rsi, reg::rax)?;
        is_ram(a, pointers, walk)?;
        a.mov(reg::rax, pointers.window)?;
        a.add(reg::rsi, reg::rax)?;
        // An addition below the window's end doesn't carry.
        a.ret()?;

        a.set_label(&mut walk)?;
        let above = LEVEL_4 + 9 * u32::from(pointers.levels.saturating_sub(4)) + 9;
        a.mov(reg::rax, reg::rdi)?;
        a.shl(reg::rax, 64 - above)?;
        a.sar(reg::rax, 64 - above)?;
        a.cmp(reg::rax, reg::rdi)?;
        a.jne(nowhere)?;
        match pointers.root {
            Root::Cr3 => a.mov(reg::rsi, reg::cr3)?,
            Root::Fixed(root) => a.mov(reg::rsi, root)?,
        }
        a.mov(reg::r10, ADDRESS)?;
        a.and(reg::rsi, reg::r10)?;
        let top = above - 9;
        for shift in (12..=top).rev().step_by(9) {
            a.mov(reg::rax, reg::rdi)?;
            a.shr(reg::rax, shift - 3)?;
            a.and(reg::eax, INDEX)?;
            a.add(reg::rsi, reg::rax)?;
            is_ram(a, pointers, nowhere)?;
            a.mov(reg::rax, pointers.window)?;
            a.mov(reg::rsi, qword_ptr(reg::rsi + reg::rax))?;
            a.test(reg::sil, PRESENT as i32)?;
            a.je(nowhere)?;
            if shift == 30 || shift == 21 {
                let mut table = a.create_label();
                a.test(reg::sil, LARGE as i32)?;
                a.je(table)?;
                let inside = (1_u64 << shift) - 1;
                a.and(reg::rsi, reg::r10)?;
                a.mov(reg::rax, !inside)?;
                a.and(reg::rsi, reg::rax)?;
                a.mov(reg::eax, reg::edi)?;
                a.and(reg::eax, (inside & !(PAGE_SIZE - 1)) as i32)?;
                a.or(reg::rsi, reg::rax)?;
                a.jmp(walked)?;
                a.set_label(&mut table)?;
            }
            a.and(reg::rsi, reg::r10)?;
        }
        a.set_label(&mut walked)?;
        a.mov(reg::eax, reg::edi)?;
        a.and(reg::eax, IN_PAGE)?;
        a.or(reg::rsi, reg::rax)?;
        is_ram(a, pointers, nowhere)?;
        a.mov(reg::rax, pointers.window)?;
        a.add(reg::rsi, reg::rax)?;
        a.ret()?;
        a.set_label(&mut nowhere)?;
        a.stc()?;
        a.ret()
    }

    /// Writes the routine that reads a word. Most pointers of a kernel's structures are into the direct mapping of its
    /// RAM, and their words are whole there: for these, a comparison with the bounds is enough (BN17).
    fn write_word(&mut self, a: &mut CodeAssembler, pointers: &Pointers) -> Result<(), IcedError> {
        let [mut split, mut next, mut out] = std::array::from_fn(|_| a.create_label());
        a.set_label(&mut self.word)?;
        for ram in pointers.ram.iter().filter(|ram| ram.len != 0) {
            let mut elsewhere = a.create_label();
            a.mov(reg::r8, pointers.direct_map.wrapping_add(ram.start.0))?;
            a.mov(reg::rax, reg::rdi)?;
            a.sub(reg::rax, reg::r8)?;
            a.mov(reg::r8, ram.len.saturating_sub(WORD - 1))?;
            a.cmp(reg::rax, reg::r8)?;
            a.jae(elsewhere)?;
            a.mov(reg::r8, pointers.window.wrapping_add(ram.start.0))?;
            // An addition below the window's end doesn't carry.
            a.add(reg::rax, reg::r8)?;
            a.mov(reg::rax, qword_ptr(reg::rax))?;
            a.ret()?;
            a.set_label(&mut elsewhere)?;
        }
        a.call(self.translate)?;
        a.jb(out)?;
        a.cmp(reg::ecx, 8)?;
        a.jb(split)?;
        // The comparison has cleared the carry flag.
        a.mov(reg::rax, qword_ptr(reg::rsi))?;
        a.set_label(&mut out)?;
        a.ret()?;
        // The rest is on another page, which may be anywhere: the bytes are gathered on the stack.
        a.set_label(&mut split)?;
        a.push(reg::rdx)?;
        a.push(reg::rax)?;
        a.mov(reg::edx, 8)?;
        a.mov(TO, reg::rsp)?;
        a.call(next)?;
        a.pop(reg::rax)?;
        a.pop(reg::rdx)?;
        a.ret()?;
        a.set_label(&mut next)?;
        a.zero_bytes()?;
        self.copy_pages(a)
    }

    fn write_copy(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.set_label(&mut self.copy)?;
        a.lea(TO, qword_ptr(VALUE + 8))?;
        a.set_label(&mut self.more)?;
        a.zero_bytes()?;
        self.copy_pages(a)
    }

    /// Copies RDX bytes to [`TO`], page by page, and returns.
    fn copy_pages(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let [mut page, mut words, mut bytes, mut end, mut out] =
            std::array::from_fn(|_| a.create_label());
        a.set_label(&mut page)?;
        a.call(self.translate)?;
        a.jb(out)?;
        this_page(a)?;
        a.set_label(&mut words)?;
        a.sub(reg::ecx, 8)?;
        a.jb(bytes)?;
        a.mov(reg::rax, qword_ptr(reg::rsi))?;
        a.mov(qword_ptr(TO), reg::rax)?;
        a.add(reg::rsi, 8)?;
        a.add(TO, 8)?;
        a.jmp(words)?;
        a.set_label(&mut bytes)?;
        a.add(reg::ecx, 8)?;
        a.je(end)?;
        let mut byte = a.create_label();
        a.set_label(&mut byte)?;
        one_byte(a)?;
        a.dec(reg::ecx)?;
        a.jne(byte)?;
        a.set_label(&mut end)?;
        a.test(reg::rdx, reg::rdx)?;
        a.jne(page)?;
        a.set_label(&mut out)?;
        a.ret()
    }

    fn write_text(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let [
            mut page,
            mut words,
            mut bytes,
            mut byte,
            mut end,
            mut done,
            mut out,
        ] = std::array::from_fn(|_| a.create_label());
        a.set_label(&mut self.text)?;
        a.lea(TO, qword_ptr(VALUE + 8))?;
        a.set_label(&mut page)?;
        a.call(self.translate)?;
        a.jb(out)?;
        this_page(a)?;
        a.mov(reg::r8, 0x0101_0101_0101_0101_u64)?;
        a.mov(reg::r10, 0x8080_8080_8080_8080_u64)?;
        a.set_label(&mut words)?;
        a.sub(reg::ecx, 8)?;
        a.jb(bytes)?;
        // A word has a NUL if a subtraction of one from each byte sets a byte's top bit that it did not have.
        a.push(reg::rdx)?;
        a.mov(reg::rax, qword_ptr(reg::rsi))?;
        a.mov(reg::rdx, reg::rax)?;
        a.sub(reg::rdx, reg::r8)?;
        a.mov(qword_ptr(TO), reg::rax)?;
        a.not(reg::rax)?;
        a.and(reg::rdx, reg::rax)?;
        a.test(reg::rdx, reg::r10)?;
        a.pop(reg::rdx)?;
        a.jne(bytes)?;
        a.add(reg::rsi, 8)?;
        a.add(TO, 8)?;
        a.jmp(words)?;
        a.set_label(&mut bytes)?;
        a.add(reg::ecx, 8)?;
        a.je(end)?;
        a.set_label(&mut byte)?;
        a.cmp(byte_ptr(reg::rsi), 0)?;
        a.je(done)?;
        one_byte(a)?;
        a.dec(reg::ecx)?;
        a.jne(byte)?;
        a.set_label(&mut end)?;
        a.test(reg::rdx, reg::rdx)?;
        a.jne(page)?;
        a.set_label(&mut done)?;
        a.lea(reg::rax, qword_ptr(TO - 8))?;
        // RAX is no less than [`VALUE`], so that this clears the carry flag.
        a.sub(reg::rax, VALUE)?;
        a.set_label(&mut out)?;
        a.ret()
    }
}

/// Makes RCX the bytes to copy from this page: what is left of the page (RCX) or of the copy (RDX). RDI and RDX go on
/// behind them.
fn this_page(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.cmp(reg::rcx, reg::rdx)?;
    a.cmova(reg::rcx, reg::rdx)?;
    a.add(reg::rdi, reg::rcx)?;
    a.sub(reg::rdx, reg::rcx)
}

fn one_byte(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(reg::al, byte_ptr(reg::rsi))?;
    a.mov(byte_ptr(TO), reg::al)?;
    a.inc(reg::rsi)?;
    a.inc(TO)
}

/// Goes to `otherwise` unless the physical address in RSI is in RAM. Uses RAX and R8.
fn is_ram(
    a: &mut CodeAssembler,
    pointers: &Pointers,
    otherwise: CodeLabel,
) -> Result<(), IcedError> {
    let [low, high] = pointers.ram;
    let is_in = |a: &mut CodeAssembler, start: u64, len: u64| {
        a.mov(reg::r8, start)?;
        a.mov(reg::rax, reg::rsi)?;
        a.sub(reg::rax, reg::r8)?;
        a.mov(reg::r8, len)?;
        a.cmp(reg::rax, reg::r8)
    };
    is_in(a, low.start.0, low.len)?;
    if high.len == 0 {
        return a.jae(otherwise);
    }
    let mut yes = a.create_label();
    a.jb(yes)?;
    is_in(a, high.start.0, high.len)?;
    a.jae(otherwise)?;
    a.set_label(&mut yes)?;
    a.zero_bytes()
}
