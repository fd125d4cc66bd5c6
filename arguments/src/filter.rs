//! From a filter's text to the engine's form of it.

use guest_kernel::percpu::Variables;
use probe_engine::condition::Relation;
use probe_engine::filter::{Filter, Number, Pattern, Text};
use thiserror::Error;
use vmprobe_spec::argument::Span;
use vmprobe_spec::filter as tree;
use vmprobe_spec::filter::Constant;

use crate::compile::Compiled;

/// Why a filter can't be compiled, and where in its text that is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{cause}")]
pub struct FilterError {
    /// The part of the text.
    pub span: Span,
    /// The reason.
    pub cause: FilterCause,
}

/// The reason why a filter can't be compiled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FilterCause {
    /// No argument has the name.
    #[error("the probe has no argument `{field}`; it has {known}")]
    Unknown {
        /// The name.
        field: String,
        /// The names that there are.
        known: String,
    },
    /// A text is compared as a number is.
    #[error("`{field}` is a text: compare it with a text in quotes, by ==, != or ~")]
    IsText {
        /// The name.
        field: String,
    },
    /// A number is compared as a text is.
    #[error("`{field}` is a number: compare it with a number, by ==, !=, <, <=, >, >= or &")]
    IsNumber {
        /// The name.
        field: String,
    },
    /// Several values, or a whole structure.
    #[error("`{field}` is neither a number nor a text, so it can't be compared")]
    IsNeither {
        /// The name.
        field: String,
    },
    /// The number can't have the constant's value.
    #[error("`{field}` has {bits} bits: it can't be that number")]
    TooLarge {
        /// The name.
        field: String,
        /// How many bits it has.
        bits: u8,
    },
    /// Something of a task, in a kernel without types.
    #[error(
        "where a task has its `{field}` isn't known: the kernel was built without BTF (CONFIG_DEBUG_INFO_BTF)"
    )]
    NoTask {
        /// The name.
        field: String,
    },
}

/// What a name in a filter stands for.
enum Field {
    Number(Number, u8),
    Text(Text),
}

/// Compiles a filter for a probe with these arguments, of a kernel with these variables.
///
/// # Errors
/// [`FilterError`] with the part of the text that doesn't fit, and why.
pub fn compile_filter(
    filter: &tree::Filter,
    arguments: &[Compiled],
    variables: &Variables,
) -> Result<Filter, FilterError> {
    let one = |filter: &tree::Filter| compile_filter(filter, arguments, variables);
    let all = |filters: &[tree::Filter]| {
        let compiled = filters.iter().map(one);
        compiled.collect::<Result<Vec<_>, _>>()
    };
    Ok(match filter {
        tree::Filter::All(filters) => Filter::All(all(filters)?),
        tree::Filter::Any(filters) => Filter::Any(all(filters)?),
        tree::Filter::Not(filter) => Filter::Not(Box::new(one(filter)?)),
        tree::Filter::Test(test) => self::test(test, arguments, variables)?,
    })
}

fn test(
    test: &tree::Test,
    arguments: &[Compiled],
    variables: &Variables,
) -> Result<Filter, FilterError> {
    let name = || test.field.clone();
    let wrong = |span: &Span, cause| FilterError {
        span: span.clone(),
        cause,
    };
    let field = field(&test.field, arguments, variables);
    let field = field.map_err(|cause| wrong(&test.field_span, cause))?;
    match (field, &test.constant) {
        (Field::Number(of, bits), Constant::Number { bits: constant, .. }) => {
            let Some(relation) = relation(test.relation) else {
                let cause = FilterCause::IsNumber { field: name() };
                return Err(wrong(&test.field_span, cause));
            };
            if !fits(*constant, bits) {
                let cause = FilterCause::TooLarge {
                    field: name(),
                    bits,
                };
                return Err(wrong(&test.constant_span, cause));
            }
            Ok(Filter::Number {
                of,
                relation,
                constant: *constant,
            })
        }
        (Field::Text(of), Constant::Text(text)) => {
            let bytes = text.clone().into_bytes();
            let is = |pattern| Filter::Text { of, pattern };
            match test.relation {
                tree::Relation::Equal => Ok(is(Pattern::Same(bytes))),
                tree::Relation::NotEqual => Ok(Filter::Not(Box::new(is(Pattern::Same(bytes))))),
                tree::Relation::Matches => Ok(is(Pattern::Glob(bytes))),
                _ => Err(wrong(
                    &test.field_span,
                    FilterCause::IsText { field: name() },
                )),
            }
        }
        (Field::Number(..), Constant::Text(_)) => {
            let cause = FilterCause::IsNumber { field: name() };
            Err(wrong(&test.constant_span, cause))
        }
        (Field::Text(_), Constant::Number { .. }) => {
            let cause = FilterCause::IsText { field: name() };
            Err(wrong(&test.constant_span, cause))
        }
    }
}

/// Finds what a name stands for. An argument's name comes first.
fn field(name: &str, arguments: &[Compiled], variables: &Variables) -> Result<Field, FilterCause> {
    let mut index = 0;
    for argument in arguments {
        if argument.name == name {
            let of_text = || argument.format.is_single_text() && argument.values.len() == 1;
            return match argument.format.bits() {
                Some((shift, width, signed)) => {
                    let number = Number::Value {
                        index,
                        shift,
                        width,
                        signed,
                    };
                    Ok(Field::Number(number, width))
                }
                None if of_text() => Ok(Field::Text(Text::Value(index))),
                None => Err(FilterCause::IsNeither {
                    field: name.to_owned(),
                }),
            };
        }
        index += argument.values.len();
    }
    let of_task = |offset: Option<u32>, field| match offset {
        Some(_) => Ok(field),
        None => Err(FilterCause::NoTask {
            field: name.to_owned(),
        }),
    };
    Ok(match name {
        "comm" => of_task(variables.comm, Field::Text(Text::Comm))?,
        "pid" | "common_pid" => of_task(variables.pid, Field::Number(Number::Pid, 32))?,
        "tgid" => of_task(variables.tgid, Field::Number(Number::Tgid, 32))?,
        "cpu" | "common_cpu" => Field::Number(Number::Cpu, 32),
        _ => {
            let own = arguments.iter().map(|argument| argument.name.as_str());
            let known: Vec<&str> = own.chain(["comm", "pid", "tgid", "cpu"]).collect();
            return Err(FilterCause::Unknown {
                field: name.to_owned(),
                known: known.join(", "),
            });
        }
    })
}

/// Returns the engine's form of a relation of numbers.
fn relation(relation: tree::Relation) -> Option<Relation> {
    Some(match relation {
        tree::Relation::Equal => Relation::Equal,
        tree::Relation::NotEqual => Relation::NotEqual,
        tree::Relation::Less => Relation::Less,
        tree::Relation::LessOrEqual => Relation::LessOrEqual,
        tree::Relation::Greater => Relation::Greater,
        tree::Relation::GreaterOrEqual => Relation::GreaterOrEqual,
        tree::Relation::Common => Relation::Common,
        tree::Relation::Matches => return None,
    })
}

/// Returns true if a constant is a number of `bits` bits, with a sign or without one.
fn fits(constant: u64, bits: u8) -> bool {
    let Some(unused) = 64_u32.checked_sub(bits.into()).filter(|unused| *unused > 0) else {
        return true;
    };
    let as_unsigned = constant << unused >> unused == constant;
    let extended = (constant << unused).cast_signed() >> unused;
    as_unsigned || extended.cast_unsigned() == constant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_without_types_doesn_t_tell_of_a_task_is_no_field() {
        let known = Variables {
            comm: Some(0x500),
            pid: Some(0x300),
            tgid: Some(0x304),
            ..Variables::default()
        };
        for (text, field) in [
            ("comm == \"sh\"", "comm"),
            ("cpu == 1 && pid == 7", "pid"),
            ("!(tgid == 7)", "tgid"),
        ] {
            let filter = tree::parse(text).unwrap();
            assert!(compile_filter(&filter, &[], &known).is_ok(), "{text}");
            let error = compile_filter(&filter, &[], &Variables::default()).unwrap_err();
            let cause = FilterCause::NoTask {
                field: field.to_owned(),
            };
            assert_eq!(error.cause, cause, "{text}");
        }
        let filter = tree::parse("cpu == 1").unwrap();
        assert!(compile_filter(&filter, &[], &Variables::default()).is_ok());
    }
}
