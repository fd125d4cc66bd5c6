//! What the records of a probe look like, and the `format` text that describes them.

use std::collections::HashSet;
use std::fmt::Write as _;

use vmprobe_proto::v1::{Argument, ArgumentFormat, Value};

use super::page::DATA_MAX;
use crate::text::identifier;
use crate::values::{self, Meaning, meaning};

/// Arguments of an event that have a field; the protocol has no more.
const ARGUMENTS_MAX: usize = 128;
/// Bytes that fields may take; the rest is for strings.
const FIXED_MAX: usize = 2048;

/// What every record begins with (`struct trace_entry` in `include/linux/trace_events.h`).
pub(super) const COMMON: &str = "\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
";
const COMMON_SIZE: usize = 8;

/// How an event's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// Each in the type of its argument.
    Typed,
    /// This many values, each as the text that the kernel would print. It takes values that don't fit a type, such as
    /// `(fault)`.
    Text(usize),
}

impl Form {
    /// Returns the form that can hold all of an event's values.
    pub(super) fn of(arguments: &[Argument], values: &[Value]) -> Self {
        let fits = arguments.len() == values.len()
            && arguments.len() <= ARGUMENTS_MAX
            && arguments
                .iter()
                .zip(values)
                .all(|(argument, value)| fits(argument, value))
            && arguments.iter().map(size).sum::<usize>() <= FIXED_MAX;
        if fits {
            Self::Typed
        } else {
            Self::Text(values.len().min(ARGUMENTS_MAX))
        }
    }
}

/// Returns true if a value is of the type that its argument has in a record.
fn fits(argument: &Argument, value: &Value) -> bool {
    let number = |value| {
        matches!(
            meaning(Some(argument), value),
            Meaning::Unsigned(_) | Meaning::Signed(_) | Meaning::Hex(_)
        )
    };
    match (argument.elements, is_text(argument)) {
        (0, true) => matches!(
            meaning(Some(argument), value),
            Meaning::String(_) | Meaning::Text(_) | Meaning::Char(_)
        ),
        (0, false) => has_size(argument) && number(value),
        (_, true) => false,
        (elements, false) => match meaning(Some(argument), value) {
            Meaning::List(values) => {
                has_size(argument)
                    && usize::try_from(elements) == Ok(values.len())
                    && values.iter().all(number)
            }
            _ => false,
        },
    }
}

/// Returns true for arguments that are texts. Characters are, as libtraceevent knows no `%c` (`print_str_arg` in its
/// `src/event-parse.c`).
fn is_text(argument: &Argument) -> bool {
    matches!(
        argument.format(),
        ArgumentFormat::String | ArgumentFormat::Text | ArgumentFormat::Char
    )
}

fn has_size(argument: &Argument) -> bool {
    matches!(argument.size, 1 | 2 | 4 | 8)
}

/// Returns the bytes of an argument's field. Text has a word that tells where it is (`__data_loc`).
fn size(argument: &Argument) -> usize {
    let element = if is_text(argument) { 4 } else { argument.size };
    let size = u64::from(element).saturating_mul(argument.elements.max(1).into());
    usize::try_from(size)
        .unwrap_or(usize::MAX)
        .min(FIXED_MAX + 1)
}

/// The addresses in a record, in front of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    /// `__probe_ip`: where the hit was.
    Hit(u64),
    /// `__probe_func` and `__probe_ret_ip`: the function that returned, and where to.
    Return { function: u64, caller: u64 },
}

/// The fields that all records of a probe in a form have.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) id: u16,
    pub(super) form: Form,
    arguments: Vec<Argument>,
}

impl Layout {
    pub(super) fn new(id: u16, form: Form, arguments: &[Argument]) -> Self {
        Self {
            id,
            form,
            arguments: arguments.to_vec(),
        }
    }

    /// Makes the bytes of a record. Texts that don't fit a page are cut.
    pub(super) fn record(
        &self,
        common: [u8; COMMON_SIZE],
        place: Addresses,
        values: &[Value],
        note: Option<&str>,
    ) -> Vec<u8> {
        let mut record = common.to_vec();
        match place {
            Addresses::Hit(address) => record.extend_from_slice(&address.to_le_bytes()),
            Addresses::Return { function, caller } => {
                record.extend_from_slice(&function.to_le_bytes());
                record.extend_from_slice(&caller.to_le_bytes());
            }
        }
        // The texts, and where in the record each one's word is.
        let mut texts: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut push_text = |record: &mut Vec<u8>, text: Vec<u8>| {
            texts.push((record.len(), text));
            record.extend_from_slice(&[0; 4]);
        };
        match self.form {
            Form::Text(count) => {
                for (at, value) in values.iter().take(count).enumerate() {
                    let mut text = String::new();
                    values::push_value(&mut text, self.arguments.get(at), value);
                    push_text(&mut record, text.into_bytes());
                }
            }
            Form::Typed => {
                for (argument, value) in self.arguments.iter().zip(values) {
                    match meaning(Some(argument), value) {
                        Meaning::String(text) | Meaning::Text(text) => {
                            let end = text.iter().position(|byte| *byte == 0);
                            let text = end.and_then(|end| text.get(..end)).unwrap_or(text);
                            push_text(&mut record, text.to_vec());
                        }
                        Meaning::Char(byte) => {
                            let mut text = String::new();
                            values::push_char(&mut text, byte);
                            push_text(&mut record, text.into_bytes());
                        }
                        Meaning::List(values) => {
                            for value in values {
                                push_number(&mut record, argument, value);
                            }
                        }
                        _ => push_number(&mut record, argument, value),
                    }
                }
            }
        }
        if let Some(note) = note {
            push_text(&mut record, note.as_bytes().to_vec());
        }
        let count = texts.len();
        for (at, (word, mut text)) in texts.into_iter().enumerate() {
            // The remaining texts share the room equally, each with its NUL.
            let room = DATA_MAX.saturating_sub(record.len()) / (count - at);
            text.truncate(room.saturating_sub(1));
            text.push(0);
            let location = u32::try_from(text.len() << 16 | record.len()).unwrap_or(0);
            if let Some(word) = record.get_mut(word..word + 4) {
                word.copy_from_slice(&location.to_le_bytes());
            }
            record.extend_from_slice(&text);
        }
        record
    }

    /// Makes the text of the probe's `format` file (`f_show` in `kernel/trace/trace_events.c`, `__set_print_fmt` in
    /// `kernel/trace/trace_probe.c`). Places are printed as symbols, unlike there.
    pub(super) fn format(&self, name: &str, is_return: bool, noted: bool) -> String {
        let mut fields = Fields::default();
        let (mut print, mut printed) = if is_return {
            fields.push("unsigned long", "__probe_func", "", 8, false);
            fields.push("unsigned long", "__probe_ret_ip", "", 8, false);
            (
                "(%pS <- %ps)".to_owned(),
                ", (void *)REC->__probe_ret_ip, (void *)REC->__probe_func".to_owned(),
            )
        } else {
            fields.push("unsigned long", "__probe_ip", "", 8, false);
            ("(%pS)".to_owned(), ", (void *)REC->__probe_ip".to_owned())
        };
        let mut names = HashSet::new();
        let count = match self.form {
            Form::Typed => self.arguments.len(),
            Form::Text(count) => count,
        };
        for at in 0..count {
            let argument = self.arguments.get(at);
            let label = identifier(&values::name(argument, at));
            let field = field_name(&mut names, &label);
            // Writing to a string succeeds.
            let _ = write!(print, " {label}=");
            match argument {
                Some(argument) if self.form == Form::Typed => {
                    fields.push_argument(argument, &field, &mut print, &mut printed);
                }
                _ => fields.push_text(&field, "%s", &mut print, &mut printed),
            }
        }
        if noted {
            print.push(' ');
            fields.push_text("__note", "%s", &mut print, &mut printed);
        }
        let (id, fields) = (self.id, fields.text);
        format!(
            "name: {name}\nID: {id}\nformat:\n{COMMON}\n{fields}\nprint fmt: \"{print}\"{printed}\n"
        )
    }
}

fn push_number(record: &mut Vec<u8>, argument: &Argument, value: &Value) {
    let number = match meaning(Some(argument), value) {
        Meaning::Unsigned(number) | Meaning::Hex(number) => number,
        Meaning::Signed(number) => number.cast_unsigned(),
        _ => 0,
    };
    let bytes = number.to_le_bytes().into_iter();
    record.extend(bytes.take(usize::try_from(argument.size).unwrap_or(0)));
}

/// Makes a name that no other field of the event has, including those that every event has.
fn field_name(taken: &mut HashSet<String>, label: &str) -> String {
    let mut name = label.to_owned();
    if name.starts_with("common_") || name.starts_with("__") {
        name.insert(0, 'a');
    }
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = format!("{label}_{number}");
        number += 1;
    }
    name
}

/// The lines of fields, one behind the other.
struct Fields {
    text: String,
    end: usize,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            text: String::new(),
            end: COMMON_SIZE,
        }
    }
}

impl Fields {
    fn push(&mut self, kind: &str, name: &str, array: &str, size: usize, signed: bool) {
        let (offset, signed) = (self.end, u8::from(signed));
        // Writing to a string succeeds.
        let _ = writeln!(
            self.text,
            "\tfield:{kind} {name}{array};\toffset:{offset};\tsize:{size};\tsigned:{signed};"
        );
        self.end += size;
    }

    fn push_text(&mut self, name: &str, form: &str, print: &mut String, printed: &mut String) {
        self.push("__data_loc char[]", name, "", 4, true);
        print.push_str(form);
        let _ = write!(printed, ", __get_str({name})");
    }

    fn push_argument(
        &mut self,
        argument: &Argument,
        name: &str,
        print: &mut String,
        printed: &mut String,
    ) {
        match argument.format() {
            ArgumentFormat::String => return self.push_text(name, "\\\"%s\\\"", print, printed),
            ArgumentFormat::Text => return self.push_text(name, "%s", print, printed),
            ArgumentFormat::Char => return self.push_text(name, "'%s'", print, printed),
            _ => {}
        }
        let signed = argument.format() == ArgumentFormat::Signed;
        // libtraceevent extends the sign of a number only with these lengths, unlike the kernel.
        let long = match (argument.size, signed) {
            (1, true) => "hh",
            (2, true) => "h",
            (8, _) => "L",
            _ => "",
        };
        let form = match argument.format() {
            ArgumentFormat::Signed => format!("%{long}d"),
            ArgumentFormat::Hex => format!("0x%{long}x"),
            _ => format!("%{long}u"),
        };
        let letter = if signed { 's' } else { 'u' };
        let kind = format!("{letter}{}", argument.size.saturating_mul(8));
        if argument.elements == 0 {
            self.push(&kind, name, "", size(argument), signed);
            print.push_str(&form);
            let _ = write!(printed, ", REC->{name}");
            return;
        }
        let array = format!("[{}]", argument.elements);
        self.push(&kind, name, &array, size(argument), signed);
        for at in 0..argument.elements {
            print.push(if at == 0 { '{' } else { ',' });
            print.push_str(&form);
            let _ = write!(printed, ", REC->{name}[{at}]");
        }
        print.push('}');
    }
}
