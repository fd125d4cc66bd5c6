//! Types as C writes them: `const char *`, `int (*)(struct file *)`.

use super::Btf;
use super::raw::{Kind, TypeRecord};
use super::types::TypeId;

/// How many types one declarator may be made of: damaged types must not make it endless.
const MAX_STEPS: usize = 64;
/// How deep functions may be in the parameters of functions.
const MAX_NESTED: usize = 4;
/// Where a declarator ends, at the latest, in bytes.
const MAX_TEXT: usize = 1024;
/// Replaces the rest of a text that is too long or too deep.
pub(super) const REST: &str = "...";

impl Btf {
    /// Returns a type as C writes it: `struct file *`.
    pub fn type_text(&self, id: TypeId) -> String {
        self.declare(id, "", MAX_NESTED)
    }

    /// Returns the declaration of something of a type: `char name[16]`, `int (*open)(struct inode *)`.
    pub fn declarator(&self, id: TypeId, name: &str) -> String {
        self.declare(id, name, MAX_NESTED)
    }

    fn declare(&self, id: TypeId, name: &str, nested: usize) -> String {
        let (mut id, mut inner) = (id.0, name.to_owned());
        // The text to the left of the basic type, and the text to its right.
        let (mut before, mut after) = (String::new(), String::new());
        for _ in 0..MAX_STEPS {
            if inner.len() > MAX_TEXT {
                break;
            }
            let Some(record) = self.raw.get(id) else {
                let base = if id == 0 { "void" } else { "?" };
                return join(&format!("{before}{base}{after}"), &inner);
            };
            match record.kind {
                Kind::Const | Kind::Volatile | Kind::Restrict => {
                    let word = qualifier(record.kind);
                    let qualified = self.raw.get(self.skip_qualifiers(record.size_or_type));
                    if qualified.is_some_and(|to| to.kind == Kind::Pointer) {
                        inner = join(word, &inner);
                    } else {
                        before.push_str(word);
                        before.push(' ');
                    }
                }
                // The kernel's own names of its tags (include/linux/compiler_types.h): `__user`.
                Kind::TypeTag => after.push_str(&format!(" __{}", record.name)),
                Kind::Pointer => {
                    let to = self.raw.get(self.skip_qualifiers(record.size_or_type));
                    let binds =
                        |to: &TypeRecord<'_>| matches!(to.kind, Kind::Array | Kind::Prototype);
                    inner = if to.as_ref().is_some_and(binds) {
                        format!("(*{inner})")
                    } else {
                        format!("*{inner}")
                    };
                }
                Kind::Array => {
                    let Some([_, _, count]) = record.entries().next() else {
                        break;
                    };
                    match count {
                        0 => inner.push_str("[]"),
                        _ => inner.push_str(&format!("[{count}]")),
                    }
                }
                Kind::Prototype => inner.push_str(&self.parameter_list(&record, nested)),
                Kind::Function => {}
                _ => return join(&format!("{before}{}{after}", base(&record)), &inner),
            }
            id = match record.kind {
                Kind::Array => record
                    .entries::<3>()
                    .next()
                    .map_or(0, |[element, ..]| element),
                _ => record.size_or_type,
            };
        }
        join(REST, &inner)
    }

    fn parameter_list(&self, record: &TypeRecord<'_>, nested: usize) -> String {
        let Some(prototype) = self.as_prototype(record) else {
            return "()".to_owned();
        };
        if nested == 0 {
            return format!("({REST})");
        }
        let mut list: Vec<String> = Vec::new();
        let mut len = 0;
        for parameter in &prototype.parameters {
            if len > MAX_TEXT {
                break;
            }
            list.push(self.declare(parameter.type_id, parameter.name, nested - 1));
            len += list.last().map_or(0, String::len);
        }
        if prototype.variadic || len > MAX_TEXT {
            list.push(REST.to_owned());
        }
        if list.is_empty() {
            list.push("void".to_owned());
        }
        format!("({})", list.join(", "))
    }

    /// Returns the type behind qualifiers and tags. Other names of a type (typedefs) stay.
    fn skip_qualifiers(&self, mut id: u32) -> u32 {
        for _ in 0..MAX_STEPS {
            match self.raw.get(id) {
                Some(record) if record.kind.is_alias() && record.kind != Kind::Typedef => {
                    id = record.size_or_type;
                }
                _ => break,
            }
        }
        id
    }
}

/// Joins the text before a declarator with the declarator, with a space between unless the declarator is empty.
fn join(left: &str, inner: &str) -> String {
    if inner.is_empty() {
        left.to_owned()
    } else {
        format!("{left} {inner}")
    }
}

fn qualifier(kind: Kind) -> &'static str {
    match kind {
        Kind::Const => "const",
        Kind::Volatile => "volatile",
        _ => "restrict",
    }
}

/// Returns the keyword of a struct, union or enum; empty for other types.
pub(super) fn keyword(record: &TypeRecord<'_>) -> &'static str {
    match record.kind {
        Kind::Struct => "struct",
        Kind::Union => "union",
        Kind::Enum | Kind::Enum64 => "enum",
        Kind::Forward if record.flag => "union",
        Kind::Forward => "struct",
        _ => "",
    }
}

/// Returns the text of a type that is no pointer, array or function: `struct file`, `int`, `struct {...}`.
fn base(record: &TypeRecord<'_>) -> String {
    match (keyword(record), record.name) {
        ("", "") => "?".to_owned(),
        ("", name) => name.to_owned(),
        (keyword, "") => format!("{keyword} {{{REST}}}"),
        (keyword, name) => format!("{keyword} {name}"),
    }
}
