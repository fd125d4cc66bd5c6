//! `vmprobe certs`: certificates for a server and its clients.

use std::iter;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use crate::certificates::{Authority, CLIENTS, CertificateError, SERVER, check_name};
use crate::cli::{CertsClient, CertsCommand, CertsInit, CertsServer, NewClient};
use crate::failure::Failure;
use crate::output::print;

/// The names by which a server is reached by default.
const HERE: [&str; 2] = ["localhost", "127.0.0.1"];

/// A certificate that was made, with what belongs to it.
#[derive(Debug, Serialize)]
struct Made {
    /// The client; none is the server.
    client: Option<String>,
    role: Option<&'static str>,
    certificate: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

impl Made {
    fn server(dir: &Path) -> Self {
        Self::of(dir, SERVER, None)
    }

    fn client(dir: &Path, client: &NewClient) -> Self {
        Self::of(dir, &client.name, Some(client))
    }

    fn of(dir: &Path, name: &str, client: Option<&NewClient>) -> Self {
        Self {
            client: client.map(|client| client.name.clone()),
            role: client.map(|client| client.role),
            certificate: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
            ca: dir.join("ca.pem"),
        }
    }

    /// Returns the command line of a client that uses it.
    fn used(&self, host: &str) -> String {
        format!(
            "vmprobe vm list --server https://{host}:7070 --tls-ca {} --tls-cert {} --tls-key {}",
            self.ca.display(),
            self.certificate.display(),
            self.key.display()
        )
    }
}

pub fn certs(command: &CertsCommand) -> Result<(), Failure> {
    let (made, lines, format) = match command {
        CertsCommand::Init(wanted) => {
            let (made, lines) = init(wanted)?;
            (made, lines, wanted.format)
        }
        CertsCommand::Server(wanted) => {
            let made = server(wanted)?;
            (vec![made], Vec::new(), wanted.format)
        }
        CertsCommand::Client(wanted) => {
            let made = client(wanted)?;
            let line = made.used(HERE[0]);
            (vec![made], vec![line], wanted.format)
        }
    };
    match format.is_json() {
        true => print(made.iter().map(|made| json!(made).to_string())),
        false => print(lines),
    }
}

/// Makes all. Returns what was made, and how it is used.
fn init(wanted: &CertsInit) -> Result<(Vec<Made>, Vec<String>), CertificateError> {
    for client in &wanted.clients {
        check_name(&client.name)?;
    }
    let authority = Authority::new(&wanted.dir)?;
    let hosts = hosts(&wanted.hosts);
    authority.sign_server(&hosts, wanted.validity())?;
    authority.make_list()?;
    for client in &wanted.clients {
        authority.sign_client(client, wanted.validity())?;
    }
    let server = Made::server(&wanted.dir);
    let mut lines = vec![
        "# The server:".to_owned(),
        format!(
            "vmprobed --listen 0.0.0.0:7070 --tls-cert {} --tls-key {} --tls-client-ca {} --clients {}",
            server.certificate.display(),
            server.key.display(),
            server.ca.display(),
            wanted.dir.join(CLIENTS).display()
        ),
    ];
    let clients = wanted.clients.iter();
    let clients: Vec<_> = clients.map(|it| Made::client(&wanted.dir, it)).collect();
    if let Some(client) = clients.first() {
        lines.push("# A client, with its files:".to_owned());
        lines.push(client.used(&hosts[0]));
    }
    let made = iter::once(server).chain(clients).collect();
    Ok((made, lines))
}

fn server(wanted: &CertsServer) -> Result<Made, CertificateError> {
    let authority = Authority::open(&wanted.dir)?;
    authority.sign_server(&hosts(&wanted.hosts), wanted.validity)?;
    Ok(Made::server(&wanted.dir))
}

fn client(wanted: &CertsClient) -> Result<Made, CertificateError> {
    let authority = Authority::open(&wanted.dir)?;
    authority.sign_client(&wanted.client, wanted.validity)?;
    Ok(Made::client(&wanted.dir, &wanted.client))
}

fn hosts(given: &[String]) -> Vec<String> {
    match given.is_empty() {
        true => HERE.map(str::to_owned).to_vec(),
        false => given.to_vec(),
    }
}
