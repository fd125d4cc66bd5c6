//! The tokens of a filter.

use super::Relation;
use super::error::{Reason, Wrong};
use crate::argument::Span;
use crate::piece::Piece;

/// A token, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub what: What<'a>,
    pub span: Span,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    Open,
    Close,
    And,
    Or,
    Not,
    Relation(Relation),
    /// A name, a number or a text without quotes.
    Word(&'a str),
    /// A text in quotes, without them.
    Quoted(&'a str),
    End,
}

/// A sign stands before those that it begins with.
const SIGNS: [(&str, What<'static>); 13] = [
    ("(", What::Open),
    (")", What::Close),
    ("&&", What::And),
    ("||", What::Or),
    ("==", What::Relation(Relation::Equal)),
    ("!=", What::Relation(Relation::NotEqual)),
    ("!", What::Not),
    ("<=", What::Relation(Relation::LessOrEqual)),
    ("<", What::Relation(Relation::Less)),
    (">=", What::Relation(Relation::GreaterOrEqual)),
    (">", What::Relation(Relation::Greater)),
    ("&", What::Relation(Relation::Common)),
    ("~", What::Relation(Relation::Matches)),
];

/// The tokens of a text, the last being [`What::End`].
pub struct Tokens<'a> {
    rest: Piece<'a>,
    next: Token<'a>,
}

impl<'a> Tokens<'a> {
    pub fn new(text: &'a str) -> Result<Self, Wrong> {
        let mut tokens = Self {
            rest: Piece::whole(text),
            next: Token {
                what: What::End,
                span: 0..0,
            },
        };
        tokens.take()?;
        Ok(tokens)
    }

    /// Returns the next token without taking it.
    pub fn peek(&self) -> &Token<'a> {
        &self.next
    }

    /// Takes the next token.
    pub fn take(&mut self) -> Result<Token<'a>, Wrong> {
        let (_, rest) = self.rest.take(char::is_whitespace);
        let (what, behind) = read(rest)?;
        self.rest = behind;
        let next = Token {
            what,
            span: rest.at..behind.at,
        };
        Ok(std::mem::replace(&mut self.next, next))
    }

    /// Takes the next token if it is this one.
    pub fn accept(&mut self, what: What<'_>) -> Result<bool, Wrong> {
        let found = self.next.what == what;
        if found {
            self.take()?;
        }
        Ok(found)
    }
}

/// Reads the token that a text begins with. Returns it with the text behind it.
fn read(text: Piece<'_>) -> Result<(What<'_>, Piece<'_>), Wrong> {
    let Some(first) = text.text.chars().next() else {
        return Ok((What::End, text));
    };
    if let '"' | '\'' = first {
        return match text.skip(1).split(first) {
            Some((inner, behind)) => Ok((What::Quoted(inner.text), behind)),
            None => Err(Reason::OpenQuote.at(text.span())),
        };
    }
    for (sign, what) in SIGNS {
        if let Some(behind) = text.behind(sign) {
            return Ok((what, behind));
        }
    }
    let (word, behind) = text.take(belongs);
    if word.text.is_empty() {
        // A single `=` or `|`.
        return Err(Reason::NoRelation.at(text.at..text.at + first.len_utf8()));
    }
    Ok((What::Word(word.text), behind))
}

/// Returns true for what a word may have: all but signs, quotes and spaces.
fn belongs(c: char) -> bool {
    !c.is_whitespace() && !"()&|!=<>~\"'".contains(c)
}
