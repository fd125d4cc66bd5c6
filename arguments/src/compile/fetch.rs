//! From the tree of an argument to where its value is.

use guest_kernel::btf::{Prototype, Shape, TypeId};
use guest_kernel::symbols::similar_names;
use guest_state::GuestVirtAddr;
use probe_engine::value::{Base, Space};
use vmprobe_spec::argument::{Fetch, Span, Value};

use super::chain::{Chain, Typed};
use super::compiler::{Compiler, wrong};
use super::passed::ARGUMENTS;
use crate::error::{Cause, CompileError};
use crate::known::Place;

const RSP: u8 = 4;
const RAX: u8 = 0;
const REGISTERS: u8 = 16;
/// The kernel's `PARAM_MAX_STACK`: as many words as a kernel stack of 16 KiB has (`kernel/trace/trace_probe.c`).
const WORDS_MAX: u32 = 2048;
/// More levels than any argument's text has room for.
const MAX_DEPTH: usize = 256;

/// What an argument's tree asks for.
pub enum Fetched {
    Chain(Chain),
    /// The name of the current task.
    Comm,
    /// A text that is constant.
    Text(String),
}

impl Compiler<'_> {
    pub fn fetch(&self, value: &Value, depth: usize) -> Result<Fetched, CompileError> {
        match &value.what {
            Fetch::Comm => Ok(Fetched::Comm),
            Fetch::Text(text) => Ok(Fetched::Text(text.clone())),
            _ => self.chain(value, depth).map(Fetched::Chain),
        }
    }

    fn chain(&self, value: &Value, depth: usize) -> Result<Chain, CompileError> {
        let here = |cause| wrong(&value.span, cause);
        let deeper = || {
            depth
                .checked_sub(1)
                .ok_or_else(|| here(Cause::TooManyLoads))
        };
        match &value.what {
            Fetch::Register(number @ 0..REGISTERS) => Ok(Chain::word(Base::Register(*number))),
            Fetch::Register(number) => Err(here(Cause::RegisterNumber { number: *number })),
            Fetch::Flags => Ok(Chain::word(Base::Flags)),
            Fetch::InstructionPointer => Ok(Chain::word(Base::InstructionPointer)),
            Fetch::Address(address) => Ok(Chain::memory(*address)),
            Fetch::Symbol { name, offset } => self.symbol(name, *offset).map_err(here),
            Fetch::Stack => Ok(Chain::word(Base::Register(RSP))),
            Fetch::StackEntry(number @ 0..=WORDS_MAX) => Ok(Chain::stack_entry(*number)),
            Fetch::StackEntry(number) => Err(here(Cause::StackNumber { number: *number })),
            Fetch::Argument(number) => self.argument(*number).map_err(here),
            Fetch::AllArguments => Err(here(Cause::AllArgumentsInside)),
            Fetch::ReturnValue => self.return_value().map_err(here),
            Fetch::Comm | Fetch::Text(_) => Err(here(Cause::NoAddress)),
            Fetch::Number(number) => Ok(Chain::word(Base::Constant(number.cast_unsigned()))),
            Fetch::Memory {
                offset,
                user,
                address,
            } => {
                let space = if *user { Space::User } else { Space::Any };
                let chain = self.chain(address, deeper()?)?;
                chain
                    .dereference(*offset, space)
                    .map_err(|cause| wrong(&address.span, cause))
            }
            Fetch::Variable(name) => {
                let (_, chain) = self.parameter(name).map_err(here)?;
                Ok(chain)
            }
            Fetch::Member { of, arrow, field } => {
                let chain = self.typed_chain(of, deeper()?)?;
                // From behind the structure on: the arrow or dot, and the name.
                let span: Span = of.span.end.min(value.span.end)..value.span.end;
                self.member(chain, *arrow, field)
                    .map_err(|cause| wrong(&span, cause))
            }
        }
    }

    /// Compiles the value in front of an arrow or dot. There `$argN` has the type of the parameter.
    fn typed_chain(&self, of: &Value, depth: usize) -> Result<Chain, CompileError> {
        if let Fetch::Argument(number) = &of.what
            && let Some(prototype) = self.prototype()
            && let Some(index) = number.checked_sub(1)
            && let Some(parameter) = prototype.parameters.get(index as usize)
        {
            let chain = self.parameter_chain(&prototype, index, parameter);
            return chain.map_err(|cause| wrong(&of.span, cause));
        }
        self.chain(of, depth)
    }

    fn symbol(&self, name: &str, offset: i64) -> Result<Chain, Cause> {
        let symbols = self.known.symbols;
        let address = symbols.find(name).map_err(Cause::Symbol)?.address;
        // include/asm-generic/vmlinux.lds.h
        let [start, end] = ["__per_cpu_start", "__per_cpu_end"]
            .map(|name| symbols.by_name(name).next().map(|bound| bound.address));
        if let (Some(start), Some(end)) = (start, end)
            && (start..end).contains(&address)
        {
            return Err(Cause::PerCpu {
                name: name.to_owned(),
            });
        }
        let GuestVirtAddr(address) = address;
        Ok(Chain::memory(address.wrapping_add_signed(offset)))
    }

    /// Compiles `$argN`, of no type.
    fn argument(&self, number: u32) -> Result<Chain, Cause> {
        let index = match number.checked_sub(1) {
            Some(index) if number <= WORDS_MAX => index,
            _ => return Err(Cause::ArgumentNumber { number }),
        };
        let register = ARGUMENTS.get(index as usize).copied();
        match (self.function.place, register) {
            (Place::Inside, _) => Err(Cause::NotAtEntry),
            (Place::Entry, Some(register)) => Ok(Chain::word(Base::Register(register))),
            (Place::Return, Some(register)) => Ok(Chain::word(Base::EntryRegister(register))),
            // At the entry the stack's top is the return address.
            (Place::Entry, None) => {
                let mut chain = Chain::stack_entry(index - 5);
                chain.is_stack_entry = false;
                Ok(chain)
            }
            (Place::Return, None) => Err(Cause::StackArgumentOnReturn { number }),
        }
    }

    fn return_value(&self) -> Result<Chain, Cause> {
        if self.function.place != Place::Return {
            return Err(Cause::ReturnValueElsewhere);
        }
        let chain = Chain::word(Base::Register(RAX));
        let Some(prototype) = self.prototype() else {
            return Ok(chain);
        };
        if self.shape(prototype.returns)? == Shape::Void {
            return Err(Cause::NoReturnValue {
                function: self.function.name.to_owned(),
            });
        }
        self.returned_chain(prototype.returns)
    }

    /// The prototype of the probed function, if the types have it.
    pub fn prototype(&self) -> Option<Prototype<'_>> {
        // The kernel's own types don't tell of modules' functions, which may have the same names.
        let in_module = !self.function.module.is_empty();
        let types = self.known.types;
        let types = types.filter(|types| types.is_module_s() == in_module);
        types?.prototype(self.function.name)
    }

    pub fn no_types(&self) -> Cause {
        let function = match (self.function.module, self.function.name) {
            ("", "") => "this address".to_owned(),
            ("", name) => name.to_owned(),
            (module, name) => {
                let function = format!("{module}:{name}");
                return Cause::NoModuleTypes { function };
            }
        };
        Cause::NoTypes { function }
    }

    /// Finds a parameter by its name, and its number from 0.
    pub fn parameter(&self, name: &str) -> Result<(u32, Chain), Cause> {
        if self.function.place == Place::Inside {
            return Err(Cause::NotAtEntry);
        }
        let prototype = self.prototype().ok_or_else(|| self.no_types())?;
        let found = (0..).zip(&prototype.parameters);
        let mut found = found.filter(|(_, parameter)| parameter.name == name && !name.is_empty());
        let Some((index, parameter)) = found.next() else {
            let names = || {
                let names = prototype.parameters.iter().map(|parameter| parameter.name);
                names.filter(|name| !name.is_empty())
            };
            return Err(Cause::NoParameter {
                function: self.function.name.to_owned(),
                name: name.to_owned(),
                similar: similar_names(name, names()),
                all: names().map(str::to_owned).collect(),
            });
        };
        let chain = self.parameter_chain(&prototype, index, parameter)?;
        Ok((index, chain))
    }

    fn member(&self, chain: Chain, arrow: bool, name: &str) -> Result<Chain, Cause> {
        let types = self.known.types.ok_or(Cause::Untyped)?;
        let typed = chain.typed.ok_or(Cause::Untyped)?;
        let type_text = || types.type_text(typed.id);
        let (chain, of) = match (self.shape(typed.id)?, arrow) {
            (Shape::Pointer(to), true) => (chain.dereference(0, Space::Any)?, to),
            (Shape::Composite(_), false) => (chain, typed.id),
            (shape, true) => {
                return Err(Cause::NotPointer {
                    type_text: type_text(),
                    composite: matches!(shape, Shape::Composite(_)),
                });
            }
            (shape, false) => {
                return Err(Cause::NotStruct {
                    type_text: type_text(),
                    pointer: matches!(shape, Shape::Pointer(_)),
                });
            }
        };
        match self.shape(of)? {
            Shape::Composite(_) => {}
            Shape::Incomplete => {
                return Err(Cause::Incomplete {
                    type_text: types.type_text(of),
                });
            }
            _ => {
                return Err(Cause::NotStruct {
                    type_text: types.type_text(of),
                    pointer: false,
                });
            }
        }
        let field = types.field(of, name).ok_or_else(|| Cause::NoMember {
            type_text: types.type_text(of),
            name: name.to_owned(),
            similar: similar_names(name, types.field_names(of).into_iter()),
        })?;
        if chain.at.is_none() {
            return self.member_in_words(chain, &field);
        }
        let (shift, bits) = match field.bits {
            0 => (0, 0),
            bits => ((field.bit_offset % 8) as u8, bits),
        };
        let id = field.type_id;
        Ok(chain
            .forward(field.bit_offset / 8)?
            .of_type(Typed { id, shift, bits }))
    }

    pub fn shape(&self, id: TypeId) -> Result<Shape, Cause> {
        let shape = self.known.types.and_then(|types| types.shape(id));
        shape.ok_or(Cause::Damaged)
    }

    pub fn type_text(&self, id: TypeId) -> String {
        let types = self.known.types;
        types.map(|types| types.type_text(id)).unwrap_or_default()
    }

    pub fn fetch_whole(&self, value: &Value) -> Result<Fetched, CompileError> {
        self.fetch(value, MAX_DEPTH)
    }
}
