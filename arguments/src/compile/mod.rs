//! From an argument to the values that a hit takes.

use probe_engine::value::{Base, Load, Space, Take, Value};
use vmprobe_proto::v1;
use vmprobe_spec::argument::{Argument, BaseType, Fetch, Type, Value as Tree};

use crate::error::{Cause, CompileError};
use crate::format::{Format, Style};
use crate::known::{Function, Known, Place};

mod chain;
mod compiler;
mod fetch;
mod given;
mod own;
mod passed;

pub use compiler::STRING_MAX;
use compiler::{Compiler, number, wrong};
use fetch::Fetched;

/// How many bytes a task's name has (include/linux/sched.h, `TASK_COMM_LEN`).
const COMM_LEN: u16 = 16;

/// An argument, ready for a probe.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// Its name.
    pub name: String,
    /// The values that a hit takes for it, in this order. A constant text needs none.
    pub values: Vec<Value>,
    /// How they are shown.
    pub format: Format,
    /// The text of it, without its name.
    definition: String,
}

impl Compiled {
    /// What the protocol tells of it.
    pub fn told(&self) -> v1::Argument {
        v1::Argument {
            name: self.name.clone(),
            definition: self.definition.clone(),
            format: self.format.kind().into(),
            size: self.format.size(),
            elements: self.format.elements(),
        }
    }
}

/// Compiles an argument for a function. `index` is how many values the probe's arguments before it give: one
/// without a name is called `argN`, counted from 1, or by the parameter that it is. `$arg*` gives one for
/// each parameter; all others give one.
///
/// ```
/// use guest_kernel::{Kernel, symbols::Symbols};
/// use vmprobe_arguments::{Function, Known, Place, compile};
/// use vmprobe_spec::argument::{Argument, Fetch, Value};
///
/// fn first_argument(kernel: &Kernel) -> Result<(), vmprobe_arguments::CompileError> {
///     let function = Function { name: "vfs_read", module: "", place: Place::Entry };
///     let value = Value { what: Fetch::Variable("count".into()), span: 0..5 };
///     let argument = Argument { name: None, value, kind: None, span: 0..5 };
///     let compiled = compile(&argument, 0, &function, &Known::from(kernel))?;
///     assert_eq!(compiled[0].name, "count");
///     Ok(())
/// }
/// ```
///
/// # Errors
/// [`CompileError`] with the part of the text that doesn't fit, and why.
pub fn compile(
    argument: &Argument,
    index: usize,
    function: &Function<'_>,
    known: &Known<'_>,
) -> Result<Vec<Compiled>, CompileError> {
    let compiler = Compiler { function, known };
    match &argument.value.what {
        Fetch::AllArguments => compiler.all_arguments(argument, index),
        _ => Ok(vec![compiler.single(argument, index)?]),
    }
}

impl Compiler<'_> {
    fn all_arguments(
        &self,
        argument: &Argument,
        index: usize,
    ) -> Result<Vec<Compiled>, CompileError> {
        let span = &argument.value.span;
        if argument.name.is_some() || argument.kind.is_some() {
            return Err(wrong(&argument.span, Cause::AllArgumentsAlone));
        }
        if self.function.place == Place::Inside {
            return Err(wrong(span, Cause::NotAtEntry));
        }
        let prototype = self.prototype();
        let prototype = prototype.ok_or_else(|| wrong(span, self.no_types()))?;
        let mut all = Vec::new();
        for (number, parameter) in (0..).zip(&prototype.parameters) {
            let chain = self.parameter_chain(&prototype, number, parameter);
            let chain = chain.map_err(|cause| wrong(span, cause))?;
            let (values, format) = self.own(chain).map_err(|cause| wrong(span, cause))?;
            let (name, definition) = match parameter.name {
                "" => (nameless(index + all.len()), format!("$arg{}", number + 1)),
                name => (name.to_owned(), name.to_owned()),
            };
            all.push(Compiled {
                name,
                values,
                format,
                definition,
            });
        }
        Ok(all)
    }

    fn single(&self, argument: &Argument, index: usize) -> Result<Compiled, CompileError> {
        // trace_probe.c, traceprobe_expand_meta_args: without a name of its own, `$argN` is the parameter.
        if let (None, Fetch::Argument(number)) = (&argument.name, &argument.value.what)
            && !is_name_of(argument)
            && let Some(name) = self.parameter_name(*number)
        {
            let name = name.map_err(|cause| wrong(&argument.value.span, cause))?;
            let value = Tree {
                what: Fetch::Variable(name),
                span: argument.value.span.clone(),
            };
            let named = Argument {
                value,
                ..argument.clone()
            };
            let mut compiled = self.single(&named, index)?;
            compiled.definition = definition(argument);
            return Ok(compiled);
        }
        let name = match (&argument.name, &argument.value.what) {
            (Some(name), _) => name.clone(),
            (None, Fetch::Variable(name)) if !is_name_of(argument) => name.clone(),
            _ => nameless(index),
        };
        let fetched = self.fetch_whole(&argument.value)?;
        let kind = argument.kind.as_ref();
        let of_kind = |cause| wrong(kind.map_or(&argument.value.span, |kind| &kind.span), cause);
        let (values, format) = match (fetched, kind) {
            (Fetched::Text(text), kind) => {
                string_only(kind).map_err(of_kind)?;
                (vec![], Format::constant(text))
            }
            (Fetched::Comm, kind) => {
                string_only(kind).map_err(of_kind)?;
                let comm = self.comm();
                let comm = comm.map_err(|cause| wrong(&argument.value.span, cause))?;
                (vec![comm], Format::text(None))
            }
            (Fetched::Chain(chain), Some(kind)) => self.given(chain, kind).map_err(of_kind)?,
            (Fetched::Chain(chain), None) if chain.typed.is_some() => {
                self.own(chain).map_err(of_kind)?
            }
            // trace_probe.h, DEFAULT_FETCH_TYPE
            (Fetched::Chain(chain), None) => number(chain, Style::Hex, 8),
        };
        Ok(Compiled {
            name,
            values,
            format,
            definition: definition(argument),
        })
    }

    /// Returns the name of the parameter that an argument is. `None` where the types don't tell, or the parameter has
    /// no name.
    fn parameter_name(&self, number: u32) -> Option<Result<String, Cause>> {
        if self.function.place == Place::Inside || number == 0 {
            return None;
        }
        let parameters = self.prototype()?.parameters;
        let parameter = parameters.get((number as usize).checked_sub(1)?);
        match parameter {
            _ if parameters.is_empty() => None,
            Some(parameter) if parameter.name.is_empty() => None,
            Some(parameter) => Some(Ok(parameter.name.to_owned())),
            None => Some(Err(Cause::NoParameter {
                function: self.function.name.to_owned(),
                name: format!("$arg{number}"),
                similar: vec![],
                all: parameters.iter().map(|p| p.name.to_owned()).collect(),
            })),
        }
    }

    fn comm(&self) -> Result<Value, Cause> {
        let offset = self.known.variables.comm.ok_or(Cause::NoComm)?;
        let at = Load {
            offset: offset.into(),
            space: Space::Any,
        };
        Ok(Value {
            base: Base::Task,
            loads: vec![],
            take: Take::Text { at, most: COMM_LEN },
        })
    }
}

/// Returns true if it is the name of what the value points to, for which the kernel has a dereference in the
/// parameter's place (`trace_probe.c`, `traceprobe_expand_dentry_args`).
fn is_name_of(argument: &Argument) -> bool {
    let base = argument.kind.as_ref().map(|kind| kind.base);
    matches!(base, Some(BaseType::NameOfDentry | BaseType::NameOfFile))
}

fn nameless(index: usize) -> String {
    format!("arg{}", index.saturating_add(1))
}

/// `trace_probe.c`, `parse_probe_arg_type`: `$comm` and texts are strings.
fn string_only(kind: Option<&Type>) -> Result<(), Cause> {
    match kind {
        None
        | Some(Type {
            base: BaseType::String,
            count: None,
            ..
        }) => Ok(()),
        Some(_) => Err(Cause::StringOnly),
    }
}

/// The text of an argument, without its name.
fn definition(argument: &Argument) -> String {
    let unnamed = Argument {
        name: None,
        ..argument.clone()
    };
    unnamed.to_string()
}
