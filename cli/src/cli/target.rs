//! Which server, and which VM.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use vmprobe_client::{Client, Credentials, default_endpoint};

use crate::failure::Failure;

/// A server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The server: unix:PATH, https://HOST:PORT, or http://HOST:PORT in plain text [default: the Unix socket of root's
    /// server, or of this user's]
    #[arg(long, value_name = "ADDRESS", env = "VMPROBE_SERVER")]
    pub server: Option<String>,
    /// What the certificate of a server that is reached by TLS is signed by, in PEM
    #[arg(long, value_name = "FILE", env = "VMPROBE_TLS_CA")]
    pub tls_ca: Option<PathBuf>,
    /// The certificate that this client shows, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "VMPROBE_TLS_CERT",
        requires = "tls_key"
    )]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "VMPROBE_TLS_KEY",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,
    /// A file with the token that this client shows
    #[arg(
        long,
        value_name = "FILE",
        env = "VMPROBE_TOKEN_FILE",
        conflicts_with = "tls_cert"
    )]
    pub token_file: Option<PathBuf>,
}

impl ServerArgs {
    /// The server's address.
    pub fn endpoint(&self) -> String {
        self.server.clone().unwrap_or_else(default_endpoint)
    }

    /// Connects to it.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let credentials = self.credentials()?;
        Ok(Client::connect_with(&self.endpoint(), &credentials).await?)
    }

    fn credentials(&self) -> Result<Credentials, Failure> {
        let ca = self.tls_ca.as_deref().map(read).transpose()?;
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let token = self.token_file.as_deref().map(read).transpose()?;
        let token = token.map(|token| String::from_utf8_lossy(&token).trim().to_owned());
        Ok(Credentials {
            ca,
            identity,
            token,
        })
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(file).map_err(|cause| Failure::Credentials {
        file: file.to_owned(),
        cause,
    })
}

/// A VM on a server.
#[derive(Debug, Args)]
pub struct TargetArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// The VM; may be left out when the server has only one
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,
}
