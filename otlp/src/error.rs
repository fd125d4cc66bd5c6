//! What goes wrong on the way to a receiver.

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
    /// The key isn't the certificate's, or a certificate is none.
    #[error("the certificate of --otlp can't be used: {0}")]
    Certificate(#[from] rustls::Error),
    /// There is nothing to know the receiver by.
    #[error(
        "this system trusts no certificates, so name those of the receiver with --otlp-ca ({0})"
    )]
    NoRoots(String),
    /// The host isn't one that a certificate could have.
    #[error("--otlp names {0:?}, which is no name of a host")]
    Host(String),
}

/// Why a request wasn't taken.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The receiver can't be reached, or can't take it for now.
    #[error("{why}")]
    Away {
        /// What it said, or the system.
        why: String,
        /// When it wants to be asked again, if it has said so.
        again: Option<Duration>,
    },
    /// The receiver would refuse it again.
    #[error("{why}")]
    Refused {
        /// What it said.
        why: String,
    },
}

impl SendError {
    /// A connection that failed.
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

/// An error with its causes, each said once.
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
