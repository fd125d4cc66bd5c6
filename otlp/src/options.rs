//! Where the receiver is, and what it is shown.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use http::Uri;
use http::uri::Scheme;

use crate::headers::Header;

/// How requests are brought to the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// gRPC, by HTTP/2.
    #[default]
    Grpc,
    /// Messages of Protocol Buffers, by HTTP/1.1.
    #[value(name = "http/protobuf")]
    HttpProtobuf,
}

/// The receiver. The variables are those of OpenTelemetry's specification ("OTLP Exporter Configuration").
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "OpenTelemetry")]
pub struct OtlpOptions {
    /// Send to the receiver of OpenTelemetry's protocol (OTLP) at this URL: http://HOST:PORT, or https:// for TLS
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_parser = endpoint)]
    pub otlp: Option<Uri>,
    /// How to send: by gRPC, or messages by HTTP, with `/v1/metrics` and `/v1/logs` behind the URL
    #[arg(
        long,
        value_enum,
        value_name = "PROTOCOL",
        env = "OTEL_EXPORTER_OTLP_PROTOCOL",
        default_value = "grpc"
    )]
    pub otlp_protocol: Protocol,
    /// A header of each request, NAME=VALUE with the value encoded as in a URL (repeatable, or with commas). A secret
    /// belongs in the configuration or the variable: others of this host can read command lines
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
    #[arg(long, value_name = "MILLISECONDS", env = "OTEL_EXPORTER_OTLP_TIMEOUT", default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub otlp_timeout: u64,
}

impl OtlpOptions {
    /// How long a request may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.otlp_timeout)
    }
}

fn endpoint(text: &str) -> Result<Uri, String> {
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
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        otlp: OtlpOptions,
    }

    fn parse(words: &[&str]) -> Result<OtlpOptions, String> {
        let words = [&["program"], words].concat();
        let parsed = Program::try_parse_from(words);
        parsed.map(|it| it.otlp).map_err(|it| it.to_string())
    }

    #[test]
    fn a_receiver_is_given_by_its_url_and_sent_to_by_grpc_unless_said_otherwise() {
        let options = parse(&["--otlp", "https://collector.example:4317"]).unwrap();
        assert_eq!(options.otlp.unwrap().port_u16(), Some(4317));
        assert_eq!(options.otlp_protocol, Protocol::Grpc);
        let options = parse(&["--otlp-protocol", "http/protobuf"]).unwrap();
        assert_eq!(options.otlp_protocol, Protocol::HttpProtobuf);
        assert_eq!(parse(&[]).unwrap().otlp, None);
    }

    #[test]
    fn what_is_no_receiver_is_refused_with_an_example() {
        for url in [
            "collector:4317",
            "ftp://collector",
            "http:///v1",
            "http://user:word@collector",
        ] {
            let error = parse(&["--otlp", url]).unwrap_err();
            assert!(error.contains("https://HOST:PORT"), "{error}");
        }
        let error = parse(&["--otlp-cert", "a.pem"]).unwrap_err();
        assert!(error.contains("--otlp-key"), "{error}");
    }
}
