//! Which server, and which VM.

use std::path::PathBuf;

use clap::Args;
use rustix::system::uname;
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

    /// Returns the server's address.
    pub fn endpoint(&self) -> Result<String, Failure> {
        Ok(self.named()?.address)
    }

    /// Returns the servers of these names, patterns of names, and addresses, each once.
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

    /// Returns the server, by the name of its host.
    pub fn host(&self) -> Result<Host, Failure> {
        let server = self.named()?;
        Ok(Host {
            name: host_name(&server.address),
            credentials: server.credentials()?,
            endpoint: server.address,
        })
    }

    /// Returns the server, with what the configuration knows of it.
    fn named(&self) -> Result<NamedServer, Failure> {
        let configuration = ClientConfiguration::of_user()?;
        let asked = self.server.clone().or(configuration.server.clone());
        let mut server = configuration.server(&asked.unwrap_or_else(default_endpoint));
        self.change(&mut server);
        Ok(server)
    }

    /// Replaces what the configuration knows by what options say.
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

/// Returns the name of a server's host: that of this host for a Unix socket.
fn host_name(address: &str) -> String {
    let Some((_, rest)) = address.split_once("://") else {
        return uname().nodename().to_string_lossy().into_owned();
    };
    let authority = rest.split('/').next().unwrap_or(rest);
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
    // In an IPv6 address without a port, no colon belongs to a port.
    let host = if port.ends_with(']') { authority } else { host };
    host.trim_matches(['[', ']']).to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_name_of_its_host() {
        for (address, expected) in [
            ("https://kvm1.example.org:7070", "kvm1.example.org"),
            ("http://10.0.0.5", "10.0.0.5"),
            ("https://[fd00::1]:7070/", "fd00::1"),
            ("https://[fd00::1]", "fd00::1"),
        ] {
            assert_eq!(host_name(address), expected, "{address}");
        }
        let own = host_name("unix:/run/vmprobe/vmprobed.sock");
        assert_eq!(own.as_bytes(), uname().nodename().to_bytes());
    }
}
