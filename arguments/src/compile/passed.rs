//! Where a function's parameters and what it returns are (System V ABI, AMD64 supplement, 3.2.3). The kernel passes
//! nothing in floating-point registers.

use guest_kernel::btf::{Field, Parameter, Prototype, Shape, TypeId};
use probe_engine::value::{Base, Space};

use super::chain::{Chain, Typed};
use super::compiler::Compiler;
use crate::error::Cause;
use crate::known::Place;

/// The registers of the first arguments: rdi, rsi, rdx, rcx, r8, r9 (also arch/x86/include/asm/ptrace.h,
/// `regs_get_kernel_argument`).
pub const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
/// The registers of what is returned: rax, rdx.
const RETURNED: [u8; 2] = [0, 2];
const RSP: u8 = 4;
const WORD: u32 = 8;
/// The longest structure that registers hold.
const IN_REGISTERS: u32 = 16;
/// How deep structures in structures are looked into.
const MAX_DEPTH: usize = 8;

/// How a type is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// In this many registers if as many are left, else on the stack.
    Words(usize),
    /// The same, on the stack at a multiple of 16.
    Wide,
    /// In memory.
    Memory,
}

/// Where a parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passed {
    /// In `count` of [`ARGUMENTS`], from `first` on.
    Registers { first: usize, count: usize },
    /// On the stack, `offset` bytes above the return address.
    Stack { offset: u32 },
}

impl Compiler<'_> {
    /// Returns a parameter, by its number from 0.
    pub fn parameter_chain(
        &self,
        prototype: &Prototype<'_>,
        index: u32,
        parameter: &Parameter<'_>,
    ) -> Result<Chain, Cause> {
        let typed = Typed::new(parameter.type_id);
        let passed = self.passed(prototype, index)?;
        let chain = match (self.function.place, passed) {
            (Place::Inside, _) => return Err(Cause::NotAtEntry),
            (Place::Entry, Passed::Registers { first, count }) => {
                self.in_words(parameter.type_id, first, count, Base::Register)?
            }
            (Place::Return, Passed::Registers { first, count }) => {
                self.in_words(parameter.type_id, first, count, Base::EntryRegister)?
            }
            (Place::Entry, Passed::Stack { offset }) => {
                // The return address is below them.
                let offset = WORD + offset;
                match self.shape(parameter.type_id)? {
                    Shape::Composite(_) => {
                        let stack = Chain::word(Base::Register(RSP));
                        stack.dereference(offset.into(), Space::Any)?
                    }
                    _ => {
                        let mut chain = Chain::stack_entry(offset / WORD);
                        chain.is_stack_entry = false;
                        chain
                    }
                }
            }
            (Place::Return, Passed::Stack { .. }) => {
                let number = index + 1;
                return Err(Cause::StackArgumentOnReturn { number });
            }
        };
        Ok(chain.of_type(typed))
    }

    /// Finds where a function returns a value of this type.
    pub fn returned_chain(&self, of: TypeId) -> Result<Chain, Cause> {
        let chain = match self.class(of)? {
            Class::Words(count) => {
                let words = RETURNED.iter().take(count);
                self.words_chain(of, words.map(|number| Base::Register(*number)).collect())?
            }
            Class::Wide => Chain::word(Base::Register(RETURNED[0])),
            // The address of the memory that the caller has given for it.
            Class::Memory => Chain::word(Base::Register(RETURNED[0])).dereference(0, Space::Any)?,
        };
        Ok(chain.of_type(Typed::new(of)))
    }

    fn in_words(
        &self,
        of: TypeId,
        first: usize,
        count: usize,
        base: impl Fn(u8) -> Base,
    ) -> Result<Chain, Cause> {
        let registers = ARGUMENTS.iter().skip(first).take(count);
        self.words_chain(of, registers.map(|number| base(*number)).collect())
    }

    /// Makes a value in registers: a word, or a structure of several.
    fn words_chain(&self, of: TypeId, words: Vec<Base>) -> Result<Chain, Cause> {
        match (self.shape(of)?, words.first()) {
            (Shape::Composite(_), Some(_)) => Ok(Chain::words(words)),
            (_, Some(first)) => Ok(Chain::word(*first)),
            (_, None) => Err(Cause::Unshowable {
                type_text: self.type_text(of),
            }),
        }
    }

    /// Finds where a parameter is, by its number from 0.
    fn passed(&self, prototype: &Prototype<'_>, index: u32) -> Result<Passed, Cause> {
        let is_memory = |of| Ok::<_, Cause>(self.class(of)? == Class::Memory);
        // The address of a value that is returned in memory is passed in front of all others.
        let hidden = self.shape(prototype.returns)? != Shape::Void && is_memory(prototype.returns)?;
        let mut used = usize::from(hidden);
        let mut stack = 0;
        let mut unknown: Option<&Parameter<'_>> = None;
        let mut found = Passed::Stack { offset: 0 };
        for parameter in prototype.parameters.iter().take(index as usize + 1) {
            let class = self.class(parameter.type_id)?;
            let count = match class {
                Class::Words(count) => count,
                Class::Wide => 2,
                Class::Memory => usize::MAX,
            };
            if count <= ARGUMENTS.len() - used {
                found = Passed::Registers { first: used, count };
                used += count;
                continue;
            }
            // The types don't tell at what multiple a structure has to be.
            if class == Class::Memory {
                unknown = unknown.or(Some(parameter));
            }
            if class == Class::Wide {
                stack = u32::next_multiple_of(stack, 2 * WORD);
            }
            found = Passed::Stack { offset: stack };
            // At most two words: structures in memory are unknown.
            stack += WORD * count.min(2) as u32;
        }
        match (found, unknown) {
            (Passed::Stack { .. }, Some(parameter)) => Err(Cause::ByValue {
                name: parameter.name.to_owned(),
                type_text: self.type_text(parameter.type_id),
            }),
            _ => Ok(found),
        }
    }

    fn class(&self, of: TypeId) -> Result<Class, Cause> {
        Ok(match self.shape(of)? {
            Shape::Pointer(_) => Class::Words(1),
            Shape::Integer(integer) if integer.size <= WORD => Class::Words(1),
            Shape::Integer(_) => Class::Wide,
            Shape::Enumeration { size, .. } if size <= WORD => Class::Words(1),
            Shape::Composite(size)
                if size <= IN_REGISTERS && self.is_of_words(of, MAX_DEPTH)? =>
            {
                Class::Words(size.div_ceil(WORD) as usize)
            }
            _ => Class::Memory,
        })
    }

    /// Returns true for a structure that registers can hold: of numbers of one word at most, each at a multiple of its
    /// size.
    fn is_of_words(&self, of: TypeId, depth: usize) -> Result<bool, Cause> {
        let (Some(depth), Some(types)) = (depth.checked_sub(1), self.known.types) else {
            return Ok(false);
        };
        for field in types.fields(of) {
            let mut element = field.type_id;
            while let Shape::Array { element: of, .. } = self.shape(element)? {
                element = of;
            }
            let is_of_words = match self.shape(element)? {
                Shape::Composite(_) => self.is_of_words(element, depth)?,
                _ if field.bits != 0 => true,
                Shape::Pointer(_) | Shape::Integer(_) | Shape::Enumeration { .. } => {
                    let size = types.type_size(element).unwrap_or(0);
                    (1..=u64::from(WORD)).contains(&size) && field.bit_offset % (size * 8) == 0
                }
                _ => false,
            };
            if !is_of_words {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a member of a structure in registers.
    pub fn member_in_words(&self, mut chain: Chain, field: &Field<'_>) -> Result<Chain, Cause> {
        let id = field.type_id;
        chain.inside += field.bit_offset;
        let (word, shift) = (chain.inside / 64, (chain.inside % 64) as u8);
        let base = chain.words.get(word as usize).copied();
        if let (Shape::Composite(_), Some(base)) = (self.shape(id)?, base) {
            chain.base = base;
            let typed = Typed { id, shift, bits: 0 };
            return Ok(chain.of_type(typed));
        }
        let size = self.known.types.and_then(|types| types.type_size(id));
        let bits = match field.bits {
            0 => size.and_then(|size| size.checked_mul(8)),
            bits => Some(bits.into()),
        };
        let bits = bits.filter(|bits| *bits > 0 && bits + u64::from(shift) <= 64);
        let (Some(bits), Some(base)) = (bits, base) else {
            return Err(Cause::Unshowable {
                type_text: self.type_text(id),
            });
        };
        let is_whole = shift == 0 && field.bits == 0;
        Ok(Chain::word(base).of_type(Typed {
            id,
            shift,
            bits: if is_whole { 0 } else { bits as u8 },
        }))
    }
}
