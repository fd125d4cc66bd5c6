//! The options of a program that sends to a receiver.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::headers::Header;
use crate::options::{OtlpOptions, Protocol, endpoint};

/// How long a request may take, in milliseconds.
const TIMEOUT: u64 = OtlpOptions::TIMEOUT.as_millis() as u64;

/// The receiver. The variables are those of OpenTelemetry's specification ("OTLP Exporter Configuration").
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "OpenTelemetry")]
pub struct OtlpArgs {
    /// Send to the receiver of OpenTelemetry's protocol (OTLP) at this URL: http://HOST:PORT, or https:// for TLS
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_parser = endpoint)]
    pub otlp: Option<http::Uri>,
    /// How to send: by gRPC, or messages by HTTP, with `/v1/metrics` or `/v1/logs` behind the URL
    #[arg(
        long,
        value_name = "PROTOCOL",
        env = "OTEL_EXPORTER_OTLP_PROTOCOL",
        default_value = "grpc",
        value_parser = PossibleValuesParser::new(Protocol::NAMES).try_map(|name| name.parse::<Protocol>())
    )]
    pub otlp_protocol: Protocol,
    /// A header of each request, NAME=VALUE with the value encoded as in a URL (repeatable, or with commas). A secret
    /// belongs in a configuration or the variable: others of this host can read command lines
    #[arg(
        long,
        value_name = "HEADER",
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub otlp_header: Vec<Header>,
    /// The certificates that the receiver's must be signed by, in PEM [default: those that this system trusts]
    #[arg(long, value_name = "FILE", env = "OTEL_EXPORTER_OTLP_CERTIFICATE")]
    pub otlp_ca: Option<PathBuf>,
    /// The certificate that the receiver is shown, with its chain, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        requires = "otlp_key"
    )]
    pub otlp_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "OTEL_EXPORTER_OTLP_CLIENT_KEY",
        requires = "otlp_cert"
    )]
    pub otlp_key: Option<PathBuf>,
    /// How long a request may take, with the connection that it needs
    #[arg(long, value_name = "MILLISECONDS", env = "OTEL_EXPORTER_OTLP_TIMEOUT", default_value_t = TIMEOUT,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub otlp_timeout: u64,
}

impl OtlpArgs {
    /// Returns the receiver's options, if a receiver is named.
    #[must_use]
    pub fn options(&self) -> Option<OtlpOptions> {
        Some(OtlpOptions {
            endpoint: self.otlp.clone()?,
            protocol: self.otlp_protocol,
            headers: self.otlp_header.clone(),
            ca: self.otlp_ca.clone(),
            identity: self.otlp_cert.clone().zip(self.otlp_key.clone()),
            timeout: Duration::from_millis(self.otlp_timeout),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        otlp: OtlpArgs,
    }

    fn parse(words: &[&str]) -> Result<Option<OtlpOptions>, String> {
        let words = [&["program"], words].concat();
        let parsed = Program::try_parse_from(words);
        parsed
            .map(|it| it.otlp.options())
            .map_err(|it| it.to_string())
    }

    #[test]
    fn a_receiver_is_named_by_its_url() {
        assert_eq!(parse(&["--otlp-header", "a=b"]), Ok(None));
        let url = "https://collector.example:4317";
        let named = parse(&["--otlp", url]).unwrap();
        assert_eq!(named, Some(OtlpOptions::new(url.parse().unwrap())));
        let by_http = ["--otlp", url, "--otlp-protocol", "http/protobuf"];
        let named = parse(&by_http).unwrap().unwrap();
        assert_eq!(named.protocol, Protocol::HttpProtobuf);
    }

    #[test]
    fn a_secret_is_not_shown_when_something_is_wrong() {
        let error = parse(&["--otlp-cert", "a.pem", "--otlp-header", "a=secret"]).unwrap_err();
        assert!(
            error.contains("--otlp-key") && !error.contains("secret"),
            "{error}"
        );
    }
}
