//! A connection to the receiver.

use std::io;
use std::sync::Arc;

use http::uri::Scheme;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::OtlpError;
use crate::options::OtlpOptions;

/// A stream of bytes in both directions.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Makes connections.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    options: OtlpOptions,
    host: String,
    port: u16,
    is_secure: bool,
    /// The protocol's name in the handshake (RFC 7301, 6).
    protocol: &'static [u8],
}

impl Dialer {
    /// Makes a dialer for a receiver, with the files that the options name.
    ///
    /// # Errors
    /// The files can't be used.
    pub(crate) fn new(options: &OtlpOptions, protocol: &'static [u8]) -> Result<Self, OtlpError> {
        let uri = &options.endpoint;
        let is_secure = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().unwrap_or_default();
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let dialer = Self {
            options: options.clone(),
            host,
            port: uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 }),
            is_secure,
            protocol,
        };
        if is_secure {
            dialer.name()?;
            dialer.config()?;
        }
        Ok(dialer)
    }

    /// Connects. Reads the files again, so that a changed file is used from the next connection on.
    ///
    /// # Errors
    /// The error of the system or the receiver.
    pub(crate) async fn dial(&self) -> io::Result<Box<dyn Io>> {
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        stream.set_nodelay(true)?;
        if !self.is_secure {
            return Ok(Box::new(stream));
        }
        let connector = TlsConnector::from(Arc::new(self.config()?));
        Ok(Box::new(connector.connect(self.name()?, stream).await?))
    }

    fn name(&self) -> Result<ServerName<'static>, OtlpError> {
        let name = ServerName::try_from(self.host.clone());
        name.map_err(|_| OtlpError::Host(self.host.clone()))
    }

    fn config(&self) -> Result<ClientConfig, OtlpError> {
        let options = &self.options;
        let mut roots = RootCertStore::empty();
        match &options.ca {
            Some(file) => {
                for certificate in certificates(file)? {
                    roots.add(certificate)?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    let why: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
                    return Err(OtlpError::NoRoots(why.join(", ")));
                }
            }
        }
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match &options.identity {
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|cause| OtlpError::File {
                    file: key.clone(),
                    cause,
                })?;
                builder.with_client_auth_cert(chain, key)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![self.protocol.to_vec()];
        Ok(config)
    }
}

fn certificates(file: &std::path::Path) -> Result<Vec<CertificateDer<'static>>, OtlpError> {
    let unusable = |cause| OtlpError::File {
        file: file.to_owned(),
        cause,
    };
    let found = CertificateDer::pem_file_iter(file).map_err(unusable)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(unusable)?;
    match found.is_empty() {
        true => Err(OtlpError::Empty(file.to_owned())),
        false => Ok(found),
    }
}
