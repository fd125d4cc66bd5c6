//! An authority for a server and its clients, and the certificates that it signs: files of one folder.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use thiserror::Error;
use time::{Duration, OffsetDateTime};

use crate::cli::{NewClient, Validity};

/// Permissions of the folder, and of files in it.
const FOLDER: u32 = 0o700;
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
/// Names of files.
const CA: &str = "ca";
pub const SERVER: &str = "server";
pub const CLIENTS: &str = "clients.toml";
/// How long an authority is good.
const AUTHORITY: Duration = Duration::days(3650);
/// How much the clocks of two hosts may differ.
const SKEW: Duration = Duration::hours(1);

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file would be written over.
    #[error("{0} is there already: --replace makes another one")]
    Exists(PathBuf),
    /// A file can't be read or written.
    #[error("{file}: {cause}")]
    File { file: PathBuf, cause: io::Error },
    /// A certificate can't be made.
    #[error("a certificate can't be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file of the authority has the name.
    #[error("`{0}` is the name of files of the authority's: choose another one for the client")]
    Name(String),
}

/// A folder with an authority.
#[derive(Debug)]
pub struct Authority<'a> {
    folder: &'a Path,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    /// Makes an authority, in a folder that is made where it isn't there.
    ///
    /// # Errors
    /// [`CertificateError::Exists`] if there is one.
    pub fn new(folder: &'a Path) -> Result<Self, CertificateError> {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(FOLDER).create(folder);
        made.map_err(|cause| CertificateError::File {
            file: folder.to_owned(),
            cause,
        })?;
        let key = KeyPair::generate()?;
        let certificate = parameters(AUTHORITY)?.self_signed(&key)?;
        let pair = Pair::new(folder, CA);
        pair.write(&key.serialize_pem(), &certificate.pem(), false)?;
        let issuer = Issuer::new(parameters(AUTHORITY)?, key);
        Ok(Self { folder, issuer })
    }

    /// Opens the authority of a folder.
    ///
    /// # Errors
    /// [`CertificateError::File`] if there is none.
    pub fn open(folder: &'a Path) -> Result<Self, CertificateError> {
        let file = Pair::new(folder, CA).key;
        let key = fs::read_to_string(&file);
        let key = key.map_err(|cause| CertificateError::File { file, cause })?;
        // Only the authority's name and key are in what it signs.
        let issuer = Issuer::new(parameters(AUTHORITY)?, KeyPair::from_pem(&key)?);
        Ok(Self { folder, issuer })
    }

    /// Makes the certificate of a server that is reached by these names.
    ///
    /// # Errors
    /// [`CertificateError::Exists`] if it has one that isn't to be replaced.
    pub fn sign_server(
        &self,
        hosts: &[String],
        validity: Validity,
    ) -> Result<(), CertificateError> {
        let wanted = CertificateParams::new(hosts.to_vec())?;
        self.sign(
            SERVER,
            wanted,
            ExtendedKeyUsagePurpose::ServerAuth,
            validity,
        )
    }

    /// Makes the certificate of a client, and puts it on the list if it isn't there.
    ///
    /// # Errors
    /// [`CertificateError::Exists`] if it has one that isn't to be replaced; [`CertificateError::Name`].
    pub fn sign_client(
        &self,
        client: &NewClient,
        validity: Validity,
    ) -> Result<(), CertificateError> {
        let NewClient { name, role } = client;
        check_name(name)?;
        let mut wanted = CertificateParams::new(Vec::new())?;
        wanted
            .distinguished_name
            .push(DnType::CommonName, name.as_str());
        self.sign(name, wanted, ExtendedKeyUsagePurpose::ClientAuth, validity)?;
        let certificate = format!("certificate = \"{name}\"\n");
        self.list(|list| {
            (!list.contains(&certificate)).then(|| {
                format!("[[client]]\nname = \"{name}\"\n{certificate}role = \"{role}\"\n\n")
            })
        })
    }

    /// Makes the list of clients if it isn't there.
    ///
    /// # Errors
    /// [`CertificateError::File`].
    pub fn make_list(&self) -> Result<(), CertificateError> {
        self.list(|_| None)
    }

    /// Adds to the list of clients what `more` makes of it.
    fn list(&self, more: impl FnOnce(&str) -> Option<String>) -> Result<(), CertificateError> {
        let file = self.folder.join(CLIENTS);
        let mut options = OpenOptions::new();
        let opened = options.read(true).append(true).create(true).mode(PUBLIC);
        let added = opened.open(&file).and_then(|mut open| {
            let list = io::read_to_string(&open)?;
            open.write_all(more(&list).unwrap_or_default().as_bytes())
        });
        added.map_err(|cause| CertificateError::File { file, cause })
    }

    fn sign(
        &self,
        name: &str,
        mut wanted: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        validity: Validity,
    ) -> Result<(), CertificateError> {
        hold(&mut wanted, Duration::days(validity.days.into()));
        wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        wanted.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = wanted.signed_by(&key, &self.issuer)?;
        let pair = Pair::new(self.folder, name);
        pair.write(&key.serialize_pem(), &certificate.pem(), validity.replace)
    }
}

/// # Errors
/// [`CertificateError::Name`] for one of the authority's own files.
pub fn check_name(client: &str) -> Result<(), CertificateError> {
    match [CA, SERVER].contains(&client) {
        true => Err(CertificateError::Name(client.to_owned())),
        false => Ok(()),
    }
}

/// Returns the parameters of an authority.
fn parameters(good: Duration) -> Result<CertificateParams, CertificateError> {
    let mut authority = CertificateParams::new(Vec::new())?;
    hold(&mut authority, good);
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority
        .distinguished_name
        .push(DnType::CommonName, "vmprobe");
    Ok(authority)
}

/// Makes a certificate good from now on.
fn hold(wanted: &mut CertificateParams, good: Duration) {
    let now = OffsetDateTime::now_utc();
    wanted.not_before = now - SKEW;
    wanted.not_after = now + good;
}

/// The files of a key and its certificate.
#[derive(Debug)]
struct Pair {
    key: PathBuf,
    certificate: PathBuf,
}

impl Pair {
    fn new(folder: &Path, name: &str) -> Self {
        Self {
            key: folder.join(format!("{name}.key")),
            certificate: folder.join(format!("{name}.pem")),
        }
    }

    /// Writes both. Each is new or whole at any time, so that a server that reads them meanwhile finds a certificate.
    fn write(&self, key: &str, certificate: &str, replace: bool) -> Result<(), CertificateError> {
        for file in [&self.key, &self.certificate] {
            if !replace && file.exists() {
                return Err(CertificateError::Exists(file.clone()));
            }
        }
        write(&self.key, key, SECRET)?;
        write(&self.certificate, certificate, PUBLIC)
    }
}

fn write(file: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    let new = file.with_added_extension("new");
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(mode);
    let written = opened.open(&new).and_then(|mut open| {
        open.write_all(text.as_bytes())?;
        open.sync_all()?;
        fs::rename(&new, file)
    });
    written.map_err(|cause| CertificateError::File {
        file: file.to_owned(),
        cause,
    })
}
