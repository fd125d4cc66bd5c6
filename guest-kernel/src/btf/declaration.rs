//! The declaration of a type, with where its members are.

use super::Btf;
use super::c_type::keyword;
use super::error::TypeError;
use super::raw::{Kind, TypeRecord};
use super::types::{TypeId, is_composite};
use crate::symbols::glob;

/// How long a declaration may be in lines. The longest in Debian's kernels have some hundreds.
const MAX_LINES: usize = 4096;
/// How deep unnamed structs and unions are shown in one another.
const MAX_NESTED: usize = 8;
/// Where the comments begin.
const COLUMN: usize = 48;

impl Btf {
    /// Returns the declaration of a type as C has it, each member with its offset and its size in bytes:
    /// `btf.declaration("struct file")`. It is in the manner of `pahole`. A bit field has the offset of the byte that
    /// its first bit is in, the number of that bit there, and its number of bits.
    ///
    /// # Errors
    /// There is no such type.
    pub fn declaration(&self, name: &str) -> Result<String, TypeError> {
        let id = self.type_named(name).ok_or_else(|| TypeError::Unknown {
            name: name.to_owned(),
        })?;
        let record = self.raw.get(id.0).ok_or_else(|| TypeError::Damaged {
            name: name.to_owned(),
        })?;
        let mut lines = Lines::default();
        match record.kind {
            Kind::Typedef => {
                let target = TypeId(record.size_or_type);
                match self.raw.get(target.0) {
                    // A type without another name can only be looked up by this one.
                    Some(of) if of.name.is_empty() && has_body(&of) => {
                        self.body(&of, "typedef ", record.name, 0, 0, &mut lines);
                    }
                    _ => lines.push(&format!(
                        "typedef {};",
                        self.declarator(target, record.name)
                    )),
                }
            }
            _ if has_body(&record) => self.body(&record, "", "", 0, 0, &mut lines),
            _ => lines.push(&format!(
                "{}; /* size: {} */",
                record.name, record.size_or_type
            )),
        }
        if lines.full {
            lines.text.push_str("/* ... */\n");
        }
        Ok(lines.text)
    }

    /// Returns the names of the types that a pattern of `*` (any text) and `?` (one character) matches, each with its
    /// keyword: `struct file`. They are sorted, and at most `most`. A pattern with a keyword before it matches only
    /// such types.
    pub fn types_matching(&self, pattern: &str, most: usize) -> Vec<String> {
        let mut names: Vec<_> = self
            .raw
            .iter()
            .map(|(_, record)| record)
            .filter(|record| !record.name.is_empty())
            .filter(|record| {
                has_body(record) || matches!(record.kind, Kind::Int | Kind::Float | Kind::Typedef)
            })
            .map(|record| (keyword(&record), record.name))
            .filter(|(keyword, name)| match pattern.split_once(' ') {
                Some((word, pattern)) if word == *keyword => glob::matches(pattern, name),
                _ => glob::matches(pattern, name),
            })
            .collect();
        names.sort_unstable_by_key(|(keyword, name)| (*name, *keyword));
        names.dedup();
        names.truncate(most);
        let text = |(keyword, name): (&str, &str)| format!("{keyword} {name}").trim().to_owned();
        names.into_iter().map(text).collect()
    }

    /// Adds `before struct NAME {`, the members, and `} after;`.
    fn body(
        &self,
        record: &TypeRecord<'_>,
        before: &str,
        after: &str,
        depth: usize,
        offset: u64,
        lines: &mut Lines,
    ) {
        let indent = "\t".repeat(depth);
        let name = match record.name {
            "" => String::new(),
            name => format!(" {name}"),
        };
        lines.push(&format!("{indent}{before}{}{name} {{", keyword(record)));
        if is_composite(record) {
            self.members(record, depth + 1, offset, lines);
        } else {
            self.constants(record, depth + 1, lines);
        }
        let after = match after {
            "" => String::new(),
            after => format!(" {after}"),
        };
        let end = format!("{indent}}}{after};");
        if depth == 0 {
            lines.push(&format!("{end} /* size: {} */", record.size_or_type));
        } else {
            lines.placed(&end, &format!("{offset:5} {:5}", record.size_or_type));
        }
    }

    fn members(&self, record: &TypeRecord<'_>, depth: usize, start: u64, lines: &mut Lines) {
        let indent = "\t".repeat(depth);
        for entry in record.entries() {
            if lines.full {
                return;
            }
            let field = self.field_of(record, entry);
            let offset = start.saturating_add(field.bit_offset / 8);
            if let Some(of) = self.raw.get(field.type_id.0)
                && of.name.is_empty()
                && has_body(&of)
                && depth < MAX_NESTED
            {
                self.body(&of, "", field.name, depth, offset, lines);
                continue;
            }
            let text = format!("{indent}{}", self.declarator(field.type_id, field.name));
            let size = self.type_size(field.type_id).unwrap_or(0);
            if field.bits == 0 {
                lines.placed(&format!("{text};"), &format!("{offset:5} {size:5}"));
            } else {
                let (bit, bits) = (field.bit_offset % 8, field.bits);
                lines.placed(
                    &format!("{text}:{bits};"),
                    &format!("{offset:5}:{bit:2} {bits:2}"),
                );
            }
        }
    }

    fn constants(&self, record: &TypeRecord<'_>, depth: usize, lines: &mut Lines) {
        let indent = "\t".repeat(depth);
        for (name, value) in record.constants() {
            if lines.full {
                return;
            }
            let name = self.raw.name(name);
            if record.flag {
                lines.push(&format!("{indent}{name} = {},", value.cast_signed()));
            } else {
                lines.push(&format!("{indent}{name} = {value},"));
            }
        }
    }
}

fn has_body(record: &TypeRecord<'_>) -> bool {
    is_composite(record) || matches!(record.kind, Kind::Enum | Kind::Enum64)
}

/// The lines of a declaration.
#[derive(Default)]
struct Lines {
    text: String,
    count: usize,
    /// True if no more lines fit.
    full: bool,
}

impl Lines {
    fn push(&mut self, line: &str) {
        if self.count == MAX_LINES {
            self.full = true;
            return;
        }
        self.count += 1;
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Adds a line with a comment that says where the member is.
    fn placed(&mut self, text: &str, place: &str) {
        // As wide as a terminal shows it.
        let width: usize = text.chars().map(|c| if c == '\t' { 8 } else { 1 }).sum();
        let space = " ".repeat(COLUMN.saturating_sub(width).max(1));
        self.push(&format!("{text}{space}/* {place} */"));
    }
}
