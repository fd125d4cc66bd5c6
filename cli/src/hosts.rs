//! Lists of servers.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;
use vmprobe_client::fleet::Host;

use crate::client_configuration::{CredentialsError, NamedServer};

/// Why a list can't be used.
#[derive(Debug, Error)]
pub enum HostsError {
    /// It can't be read.
    #[error("can't read {}: {cause}", .file.display())]
    Read { file: PathBuf, cause: io::Error },
    /// It isn't such a list.
    #[error("{}: {cause}", .file.display())]
    Syntax {
        file: PathBuf,
        cause: Box<toml::de::Error>,
    },
    /// It has none.
    #[error("{} has no [[host]]", .file.display())]
    Empty { file: PathBuf },
    /// A name stands for two servers.
    #[error("{}: two hosts are called `{name}`", .file.display())]
    Twice { file: PathBuf, name: String },
    /// A file that an entry names can't be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A client has a certificate and its key, or neither.
    #[error("{}: tls-cert and tls-key of `{name}` belong together", .file.display())]
    Half { file: PathBuf, name: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(flatten)]
    common: Identity,
    #[serde(default, rename = "host")]
    hosts: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    name: Option<String>,
    server: String,
    #[serde(flatten)]
    own: Identity,
}

/// What a client knows servers by, and shows them. Files are relative to that of the list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Identity {
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

/// The servers of a list.
///
/// # Errors
/// See [`HostsError`].
pub fn read(file: &Path) -> Result<Vec<Host>, HostsError> {
    let text = fs::read_to_string(file).map_err(|cause| HostsError::Read {
        file: file.to_owned(),
        cause,
    })?;
    let list: List = toml::from_str(&text).map_err(|cause| HostsError::Syntax {
        file: file.to_owned(),
        cause: Box::new(cause),
    })?;
    if list.hosts.is_empty() {
        return Err(HostsError::Empty {
            file: file.to_owned(),
        });
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut names = HashSet::new();
    let mut hosts = Vec::new();
    for Entry { name, server, own } in list.hosts {
        let name = name.unwrap_or_else(|| server.clone());
        if !names.insert(name.clone()) {
            let file = file.to_owned();
            return Err(HostsError::Twice { file, name });
        }
        let mut named = list.common.at(server);
        named.identify(
            own.tls_cert.as_ref(),
            own.tls_key.as_ref(),
            own.token_file.as_ref(),
        );
        named.tls_ca = own.tls_ca.or(named.tls_ca);
        if named.tls_cert.is_some() != named.tls_key.is_some() {
            let file = file.to_owned();
            return Err(HostsError::Half { file, name });
        }
        named.find_beneath(folder);
        hosts.push(Host {
            name,
            credentials: named.credentials()?,
            endpoint: named.address,
        });
    }
    Ok(hosts)
}

impl Identity {
    /// That of a client of the server at this address.
    fn at(&self, address: String) -> NamedServer {
        NamedServer {
            address,
            tls_ca: self.tls_ca.clone(),
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            token_file: self.token_file.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Result<Vec<Host>, HostsError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in [("ca", "CA"), ("cert", "C"), ("key", "K"), ("token", "T\n")] {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let file = folder.path().join("hosts.toml");
        fs::write(&file, text).unwrap();
        read(&file)
    }

    #[test]
    fn hosts_have_names_and_what_all_have_in_common() {
        let hosts = listed(
            "tls-ca = 'ca'\ntls-cert = 'cert'\ntls-key = 'key'\n\
             [[host]]\nserver = 'https://a:7070'\n\
             [[host]]\nname = 'b'\nserver = 'https://b'\ntoken-file = 'token'\n",
        );
        let hosts = hosts.unwrap();
        let names: Vec<_> = hosts.iter().map(|host| &*host.name).collect();
        assert_eq!(names, ["https://a:7070", "b"]);
        let (a, b) = (&hosts[0].credentials, &hosts[1].credentials);
        assert_eq!(a.identity, Some((b"C".to_vec(), b"K".to_vec())));
        assert_eq!((&a.token, &a.ca), (&None, &Some(b"CA".to_vec())));
        // A token takes the place of the certificate.
        assert_eq!((b.token.as_deref(), &b.identity), (Some("T"), &None));
        assert_eq!(b.ca, a.ca);
    }

    #[test]
    fn a_list_that_cannot_be_used_is_refused_by_name() {
        for (text, expected) in [
            ("", "has no [[host]]"),
            ("tls-kez = 'a'", "tls-kez"),
            ("[[host]]\nname = 'a'", "server"),
            (
                "[[host]]\nserver = 'a'\n[[host]]\nserver = 'a'",
                "two hosts are called `a`",
            ),
            ("[[host]]\nserver = 'a'\ntls-key = 'key'", "belong together"),
            ("[[host]]\nserver = 'a'\ntls-ca = 'nowhere'", "nowhere"),
        ] {
            let refused = listed(text).unwrap_err().to_string();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
