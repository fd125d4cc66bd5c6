//! `vmprobe certs`: certificates for a server and its clients.

use std::path::Path;

use crate::certificates::{Authority, CLIENTS, CertificateError, SERVER, check_name};
use crate::cli::{CertsClient, CertsCommand, CertsInit, CertsServer};
use crate::failure::Failure;
use crate::output::print;

/// What a server is reached by where nobody says it.
const HERE: [&str; 2] = ["localhost", "127.0.0.1"];

pub fn certs(command: &CertsCommand) -> Result<(), Failure> {
    let lines = match command {
        CertsCommand::Init(wanted) => init(wanted)?,
        CertsCommand::Server(wanted) => server(wanted)?,
        CertsCommand::Client(wanted) => client(wanted)?,
    };
    print(lines)
}

fn init(wanted: &CertsInit) -> Result<Vec<String>, CertificateError> {
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
    let path = |name: &str| wanted.dir.join(name).display().to_string();
    let mut lines = vec![
        "# The server:".to_owned(),
        format!(
            "vmprobed --listen 0.0.0.0:7070 --tls-cert {} --tls-key {} --tls-client-ca {} --clients {}",
            path(&format!("{SERVER}.pem")),
            path(&format!("{SERVER}.key")),
            path("ca.pem"),
            path(CLIENTS)
        ),
    ];
    if let Some(client) = wanted.clients.first() {
        lines.push("# A client, with its files:".to_owned());
        lines.push(used(&wanted.dir, &client.name, &hosts[0]));
    }
    Ok(lines)
}

fn server(wanted: &CertsServer) -> Result<Vec<String>, CertificateError> {
    let authority = Authority::open(&wanted.dir)?;
    authority.sign_server(&hosts(&wanted.hosts), wanted.validity)?;
    Ok(Vec::new())
}

fn client(wanted: &CertsClient) -> Result<Vec<String>, CertificateError> {
    let authority = Authority::open(&wanted.dir)?;
    authority.sign_client(&wanted.client, wanted.validity)?;
    Ok(vec![used(&wanted.dir, &wanted.client.name, HERE[0])])
}

fn hosts(given: &[String]) -> Vec<String> {
    match given.is_empty() {
        true => HERE.map(str::to_owned).to_vec(),
        false => given.to_vec(),
    }
}

fn used(dir: &Path, client: &str, host: &str) -> String {
    let dir = dir.display();
    format!(
        "vmprobe vm list --server https://{host}:7070 --tls-ca {dir}/ca.pem --tls-cert {dir}/{client}.pem \
         --tls-key {dir}/{client}.key"
    )
}
