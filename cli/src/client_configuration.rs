//! The user's file of servers, so that a server is called by a name:
//!
//! ```toml
//! server = "kvm1"                  # without --server and VMPROBE_SERVER
//!
//! [servers.kvm1]
//! address = "https://kvm1.example.org:7070"
//! tls-ca = "ca.pem"                # paths count from the file's folder
//! tls-cert = "alice.pem"
//! tls-key = "alice.key"
//!
//! [servers.lab]
//! address = "https://10.0.0.5:7070"
//! token-file = "lab.token"
//! ```

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde::Deserialize;
use vmprobe_client::Credentials;

/// The variable that names another file.
const VARIABLE: &str = "VMPROBE_CONFIG";
/// The file's place in the folder of the user's configuration (XDG Base Directory Specification).
const PLACE: &str = "vmprobe/config.toml";

/// Why the file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientConfigurationError {
    #[error("can't read the configuration {}: {cause}", .file.display())]
    Read { file: PathBuf, cause: io::Error },
    #[error("the configuration {} makes no sense: {cause}", .file.display())]
    Format {
        file: PathBuf,
        cause: Box<toml::de::Error>,
    },
}

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientConfiguration {
    /// A name below, or an address.
    pub server: Option<String>,
    /// By their names.
    pub servers: BTreeMap<String, NamedServer>,
}

/// How a server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NamedServer {
    pub address: String,
    pub tls_ca: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
}

/// A file that says who this client is, or by what it knows a server, can't be read.
#[derive(Debug, thiserror::Error)]
#[error("can't read {}, which says who this client is: {cause}", .file.display())]
pub struct CredentialsError {
    file: PathBuf,
    cause: io::Error,
}

impl NamedServer {
    /// Has paths count from a folder.
    pub fn find_beneath(&mut self, base: &Path) {
        let Self {
            address: _,
            tls_ca,
            tls_cert,
            tls_key,
            token_file,
        } = self;
        let paths = [tls_ca, tls_cert, tls_key, token_file];
        for path in paths.into_iter().flatten() {
            *path = base.join(&*path);
        }
    }

    /// Has this client be there whom others say, if any of these is given: by a certificate or by a token.
    pub fn identify(
        &mut self,
        tls_cert: Option<&PathBuf>,
        tls_key: Option<&PathBuf>,
        token_file: Option<&PathBuf>,
    ) {
        if tls_cert.is_some() || tls_key.is_some() || token_file.is_some() {
            self.tls_cert = tls_cert.cloned();
            self.tls_key = tls_key.cloned();
            self.token_file = token_file.cloned();
        }
    }

    /// What the files have.
    ///
    /// # Errors
    /// One of them can't be read.
    pub fn credentials(&self) -> Result<Credentials, CredentialsError> {
        let read = |file: &Option<PathBuf>| {
            let read = file.as_ref().map(|file| {
                fs::read(file).map_err(|cause| CredentialsError {
                    file: file.clone(),
                    cause,
                })
            });
            read.transpose()
        };
        let token = read(&self.token_file)?;
        Ok(Credentials {
            ca: read(&self.tls_ca)?,
            identity: read(&self.tls_cert)?.zip(read(&self.tls_key)?),
            token: token.map(|token| String::from_utf8_lossy(&token).trim().to_owned()),
        })
    }
}

impl ClientConfiguration {
    /// Reads the user's file; without one nothing is said.
    ///
    /// # Errors
    /// See [`ClientConfigurationError`]. A file that a variable names has to be there.
    pub fn of_user() -> Result<Self, ClientConfigurationError> {
        if let Some(file) = env::var_os(VARIABLE) {
            return Self::read(Path::new(&file));
        }
        let absolute = |name| {
            let path = env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let folder =
            absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
        let Some(folder) = folder else {
            return Ok(Self::default());
        };
        match Self::read(&folder.join(PLACE)) {
            Err(ClientConfigurationError::Read { cause, .. })
                if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(Self::default())
            }
            read => read,
        }
    }

    fn read(file: &Path) -> Result<Self, ClientConfigurationError> {
        let text = fs::read_to_string(file).map_err(|cause| ClientConfigurationError::Read {
            file: file.to_owned(),
            cause,
        })?;
        let mut all: Self =
            toml::from_str(&text).map_err(|cause| ClientConfigurationError::Format {
                file: file.to_owned(),
                cause: Box::new(cause),
            })?;
        let base = file.parent().unwrap_or(Path::new(""));
        for server in all.servers.values_mut() {
            server.find_beneath(base);
        }
        Ok(all)
    }

    /// The server of a name; of an address, or no name, what is known of none: its address alone.
    pub fn server(&self, asked: &str) -> NamedServer {
        let found = self.servers.get(asked).cloned();
        found.unwrap_or_else(|| NamedServer {
            address: asked.to_owned(),
            ..NamedServer::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_server_of_the_file_and_its_paths_count_from_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let text =
            "server = 'a'\n[servers.a]\naddress = 'https://a:1'\ntls-ca = 'ca.pem'\ntls-key = '/k'";
        fs::write(&file, text).unwrap();
        let all = ClientConfiguration::read(&file).unwrap();
        assert_eq!(all.server.as_deref(), Some("a"));
        let found = all.server("a");
        assert_eq!(found.address, "https://a:1");
        assert_eq!(found.tls_ca, Some(folder.path().join("ca.pem")));
        assert_eq!(found.tls_key, Some("/k".into()));
        let other = all.server("unix:/s");
        assert_eq!((&*other.address, other.tls_ca), ("unix:/s", None));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        for (text, told) in [
            ("\nsevrer = 'a'", "line 2"),
            ("[servers.a]\naddress = 'x'\ntls_ca = 'y'", "line 3"),
            ("[servers.a]", "address"),
        ] {
            fs::write(&file, text).unwrap();
            let error = ClientConfiguration::read(&file).unwrap_err().to_string();
            assert!(
                error.contains("config.toml") && error.contains(told),
                "{error}"
            );
        }
    }
}
