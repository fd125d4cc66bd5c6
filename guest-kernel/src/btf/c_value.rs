//! Values as C writes them: `{.f_mode = 0x1d, .f_pos = 12}`.

use super::Btf;
use super::c_type::REST;
use super::types::{Field, Shape, TypeId};

/// How deep structs are shown in one another.
const MAX_NESTED: usize = 8;
/// How many members and elements are looked at: damaged types must not make it endless.
const MAX_STEPS: usize = 1 << 14;
/// Room for the text that closes a value that was cut off.
const CLOSING: usize = REST.len() + MAX_NESTED + 1;
/// Members whose names end so are sets of bits, which say more in hexadecimal.
const BITS: [&str; 3] = ["flags", "mode", "mask"];

impl Btf {
    /// Returns a value of a type as C writes it, in one line of `most` bytes and a few more at most. Constants of enums
    /// are names, arrays of characters are strings where they hold text, pointers and sets of bits (by the member's
    /// name) are hexadecimal. Members that are 0 are left out, as C allows, and so are the last elements of an array.
    /// What is missing at the end of the bytes, or does not fit, is `...`.
    pub fn value_text(&self, id: TypeId, bytes: &[u8], most: usize) -> String {
        let mut printer = Printer {
            btf: self,
            text: String::new(),
            most: most.saturating_sub(CLOSING),
            steps: MAX_STEPS,
            cut: false,
        };
        printer.value(id, bytes, "", MAX_NESTED);
        printer.text
    }

    /// Returns a value of an enum, of which `bits` bits are given, as text: the constant's name, or the number if no
    /// constant has it.
    pub fn enum_text(&self, of: TypeId, value: u64, bits: u32) -> String {
        let unused = 64_u32.saturating_sub(bits).min(63);
        let signed = (value << unused).cast_signed() >> unused;
        let is_signed = matches!(
            self.shape(of),
            Some(Shape::Enumeration { signed: true, .. })
        );
        let wide = if is_signed {
            signed.cast_unsigned()
        } else {
            value
        };
        match self.enumerator(of, wide) {
            Some(name) => name.to_owned(),
            None if is_signed => signed.to_string(),
            None => value.to_string(),
        }
    }

    /// Returns `len` bits from bit `first` on, of bytes in the order of memory. Bit 0 is the lowest bit of the first
    /// byte. `None` if they are not all there, or more than 64.
    pub fn bits(bytes: &[u8], first: u64, len: u32) -> Option<u64> {
        let start = usize::try_from(first / 8).ok()?;
        let shift = (first % 8) as u32;
        let end = start.checked_add((shift + len.min(64)).div_ceil(8) as usize)?;
        let taken = bytes.get(start..end).filter(|_| len <= 64)?;
        let mut word = [0; 16];
        word.get_mut(..taken.len())?.copy_from_slice(taken);
        let mask = (1_u128 << len) - 1;
        u64::try_from(u128::from_le_bytes(word) >> shift & mask).ok()
    }
}

/// A value being written.
struct Printer<'a> {
    btf: &'a Btf,
    text: String,
    most: usize,
    steps: usize,
    /// True if the rest is left out.
    cut: bool,
}

impl Printer<'_> {
    fn put(&mut self, text: &str) {
        if self.text.len() + text.len() > self.most {
            self.cut();
        }
        if !self.cut {
            self.text.push_str(text);
        }
    }

    /// Writes `{`. Returns true if it has been written, so that it has to be closed.
    fn open(&mut self) -> bool {
        self.put("{");
        !self.cut
    }

    fn close(&mut self) {
        self.text.push('}');
    }

    fn cut(&mut self) {
        if !self.cut {
            self.text.push_str(REST);
            self.cut = true;
        }
    }

    fn step(&mut self) {
        match self.steps.checked_sub(1) {
            Some(left) => self.steps = left,
            None => self.cut(),
        }
    }

    /// Writes a value of a type. `bytes` begin with the value's bytes, of which the last ones may be missing.
    fn value(&mut self, id: TypeId, bytes: &[u8], name: &str, nested: usize) {
        match self.btf.shape(id) {
            Some(Shape::Array { element, count }) => self.array(element, count, bytes, nested),
            Some(Shape::Composite(_)) if nested == 0 => self.put("{...}"),
            Some(Shape::Composite(size)) => {
                let (whole, mut first) = (bytes.len() >= size as usize, true);
                if !self.open() {
                    return;
                }
                self.members(id, bytes, &mut first, nested);
                if !whole {
                    self.separate(&mut first);
                    self.cut();
                }
                self.close();
            }
            Some(Shape::Float(4)) => match bytes.first_chunk() {
                Some(bytes) => self.put(&f32::from_le_bytes(*bytes).to_string()),
                None => self.cut(),
            },
            Some(Shape::Float(8)) => match bytes.first_chunk() {
                Some(bytes) => self.put(&f64::from_le_bytes(*bytes).to_string()),
                None => self.cut(),
            },
            Some(shape) => {
                let bits = match shape {
                    Shape::Pointer(_) => 64,
                    Shape::Integer(integer) => integer.size.saturating_mul(8),
                    Shape::Enumeration { size, .. } => size.saturating_mul(8),
                    _ => 0,
                };
                if bits > 64 || bits == 0 {
                    self.hex(bytes, bits / 8);
                } else if let Some(value) = Btf::bits(bytes, 0, bits) {
                    self.number(id, shape, value, bits, name);
                } else {
                    self.cut();
                }
            }
            None => self.put("?"),
        }
    }

    /// Writes a number of `bits` bits.
    fn number(&mut self, id: TypeId, shape: Shape, value: u64, bits: u32, name: &str) {
        let signed = (value << (64 - bits)).cast_signed() >> (64 - bits);
        let text = match shape {
            Shape::Pointer(_) => format!("{value:#x}"),
            Shape::Integer(integer) if integer.boolean => (value != 0).to_string(),
            Shape::Integer(integer) if integer.signed => signed.to_string(),
            Shape::Enumeration { .. } => self.btf.enum_text(id, value, bits),
            _ if BITS.iter().any(|end| name.ends_with(end)) => format!("{value:#x}"),
            _ => value.to_string(),
        };
        self.put(&text);
    }

    /// Writes a number of more than 64 bits, or a value that has no form in C.
    fn hex(&mut self, bytes: &[u8], size: u32) {
        let Some(bytes) = bytes.get(..size as usize).filter(|bytes| !bytes.is_empty()) else {
            self.put("?");
            return;
        };
        let digits: String = bytes
            .iter()
            .rev()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let digits = digits.trim_start_matches('0');
        self.put(&format!(
            "0x{}",
            if digits.is_empty() { "0" } else { digits }
        ));
    }

    fn separate(&mut self, first: &mut bool) {
        if !std::mem::take(first) {
            self.put(", ");
        }
    }

    /// Writes the members that are not 0. Members of unnamed structs and unions are written as members of the outer
    /// type.
    fn members(&mut self, of: TypeId, bytes: &[u8], first: &mut bool, nested: usize) {
        let btf = self.btf;
        for field in btf.fields(of) {
            self.step();
            if self.cut {
                return;
            }
            if field.bits != 0 {
                self.bit_field(&field, bytes, first);
                continue;
            }
            let size = btf.type_size(field.type_id).unwrap_or(0);
            let start = usize::try_from(field.bit_offset / 8).unwrap_or(usize::MAX);
            let end = start.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
            let Some(part) = bytes.get(start..end.min(bytes.len())) else {
                continue;
            };
            if part.iter().all(|byte| *byte == 0) {
                continue;
            }
            if field.name.is_empty() {
                if nested > 0 {
                    self.members(field.type_id, part, first, nested - 1);
                }
                continue;
            }
            self.separate(first);
            self.put(&format!(".{} = ", field.name));
            self.value(field.type_id, part, field.name, nested.saturating_sub(1));
        }
    }

    fn bit_field(&mut self, field: &Field<'_>, bytes: &[u8], first: &mut bool) {
        let bits = field.bits.into();
        let value = Btf::bits(bytes, field.bit_offset, bits).filter(|value| *value != 0);
        // An unnamed one fills a gap.
        let (Some(value), false) = (value, field.name.is_empty()) else {
            return;
        };
        self.separate(first);
        self.put(&format!(".{} = ", field.name));
        match self.btf.shape(field.type_id) {
            Some(shape) => self.number(field.type_id, shape, value, bits, field.name),
            None => self.put("?"),
        }
    }

    fn array(&mut self, element: TypeId, count: u32, bytes: &[u8], nested: usize) {
        let size = self.btf.type_size(element).unwrap_or(0);
        let size = usize::try_from(size).unwrap_or(0);
        let whole = (count as usize).saturating_mul(size);
        let bytes = bytes.get(..whole.min(bytes.len())).unwrap_or_default();
        if let Some(text) = self.as_text(element, bytes) {
            self.put(&text);
            return;
        }
        if nested == 0 || size == 0 {
            self.put("{...}");
            return;
        }
        let used = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |at| at + 1);
        let mut first = true;
        if !self.open() {
            return;
        }
        for element_bytes in bytes
            .get(..used.next_multiple_of(size).min(bytes.len()))
            .unwrap_or_default()
            .chunks(size)
        {
            self.step();
            if self.cut {
                break;
            }
            self.separate(&mut first);
            self.value(element, element_bytes, "", nested - 1);
        }
        if bytes.len() < whole {
            self.separate(&mut first);
            self.cut();
        }
        self.close();
    }

    /// Returns an array of characters in quotes, if it holds text.
    fn as_text(&self, element: TypeId, bytes: &[u8]) -> Option<String> {
        let Some(Shape::Integer(integer)) = self.btf.shape(element) else {
            return None;
        };
        if integer.size != 1 || integer.boolean {
            return None;
        }
        let end = bytes.iter().position(|byte| *byte == 0);
        let text = str::from_utf8(bytes.get(..end.unwrap_or(bytes.len()))?).ok()?;
        // Bytes of another type are numbers, unless they look very much like text.
        let sure = integer.character || (end.is_some() && text.len() > 1);
        (sure && !text.chars().any(char::is_control)).then(|| format!("{text:?}"))
    }
}
