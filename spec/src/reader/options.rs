//! The words behind the place.

use vmprobe_proto::v1::probe_spec::{Kind, Place};
use vmprobe_proto::v1::{Capture, Condition, ProbeOptions, Relation};

use super::arguments::{Arguments, site};
use super::cursor::{Cursor, WrongAt};
use crate::limits::{CONDITIONS_MAX, STACK_DEFAULT, STACK_MAX};
use crate::{filter, names};

/// Relations as they are written. A relation stands before those that it begins with.
pub const RELATIONS: [(&str, Relation); 7] = [
    ("==", Relation::Equal),
    ("!=", Relation::NotEqual),
    ("<=", Relation::LessOrEqual),
    ("<", Relation::Less),
    (">=", Relation::GreaterOrEqual),
    (">", Relation::Greater),
    ("&", Relation::Common),
];

/// Stands between two conditions.
pub const AND: &str = "&&";

/// Stands for a capture of no register.
pub const NO_REGISTER: &str = "none";

/// Options that are single words.
const WORDS: [&str; 8] = [
    "disabled", "lossless", "nojump", "post", "fault", "rets", "count", "stack",
];

/// Options that have something behind them.
const PREFIXES: [&str; 3] = ["regs=", "if=", "stack="];

/// The word in front of the filter, which goes to the text's end.
pub const FILTER: &str = "if";

/// Returns true if a word behind the place is an option, and no argument.
pub fn is_option(word: &str) -> bool {
    if WORDS.contains(&word) || word == FILTER {
        return true;
    }
    let Some(prefix) = PREFIXES.iter().find(|prefix| word.starts_with(**prefix)) else {
        return false;
    };
    let mut behind = word.chars().skip(prefix.len());
    match behind.next() {
        // What an argument's value begins with.
        Some('$' | '%' | '@' | '+' | '-' | '\\') => false,
        Some(c) if *prefix == "stack=" => c.is_ascii_digit(),
        _ => true,
    }
}

/// What the words behind the place set, except for the kind's own options.
#[derive(Default)]
pub struct Asked<'a> {
    pub enabled: Option<bool>,
    pub options: ProbeOptions,
    pub arguments: Arguments,
    pub stack: u32,
    pub filter: &'a str,
}

impl<'a> Cursor<'a> {
    pub fn options(&mut self, kind: &mut Kind, place: &Place) -> Result<Asked<'a>, WrongAt> {
        let mut asked = Asked::default();
        loop {
            let before = self.at;
            self.skip_spaces();
            if self.rest().is_empty() {
                asked.arguments.check_names()?;
                return Ok(asked);
            }
            if self.at == before {
                return self.junk(place);
            }
            let word = self.word();
            if word == FILTER {
                self.filter(&mut asked)?;
            } else if is_option(word) {
                self.option(kind, &mut asked)?;
            } else {
                asked.arguments.add(self.at, word, site(kind, place))?;
                self.at += word.len();
            }
        }
    }

    /// Reads `if EXPRESSION`, up to the end.
    fn filter(&mut self, asked: &mut Asked<'a>) -> Result<(), WrongAt> {
        self.at += FILTER.len();
        self.skip_spaces();
        let text = self.rest().trim_end();
        if text.is_empty() {
            let wrong = WrongAt::new(self.at, "a filter belongs behind `if`, such as pid == 100");
            return Err(wrong.called("NO_EP_FILTER"));
        }
        filter::parse(text).map_err(|wrong| WrongAt::of_filter(self.at, &wrong))?;
        asked.filter = text;
        self.at = self.text.len();
        Ok(())
    }

    /// Reads `stack=N`.
    fn stack(&mut self) -> Result<u32, WrongAt> {
        self.at += "stack=".len();
        let start = self.at;
        let wanted = self.number("a number of return addresses belongs here, as in stack=16")?;
        match u32::try_from(wanted) {
            Ok(wanted @ 1..=STACK_MAX) if self.word().is_empty() => Ok(wanted),
            Ok(1..=STACK_MAX) => self.wrong("a space belongs behind the number"),
            _ => {
                let reason = format!("an event has 1 to {STACK_MAX} return addresses");
                Err(WrongAt::new(start, reason))
            }
        }
    }

    fn option(&mut self, kind: &mut Kind, asked: &mut Asked<'a>) -> Result<(), WrongAt> {
        let options = &mut asked.options;
        let word = self.word();
        match (word, kind) {
            ("disabled", _) => asked.enabled = Some(false),
            ("lossless", _) => options.lossless = true,
            ("nojump", _) => options.optimize = Some(false),
            ("post", Kind::Instruction(probe)) => probe.post = true,
            ("fault", Kind::Instruction(probe)) => probe.fault = true,
            ("rets", Kind::Return(probe)) => probe.rets = true,
            ("rets", _) => return self.wrong("only a return probe is at a function's `ret`s"),
            ("post" | "fault", _) => {
                return self.wrong(&format!("only an instruction's probe has {word} events"));
            }
            ("count", _) if options.capture() == Capture::Registers => {
                return self.wrong("a hit that is only counted has no registers");
            }
            ("count", _) => options.set_capture(Capture::Count),
            ("stack", _) => asked.stack = STACK_DEFAULT,
            _ if word.starts_with("regs=") => return self.registers(options),
            _ if word.starts_with("if=") => return self.conditions(options),
            _ => {
                asked.stack = self.stack()?;
                return Ok(());
            }
        }
        self.at += word.len();
        Ok(())
    }

    /// Reads `regs=rdi+rsi`.
    fn registers(&mut self, options: &mut ProbeOptions) -> Result<(), WrongAt> {
        match options.capture() {
            Capture::Count => return self.wrong("a hit that is only counted has no registers"),
            Capture::Registers => return self.wrong("regs= occurs twice"),
            Capture::Full | Capture::Unspecified => {}
        }
        self.at += "regs=".len();
        options.set_capture(Capture::Registers);
        if self.word() == NO_REGISTER {
            return self.accept(NO_REGISTER);
        }
        let mut registers = Vec::new();
        loop {
            let start = self.at;
            let name = self.take(|c| c.is_ascii_alphanumeric());
            let Some(register) = names::register(name) else {
                let reason = match names::part(name) {
                    Some(_) => format!("an event has whole registers, not {name}"),
                    None => "a register's name belongs here: rax to r15 or rflags".to_owned(),
                };
                return Err(WrongAt::new(start, reason));
            };
            registers.push(register.into());
            if self.word().is_empty() {
                break;
            }
            if !self.rest().starts_with('+') {
                return self.wrong("more registers follow with `+`, as in regs=rdi+rsi");
            }
            self.at += 1;
        }
        registers.sort_unstable();
        registers.dedup();
        options.registers = registers;
        Ok(())
    }

    /// Reads `if=edi==0xffffff9c&&pid==100`.
    fn conditions(&mut self, options: &mut ProbeOptions) -> Result<(), WrongAt> {
        self.at += "if=".len();
        loop {
            if options.conditions.len() == CONDITIONS_MAX {
                return self.wrong(&format!("a probe has at most {CONDITIONS_MAX} conditions"));
            }
            options.conditions.push(self.condition()?);
            if self.word().is_empty() {
                return Ok(());
            }
            if !self.rest().starts_with(AND) {
                return self.wrong("more conditions follow with `&&`, as in if=rdi==1&&pid==100");
            }
            self.at += AND.len();
        }
    }

    fn condition(&mut self) -> Result<Condition, WrongAt> {
        let start = self.at;
        let name = self.take(|c| c.is_ascii_alphanumeric());
        let Some(operand) = names::operand(name) else {
            let reason = match name {
                "ah" | "bh" | "ch" | "dh" => {
                    format!("{name} can't be compared; use another part")
                }
                _ => {
                    "a register of any width (rdi, edi, dil), cpu, pid or tgid belongs here".into()
                }
            };
            return Err(WrongAt::new(start, reason));
        };
        let (relation, with_sign) = self.relation()?;
        let start = self.at;
        let negative = self.rest().starts_with('-');
        self.at += usize::from(negative);
        let value = self.number("a number such as 0x15, 21 or -2 belongs here")?;
        let constant = if negative {
            value.wrapping_neg()
        } else {
            value
        };
        // The number is too large to be negated: its sign is lost.
        let overflown = negative && value != 0 && constant.cast_signed() >= 0;
        let size = names::operand_size(&operand);
        if overflown || !names::fits(constant, size) {
            let reason = format!("{name} has {} bits: it can't be that", 8 * size);
            return Err(WrongAt::new(start, reason));
        }
        Ok(Condition {
            operand: Some(operand),
            relation: relation.into(),
            constant,
            signed: with_sign || negative,
        })
    }

    /// Reads a relation, and whether it is the signed one: `<s`.
    fn relation(&mut self) -> Result<(Relation, bool), WrongAt> {
        let rest = self.rest();
        let found = RELATIONS.iter().find(|(text, _)| rest.starts_with(text));
        match found {
            Some((text, relation)) if !rest.starts_with(AND) => {
                self.at += text.len();
                let with_sign = self.rest().starts_with('s');
                self.at += usize::from(with_sign);
                Ok((*relation, with_sign))
            }
            _ => self.wrong("one of == != < <= > >= & belongs here"),
        }
    }

    /// Says what is wrong with what stands right behind the place.
    fn junk<T>(&self, place: &Place) -> Result<T, WrongAt> {
        match (self.rest().chars().next(), place) {
            (Some('+'), Place::Address(_)) => {
                self.wrong("an address takes no offset: add it to the address")
            }
            (Some('%'), Place::Address(_)) => {
                self.wrong("for a return probe on an address, write `r 0xADDRESS`")
            }
            (Some('/'), _) => self.wrong("a length is for a watchpoint: `w PLACE/LENGTH`"),
            (Some(other), _) => self.wrong(&format!("`{other}` doesn't belong here")),
            (None, _) => self.wrong("more belongs here"),
        }
    }
}
