//! `vmprobe certs`: certificates for a server and its clients.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use thiserror::Error;

use crate::cli::{CertsClient, CertsCommand, CertsInit, NewClient};
use crate::failure::Failure;
use crate::output::print;

/// Permissions of the folder, and of keys.
const FOLDER: u32 = 0o700;
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
/// Names of files.
const CA: &str = "ca";
const SERVER: &str = "server";
const CLIENTS: &str = "clients.toml";
/// What a server is reached by where nobody says it.
const HERE: [&str; 2] = ["localhost", "127.0.0.1"];

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum CertsError {
    /// A file can't be read, or written. None is written over.
    #[error("{file}: {cause}")]
    File { file: String, cause: io::Error },
    /// A certificate can't be made.
    #[error("a certificate can't be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file of the authority has the name.
    #[error("`{0}` is the name of files of the authority's: choose another one for the client")]
    Name(String),
}

pub fn certs(command: &CertsCommand) -> Result<(), Failure> {
    let lines = match command {
        CertsCommand::Init(wanted) => init(wanted)?,
        CertsCommand::Client(wanted) => add(wanted)?,
    };
    print(lines)
}

fn init(wanted: &CertsInit) -> Result<Vec<String>, CertsError> {
    for client in &wanted.clients {
        check_name(client)?;
    }
    let folder = Folder(&wanted.dir);
    let made = DirBuilder::new()
        .recursive(true)
        .mode(FOLDER)
        .create(&wanted.dir);
    made.map_err(|cause| folder.failed("", cause))?;
    let key = KeyPair::generate()?;
    let authority = authority()?;
    let certificate = authority.self_signed(&key)?;
    folder.write(CA, "key", &key.serialize_pem(), SECRET)?;
    folder.write(CA, "pem", &certificate.pem(), PUBLIC)?;
    let issuer = Issuer::new(authority, key);
    let hosts = match wanted.hosts.is_empty() {
        true => HERE.map(str::to_owned).to_vec(),
        false => wanted.hosts.clone(),
    };
    let first = hosts[0].clone();
    folder.sign(
        &issuer,
        SERVER,
        CertificateParams::new(hosts)?,
        ExtendedKeyUsagePurpose::ServerAuth,
    )?;
    folder.write_clients("")?;
    for client in &wanted.clients {
        folder.add(&issuer, client)?;
    }
    let path = |name: &str| wanted.dir.join(name).display().to_string();
    let mut lines = vec![
        "# The server:".to_owned(),
        format!(
            "vmprobed --listen 0.0.0.0:7070 --tls-cert {} --tls-key {} --tls-client-ca {} --clients {}",
            path("server.pem"),
            path("server.key"),
            path("ca.pem"),
            path(CLIENTS)
        ),
    ];
    if let Some(client) = wanted.clients.first() {
        lines.push("# A client, with its files:".to_owned());
        lines.push(used(&wanted.dir, &client.name, &first));
    }
    Ok(lines)
}

fn add(wanted: &CertsClient) -> Result<Vec<String>, CertsError> {
    check_name(&wanted.client)?;
    let folder = Folder(&wanted.dir);
    let key = KeyPair::from_pem(&folder.read("ca.key")?)?;
    let issuer = Issuer::new(authority()?, key);
    folder.add(&issuer, &wanted.client)?;
    Ok(vec![used(&wanted.dir, &wanted.client.name, HERE[0])])
}

/// What there is to say of the authority: the same each time, so that its key is all that is kept.
fn authority() -> Result<CertificateParams, CertsError> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority
        .distinguished_name
        .push(DnType::CommonName, "vmprobe");
    Ok(authority)
}

fn check_name(client: &NewClient) -> Result<(), CertsError> {
    match [CA, SERVER].contains(&&*client.name) {
        true => Err(CertsError::Name(client.name.clone())),
        false => Ok(()),
    }
}

fn used(dir: &Path, client: &str, host: &str) -> String {
    let dir = dir.display();
    format!(
        "vmprobe vm list --server https://{host}:7070 --tls-ca {dir}/ca.pem --tls-cert {dir}/{client}.pem \
         --tls-key {dir}/{client}.key"
    )
}

/// The folder of certificates.
struct Folder<'a>(&'a Path);

impl Folder<'_> {
    fn failed(&self, name: &str, cause: io::Error) -> CertsError {
        let file = self.0.join(name).display().to_string();
        CertsError::File { file, cause }
    }

    fn read(&self, name: &str) -> Result<String, CertsError> {
        fs::read_to_string(self.0.join(name)).map_err(|cause| self.failed(name, cause))
    }

    /// Writes a new file: a key that is there is somebody's.
    fn write(&self, name: &str, kind: &str, text: &str, mode: u32) -> Result<(), CertsError> {
        let name = format!("{name}.{kind}");
        let mut options = OpenOptions::new();
        let opened = options
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(self.0.join(&name));
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|cause| self.failed(&name, cause))
    }

    fn write_clients(&self, text: &str) -> Result<(), CertsError> {
        let mut options = OpenOptions::new();
        let path: PathBuf = self.0.join(CLIENTS);
        let opened = options.append(true).create(true).mode(PUBLIC).open(path);
        let written = opened.and_then(|mut file: File| file.write_all(text.as_bytes()));
        written.map_err(|cause| self.failed(CLIENTS, cause))
    }

    fn add(&self, issuer: &Issuer<'_, KeyPair>, client: &NewClient) -> Result<(), CertsError> {
        let mut wanted = CertificateParams::new(Vec::new())?;
        wanted
            .distinguished_name
            .push(DnType::CommonName, client.name.as_str());
        self.sign(
            issuer,
            &client.name,
            wanted,
            ExtendedKeyUsagePurpose::ClientAuth,
        )?;
        let NewClient { name, role } = client;
        self.write_clients(&format!(
            "[[client]]\nname = \"{name}\"\ncertificate = \"{name}\"\nrole = \"{role}\"\n\n"
        ))
    }

    fn sign(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        name: &str,
        mut wanted: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<(), CertsError> {
        wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        wanted.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = wanted.signed_by(&key, issuer)?;
        self.write(name, "key", &key.serialize_pem(), SECRET)?;
        self.write(name, "pem", &certificate.pem(), PUBLIC)
    }
}
