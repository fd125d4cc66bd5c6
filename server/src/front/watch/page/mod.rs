//! The status page: one document, with its style and its program in it.
//!
//! The browser runs nothing else in it and connects only to this server: its policy (Content Security Policy Level 3)
//! has the hashes of both.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use sha2::{Digest, Sha256};

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const PROGRAM: &str = include_str!("page.js");

/// Where the style and the program are inserted.
const STYLE_MARK: &str = "/* STYLE */";
const PROGRAM_MARK: &str = "/* PROGRAM */";

/// The document, and its policy.
#[derive(Debug)]
pub struct Page {
    pub html: Bytes,
    pub policy: HeaderValue,
}

/// The status page.
pub fn page() -> &'static Page {
    static PAGE: LazyLock<Page> = LazyLock::new(|| Page {
        html: document().into(),
        // The policy consists of Base64 and words, so it's always a valid header value. With the other policy, browsers
        // would run nothing.
        policy: HeaderValue::from_str(&policy())
            .unwrap_or(HeaderValue::from_static("default-src 'none'")),
    });
    &PAGE
}

fn document() -> String {
    let styled = HTML.replace(STYLE_MARK, STYLE);
    styled.replace(PROGRAM_MARK, PROGRAM)
}

fn policy() -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(PROGRAM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_its_parts_and_needs_nothing_from_elsewhere() {
        let document = document();
        for part in [STYLE, PROGRAM] {
            assert!(document.contains(part));
        }
        for absent in [
            STYLE_MARK,
            PROGRAM_MARK,
            "http:",
            "https:",
            "src=",
            "innerHTML",
            "style=",
        ] {
            // The names of SVG elements are no addresses.
            let document = document.replace("http://www.w3.org/2000/svg", "");
            assert!(!document.contains(absent), "{absent}");
        }
        let policy = page().policy.to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"));
    }
}
