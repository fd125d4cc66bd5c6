//! From a filter's text to what a hit is judged by.

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
    /// The constant is none that the number can be.
    #[error("`{field}` has {bits} bits: it can't be that number")]
    TooLarge {
        /// The name.
        field: String,
        /// How many bits it has.
        bits: u8,
    },
}

/// What a name in a filter stands for.
enum Field {
    Number(Number, u8),
    Text(Text),
}

/// Compiles a filter for a probe with these arguments.
///
/// # Errors
/// [`FilterError`] with the part of the text that doesn't fit, and why.
pub fn compile_filter(
    filter: &tree::Filter,
    arguments: &[Compiled],
) -> Result<Filter, FilterError> {
    let all = |filters: &[tree::Filter]| {
        let compiled = filters.iter().map(|it| compile_filter(it, arguments));
        compiled.collect::<Result<Vec<_>, _>>()
    };
    Ok(match filter {
        tree::Filter::All(filters) => Filter::All(all(filters)?),
        tree::Filter::Any(filters) => Filter::Any(all(filters)?),
        tree::Filter::Not(filter) => Filter::Not(Box::new(compile_filter(filter, arguments)?)),
        tree::Filter::Test(test) => self::test(test, arguments)?,
    })
}

fn test(test: &tree::Test, arguments: &[Compiled]) -> Result<Filter, FilterError> {
    let name = || test.field.clone();
    let wrong = |span: &Span, cause| FilterError {
        span: span.clone(),
        cause,
    };
    let field = field(&test.field, arguments).map_err(|cause| wrong(&test.field_span, cause))?;
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

/// What a name stands for. An argument's name comes first.
fn field(name: &str, arguments: &[Compiled]) -> Result<Field, FilterCause> {
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
    Ok(match name {
        "comm" => Field::Text(Text::Comm),
        "pid" | "common_pid" => Field::Number(Number::Pid, 32),
        "tgid" => Field::Number(Number::Tgid, 32),
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

/// The engine's form of a relation of numbers.
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

/// Whether a constant is a number of so many bits, with a sign or without one.
fn fits(constant: u64, bits: u8) -> bool {
    let Some(unused) = 64_u32.checked_sub(bits.into()).filter(|unused| *unused > 0) else {
        return true;
    };
    let as_unsigned = constant << unused >> unused == constant;
    let extended = (constant << unused).cast_signed() >> unused;
    as_unsigned || extended.cast_unsigned() == constant
}
