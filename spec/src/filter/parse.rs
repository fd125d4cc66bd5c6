//! The reader of filters, by recursive descent:
//!
//! ```text
//! any  = all { "||" all }
//! all  = term { "&&" term }
//! term = "!" term | "(" any ")" | NAME RELATION CONSTANT
//! ```

use super::error::{Reason, Wrong};
use super::tokens::{Token, Tokens, What};
use super::{Constant, Filter, Relation, Test};
use crate::limits::{FILTER_DEPTH_MAX, FILTER_MAX, FILTER_TESTS_MAX};
use crate::piece::{is_identifier, number, signed};

/// Names that the kernel has, and the names here for the same.
const ALIASES: [(&str, &str); 4] = [
    ("common_pid", "pid"),
    ("common_tgid", "tgid"),
    ("COMM", "comm"),
    ("CPU", "cpu"),
];

/// Reads a filter, such as `dfd == -100 && comm == "sh"`. `&&` binds more tightly than `||`.
///
/// Texts need quotes only where they aren't one word, or begin like a number: `comm == sh`. The kernel's `common_pid`,
/// `common_tgid`, `COMM` and `CPU` become `pid`, `tgid`, `comm` and `cpu`. The caller has to check whether a name is
/// known.
///
/// ```
/// let filter = vmprobe_spec::filter::parse("common_pid != 0 && comm == sh")?;
/// assert_eq!(filter.to_string(), "pid != 0 && comm == \"sh\"");
/// # Ok::<(), vmprobe_spec::filter::Wrong>(())
/// ```
///
/// # Errors
/// [`Wrong`], with its place.
pub fn parse(text: &str) -> Result<Filter, Wrong> {
    if text.len() > FILTER_MAX {
        return Err(Reason::TooLong.at(0..text.len()));
    }
    let mut reader = Reader {
        tokens: Tokens::new(text)?,
        tests: 0,
    };
    let filter = reader.any(0)?;
    let Token { what, span } = reader.tokens.take()?;
    let reason = match what {
        What::End => return Ok(filter),
        What::Close => Reason::CloseParenthesis,
        _ => Reason::NoJoin,
    };
    Err(reason.at(span))
}

struct Reader<'a> {
    tokens: Tokens<'a>,
    /// How many comparisons there are so far.
    tests: usize,
}

impl Reader<'_> {
    fn any(&mut self, depth: usize) -> Result<Filter, Wrong> {
        let first = self.all(depth)?;
        self.joined(first, What::Or, Filter::Any, |reader| reader.all(depth))
    }

    fn all(&mut self, depth: usize) -> Result<Filter, Wrong> {
        let first = self.term(depth)?;
        self.joined(first, What::And, Filter::All, |reader| reader.term(depth))
    }

    /// Reads one part, or several that are joined by a sign.
    fn joined(
        &mut self,
        first: Filter,
        sign: What<'_>,
        join: fn(Vec<Filter>) -> Filter,
        next: impl Fn(&mut Self) -> Result<Filter, Wrong>,
    ) -> Result<Filter, Wrong> {
        if self.tokens.peek().what != sign {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.tokens.accept(sign)? {
            parts.push(next(self)?);
        }
        Ok(join(parts))
    }

    fn term(&mut self, depth: usize) -> Result<Filter, Wrong> {
        let Token { what, span } = self.tokens.take()?;
        if let What::Not | What::Open = what
            && depth == FILTER_DEPTH_MAX
        {
            return Err(Reason::TooDeep.at(span));
        }
        match what {
            What::Not => Ok(Filter::Not(Box::new(self.term(depth + 1)?))),
            What::Open => {
                let inner = self.any(depth + 1)?;
                if self.tokens.accept(What::Close)? {
                    return Ok(inner);
                }
                let reason = match self.tokens.peek().what {
                    What::End => Reason::OpenParenthesis.at(span),
                    _ => Reason::NoJoin.at(self.tokens.peek().span.clone()),
                };
                Err(reason)
            }
            What::Word(name) => self.test(name, span),
            What::Quoted(_) | What::Relation(_) => Err(Reason::BadField.at(span)),
            What::Close | What::And | What::Or | What::End => Err(Reason::NoTest.at(span)),
        }
    }

    fn test(&mut self, name: &str, field_span: std::ops::Range<usize>) -> Result<Filter, Wrong> {
        if self.tests == FILTER_TESTS_MAX {
            return Err(Reason::TooManyTests.at(field_span));
        }
        self.tests += 1;
        if !is_identifier(name) {
            let suffix = name.split_once('.').is_some_and(|(name, suffix)| {
                is_identifier(name) && matches!(suffix, "ustring" | "function")
            });
            let reason = if suffix {
                Reason::Suffix
            } else {
                Reason::BadField
            };
            return Err(reason.at(field_span));
        }
        let alias = ALIASES.iter().find(|(known, _)| *known == name);
        let field = alias.map_or(name, |(_, field)| field).to_owned();
        let Token { what, span } = self.tokens.take()?;
        let What::Relation(relation) = what else {
            return Err(Reason::NoRelation.at(span));
        };
        let Token {
            what,
            span: constant_span,
        } = self.tokens.take()?;
        let constant = constant(what).map_err(|reason| reason.at(constant_span.clone()))?;
        let reason = match (&constant, relation) {
            (Constant::Number { .. }, Relation::Matches) => Reason::PatternIsNumber,
            (
                Constant::Text(_),
                Relation::Less
                | Relation::LessOrEqual
                | Relation::Greater
                | Relation::GreaterOrEqual
                | Relation::Common,
            ) => Reason::RelationOfText,
            _ => {
                return Ok(Filter::Test(Test {
                    field,
                    field_span,
                    relation,
                    constant,
                    constant_span,
                }));
            }
        };
        Err(reason.at(span))
    }
}

fn constant(what: What<'_>) -> Result<Constant, Reason> {
    let word = match what {
        What::Quoted(text) => return Ok(Constant::Text(text.to_owned())),
        What::Word(word) => word,
        _ => return Err(Reason::NoConstant),
    };
    if word.starts_with("CPUS{") {
        return Err(Reason::CpuSet);
    }
    let digits = word.strip_prefix('-').unwrap_or(word);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(Constant::Text(word.to_owned()));
    }
    let number = match word.starts_with('-') {
        true => signed(word).map(|number| (number.cast_unsigned(), number != 0)),
        false => number(word).map(|number| (number, false)),
    };
    let (bits, negative) = number.ok_or(Reason::BadNumber)?;
    Ok(Constant::Number { bits, negative })
}
