//! Texts that are kept have a bound.

/// Returns the first bytes of a text, up to `most` of them, whole characters only.
pub(crate) fn start_of(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_kept_whole_or_not_at_all() {
        assert_eq!(start_of("aä", 3), "aä");
        assert_eq!(start_of("aä", 2), "a");
        assert_eq!(start_of("ä", 1), "");
    }
}
