//! The server's TLS: its own certificate, and what it requires of clients.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::access::Reloaded;

/// The name of HTTP/2 in the handshake (RFC 9113, 3.2).
pub(super) const HTTP2: &[u8] = b"h2";
/// The name of HTTP/1.1 there (RFC 7301, 6).
pub(super) const HTTP1: &[u8] = b"http/1.1";

/// The server's certificate, and those that sign clients' certificates, each a file in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, with the intermediate ones up to one that clients know.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates by which clients' certificates must be signed. `None` if clients have tokens, and no
    /// certificates.
    pub client_ca: Option<PathBuf>,
}

/// Why TLS isn't possible.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file can't be read, or isn't what it should be.
    #[error("{file} can't be used for TLS: {cause}")]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        cause: PemError,
    },
    /// A file has no certificate.
    #[error("{0} has no certificate in PEM")]
    Empty(PathBuf),
    /// The key isn't the certificate's, or a certificate is invalid.
    #[error("the server's certificate can't be used: {0}")]
    Certificate(#[from] rustls::Error),
    /// Certificates of clients can't be checked.
    #[error("certificates of clients can't be checked: {0}")]
    Clients(#[from] VerifierBuilderError),
}

impl TlsFiles {
    /// Loads the files for a protocol of this name, and loads them again when they are replaced.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(&self, protocol: &'static [u8]) -> Result<Reloaded<ServerConfig>, TlsError> {
        let files = [&self.certificate, &self.key].into_iter();
        let files = files.chain(&self.client_ca).cloned().collect();
        let this = self.clone();
        Reloaded::new(files, move || this.config(protocol))
    }

    fn config(&self, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.map_err(|cause| unusable(&self.key, cause))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    roots.add(certificate)?;
                }
                // A client without a certificate may have a token. If it has neither, its calls are refused with the
                // reason.
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
            }
        };
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|cause| unusable(file, cause))?;
    match found.is_empty() {
        true => Err(TlsError::Empty(file.to_owned())),
        false => Ok(found),
    }
}

fn unusable(file: &Path, cause: PemError) -> TlsError {
    TlsError::File {
        file: file.to_owned(),
        cause,
    }
}

/// Returns the names of a certificate's subject: its alternative names, then its common names (RFC 5280, 4.2.1.6 and
/// 4.1.2.6).
pub(super) fn names(certificate: &CertificateDer<'_>) -> io::Result<Vec<String>> {
    let parsed = X509Certificate::from_der(certificate);
    let (_, certificate) = parsed.map_err(io::Error::other)?;
    let alternative = certificate.subject_alternative_name();
    let alternative = alternative.map_err(io::Error::other)?;
    let mut names: Vec<String> = Vec::new();
    for name in alternative.iter().flat_map(|it| &it.value.general_names) {
        match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => {
                names.push((*name).to_owned());
            }
            _ => {}
        }
    }
    let common = certificate.subject().iter_common_name();
    names.extend(common.filter_map(|name| name.as_str().ok().map(str::to_owned)));
    Ok(names)
}
