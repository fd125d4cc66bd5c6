//! The receiver's address, and the credentials for it.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;

use crate::headers::Header;

/// How requests are sent to the receiver, by the names of OpenTelemetry's specification ("OTLP Exporter
/// Configuration").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// `grpc`: gRPC, by HTTP/2.
    #[default]
    Grpc,
    /// `http/protobuf`: messages of Protocol Buffers, by HTTP/1.1.
    HttpProtobuf,
}

impl Protocol {
    /// The names of the protocols.
    pub const NAMES: [&str; 2] = ["grpc", "http/protobuf"];
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "grpc" => Ok(Self::Grpc),
            "http/protobuf" => Ok(Self::HttpProtobuf),
            _ => Err(format!("there is {}", Self::NAMES.join(" and "))),
        }
    }
}

/// A receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpOptions {
    /// The receiver's address; see [`endpoint`].
    pub endpoint: Uri,
    /// How requests are sent.
    pub protocol: Protocol,
    /// Headers of each request.
    pub headers: Vec<Header>,
    /// The certificates that must have signed the receiver's, in PEM. `None` for those that this system trusts.
    pub ca: Option<PathBuf>,
    /// The certificate that the receiver is shown, with its chain, and its private key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// How long a request may take, with the connection that it needs.
    pub timeout: Duration,
}

impl OtlpOptions {
    /// How long a request may take by default.
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    /// Makes the options of a receiver that gets requests by gRPC, without credentials.
    #[must_use]
    pub fn new(endpoint: Uri) -> Self {
        Self {
            endpoint,
            protocol: Protocol::default(),
            headers: Vec::new(),
            ca: None,
            identity: None,
            timeout: Self::TIMEOUT,
        }
    }
}

/// Reads the URL of a receiver.
///
/// # Errors
/// The text is no URL of HTTP, or has a password.
pub fn endpoint(text: &str) -> Result<Uri, String> {
    let wrong = |what: &str| {
        Err(format!(
            "{what}: give it as http://HOST:PORT or https://HOST:PORT"
        ))
    };
    let Ok(uri) = text.parse::<Uri>() else {
        return wrong("this is no URL");
    };
    if uri.scheme() != Some(&Scheme::HTTP) && uri.scheme() != Some(&Scheme::HTTPS) {
        return wrong("this is no URL of HTTP");
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            wrong("a password in a URL is shown in logs, so it belongs in a header")
        }
        Some(_) => Ok(uri),
        None => wrong("there is no host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_has_a_name() {
        let all = Protocol::NAMES.map(str::parse);
        assert_eq!(all, [Ok(Protocol::Grpc), Ok(Protocol::HttpProtobuf)]);
        assert!("http/json".parse::<Protocol>().is_err());
    }

    #[test]
    fn what_is_no_receiver_is_refused_with_an_example() {
        let good = endpoint("https://collector.example:4317").unwrap();
        assert_eq!(good.port_u16(), Some(4317));
        for url in [
            "collector:4317",
            "ftp://collector",
            "http:///v1",
            "http://user:word@collector",
        ] {
            let error = endpoint(url).unwrap_err();
            assert!(error.contains("https://HOST:PORT"), "{error}");
        }
    }
}
