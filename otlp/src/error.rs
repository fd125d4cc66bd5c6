//! Errors of sending to a receiver.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::pem::Error as PemError;

/// Why nothing can be sent with these options.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// A file can't be read, or isn't what it should be.
    #[error("{file} can't be used for the TLS of --otlp: {cause}", file = .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        cause: PemError,
    },
    /// A file has no certificate.
    #[error("{path} has no certificate in PEM", path = .0.display())]
    Empty(PathBuf),
    /// The key isn't the certificate's, or a certificate is invalid.
    #[error("the certificate of --otlp can't be used: {0}")]
    Certificate(#[from] rustls::Error),
    /// There are no certificates by which to verify the receiver.
    #[error(
        "this system trusts no certificates, so name those of the receiver with --otlp-ca ({0})"
    )]
    NoRoots(String),
    /// The host's name can't be in a certificate.
    #[error("--otlp names {0:?}, which is no name of a host")]
    Host(String),
}

/// Why a request wasn't taken.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The receiver can't be reached, or can't take the request for now.
    #[error("{why}")]
    Away {
        /// The message of the receiver or of the system.
        why: String,
        /// When the receiver wants to be asked again, if it has said so.
        again: Option<Duration>,
    },
    /// The receiver would refuse the request again.
    #[error("{why}")]
    Refused {
        /// The receiver's message.
        why: String,
    },
}

impl SendError {
    /// Returns the error for a failed connection.
    pub(crate) fn lost(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Away {
            why: chain(error),
            again: None,
        }
    }
}

impl From<OtlpError> for io::Error {
    fn from(error: OtlpError) -> Self {
        Self::other(error)
    }
}

/// Returns an error's text with its causes, each mentioned once.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}
