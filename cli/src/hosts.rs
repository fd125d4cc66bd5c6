//! Lists of servers.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;
use vmprobe_client::Credentials;
use vmprobe_client::fleet::Host;

/// Why a list can't be used.
#[derive(Debug, Error)]
pub enum HostsError {
    /// A file can't be read.
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
    let read = |file: &Path| {
        fs::read(file).map_err(|cause| HostsError::Read {
            file: file.to_owned(),
            cause,
        })
    };
    let text = String::from_utf8_lossy(&read(file)?).into_owned();
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
        let identity = own.or(&list.common);
        let at = |path: Option<PathBuf>| path.map(|path| read(&folder.join(path))).transpose();
        let shown = (at(identity.tls_cert)?, at(identity.tls_key)?);
        let credentials = Credentials {
            ca: at(identity.tls_ca)?,
            identity: match shown {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) => None,
                _ => {
                    let file = file.to_owned();
                    return Err(HostsError::Half { file, name });
                }
            },
            token: at(identity.token_file)?
                .map(|token| String::from_utf8_lossy(&token).trim().to_owned()),
        };
        hosts.push(Host {
            name,
            endpoint: server,
            credentials,
        });
    }
    Ok(hosts)
}

impl Identity {
    /// The same, with what others say where it says nothing. Who it is comes from one of both as a whole.
    fn or(self, others: &Self) -> Self {
        let says_who =
            self.tls_cert.is_some() || self.tls_key.is_some() || self.token_file.is_some();
        let who = if says_who { &self } else { others };
        Self {
            tls_cert: who.tls_cert.clone(),
            tls_key: who.tls_key.clone(),
            token_file: who.token_file.clone(),
            tls_ca: self.tls_ca.or_else(|| others.tls_ca.clone()),
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
