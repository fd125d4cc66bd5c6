//! Names of images.

use super::{Digest, ImageError};
use crate::limits;

/// The prefix of an image's digest in texts that may also be a name.
pub(super) const DIGEST: &str = "sha256-";

/// A client's reference to one of its images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reference {
    Name(String),
    Digest(Digest),
}

impl Reference {
    /// # Errors
    /// [`ImageError::Reference`].
    pub(super) fn parse(text: &str) -> Result<Self, ImageError> {
        let wrong = || ImageError::Reference(text.chars().take(limits::NAME_CHARS * 2).collect());
        match text.strip_prefix(DIGEST) {
            Some(digest) => digest.parse().map(Self::Digest).map_err(|_| wrong()),
            None if is_name(text) => Ok(Self::Name(text.to_owned())),
            None => Err(wrong()),
        }
    }
}

/// Returns true if a text can be an image's name.
pub(super) fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let len = text.len();
    (1..=limits::NAME_CHARS).contains(&len) && text.chars().all(fits) && !text.starts_with(DIGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_a_name_or_a_digest() {
        let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let name = |text: &str| Some(Reference::Name(text.to_owned()));
        let longest = "x".repeat(64);
        for (text, expected) in [
            ("linux-6.12_a", name("linux-6.12_a")),
            (&longest, name(&longest)),
            (
                &format!("sha256-{digest}"),
                Some(Reference::Digest(digest.parse().unwrap())),
            ),
            ("sha256-", None),
            ("sha256-abc", None),
            ("", None),
            ("a b", None),
            ("a/b", None),
            ("a=b", None),
            ("../a", None),
            (&"x".repeat(65), None),
        ] {
            assert_eq!(Reference::parse(text).ok(), expected, "{text}");
        }
    }
}
