//! Bytes of the guest as text.

use std::fmt::Write;

/// Appends bytes as UTF-8 in which no character controls a terminal or ends a line: control characters and
/// bytes that aren't UTF-8 become `\xNN`. A NUL ends the text, as it does for the kernel.
pub(crate) fn push_bytes(out: &mut String, bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0);
    let bytes = end.and_then(|end| bytes.get(..end)).unwrap_or(bytes);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                push_escaped(out, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.push(character);
            }
        }
        push_escaped(out, chunk.invalid());
    }
}

/// Appends each byte as `\xNN`.
pub(crate) fn push_escaped(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string succeeds.
        let _ = write!(out, "\\x{byte:02x}");
    }
}

/// As [`push_bytes`], into a new string.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    push_bytes(&mut out, bytes);
    out
}

/// Makes a name for C and ftrace of a text: letters, digits and `_`, no digit first; all else becomes `_`.
pub(crate) fn identifier(name: &str) -> String {
    let mut out: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_the_guest_stays_on_its_line() {
        for (bytes, text) in [
            (&b"/etc/passwd"[..], "/etc/passwd"),
            (b"a\nb\x1b[2J", "a\\x0ab\\x1b[2J"),
            (b"\xffx\xc2\x9b", "\\xffx\\xc2\\x9b"),
            ("Grüße".as_bytes(), "Grüße"),
            (b"a\0b", "a"),
        ] {
            assert_eq!(printable(bytes), text);
        }
    }

    #[test]
    fn an_identifier_has_no_other_characters() {
        assert_eq!(identifier("vfs_read+0x5"), "vfs_read_0x5");
        assert_eq!(identifier("9p"), "_9p");
        assert_eq!(identifier(""), "_");
    }
}
