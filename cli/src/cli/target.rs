//! Which server, and which VM.

use std::path::PathBuf;

use clap::Args;
use vmprobe_client::fleet::Host;
use vmprobe_client::{Client, default_endpoint};

use crate::client_configuration::{ClientConfiguration, NamedServer};
use crate::failure::Failure;

/// A server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The server: unix:PATH, https://HOST:PORT, http://HOST:PORT in plain text, or a name of the configuration
    /// [default: the configuration's, or the Unix socket of root's server, or of this user's]
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
    /// Connects to it.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let server = self.named()?;
        let credentials = server.credentials()?;
        Ok(Client::connect_with(&server.address, &credentials).await?)
    }

    /// The server's address.
    pub fn endpoint(&self) -> Result<String, Failure> {
        Ok(self.named()?.address)
    }

    /// The servers of these names, patterns of names, and addresses, each once.
    pub fn hosts(&self, wanted: &[String]) -> Result<Vec<Host>, Failure> {
        let configuration = ClientConfiguration::of_user()?;
        let mut hosts: Vec<Host> = Vec::new();
        for wanted in wanted {
            for (name, mut server) in configuration.matching(wanted)? {
                if hosts.iter().any(|host| host.name == name) {
                    continue;
                }
                self.change(&mut server);
                hosts.push(Host {
                    name,
                    credentials: server.credentials()?,
                    endpoint: server.address,
                });
            }
        }
        Ok(hosts)
    }

    /// The server, with what the configuration knows of it.
    fn named(&self) -> Result<NamedServer, Failure> {
        let configuration = ClientConfiguration::of_user()?;
        let asked = self.server.clone().or(configuration.server.clone());
        let mut server = configuration.server(&asked.unwrap_or_else(default_endpoint));
        self.change(&mut server);
        Ok(server)
    }

    /// What options say takes the place of what the configuration knows.
    fn change(&self, server: &mut NamedServer) {
        if self.tls_ca.is_some() {
            server.tls_ca.clone_from(&self.tls_ca);
        }
        // clap sees to it that a certificate and its key come together.
        server.identify(
            self.tls_cert.as_ref(),
            self.tls_key.as_ref(),
            self.token_file.as_ref(),
        );
    }
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
