//! Headers of each request, by which a receiver recognizes its senders.

use std::fmt;
use std::str::FromStr;

use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// One header. Its value is a secret: it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    pub(crate) name: HeaderName,
    pub(crate) value: HeaderValue,
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=…", self.name)
    }
}

impl FromStr for Header {
    type Err = String;

    /// Reads `NAME=VALUE`, with the value encoded as in a URL, which is the form in `OTEL_EXPORTER_OTLP_HEADERS`
    /// (OpenTelemetry's "Protocol Exporter", "Specifying headers via environment variables").
    fn from_str(text: &str) -> Result<Self, String> {
        // The error doesn't repeat the text, which may be a secret.
        let wrong = |what: &str| format!("{what}: give a header as NAME=VALUE");
        let (name, value) = text.split_once('=').ok_or_else(|| wrong("there is no ="))?;
        let name = HeaderName::from_str(name.trim()).map_err(|_| wrong("its name is none"))?;
        let value = percent_decode_str(value.trim()).collect::<Vec<u8>>();
        let mut value =
            HeaderValue::from_bytes(&value).map_err(|_| wrong("its value can't be in a header"))?;
        // Libraries that print requests leave the value out.
        value.set_sensitive(true);
        Ok(Self { name, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_the_variable_has_it_and_never_shown() {
        let header: Header = "Authorization=Bearer%20a=b".parse().unwrap();
        assert_eq!(header.name, "authorization");
        assert_eq!(header.value, "Bearer a=b");
        assert!(header.value.is_sensitive());
        assert_eq!(format!("{header:?}"), "authorization=…");
    }

    #[test]
    fn what_is_no_header_is_refused_without_being_repeated() {
        for text in ["secret", "a b=secret", "a=secret%0a"] {
            let error = text.parse::<Header>().unwrap_err();
            assert!(error.contains("NAME=VALUE"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
