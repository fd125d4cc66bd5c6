//! The owner's list of clients, a file in TOML:
//!
//! ```toml
//! [[client]]
//! name = "alice"
//! certificate = "alice.example.org"
//! role = "probe"
//! vms = ["web-*", "db"]
//!
//! [[client]]
//! name = "nightly"
//! token-sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! role = "control"
//! ```
//!
//! A client that connects by TLS has to be in the list. It is known by a name of its certificate (the common name of
//! the subject, or one of its alternative names), or by the SHA-256 of a token, so that the file has no secret.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use thiserror::Error;
use wildmatch::WildMatch;

use super::caller::{Account, Caller};
use super::role::Role;

/// Bytes of a SHA-256.
const DIGEST: usize = 32;

/// Why a list of clients can't be used.
#[derive(Debug, Error)]
pub enum ClientsError {
    /// The list can't be read.
    #[error("the list of clients {file} can't be read: {cause}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The file isn't TOML of this form.
    #[error("the list of clients {file} isn't one: {cause}")]
    Format {
        /// The file.
        file: PathBuf,
        /// The place, and the error there.
        cause: Box<toml::de::Error>,
    },
    /// A client's entry is invalid.
    #[error("client `{name}` of the list {file}: {reason}")]
    Client {
        /// The file.
        file: PathBuf,
        /// The client.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    client: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    name: String,
    certificate: Option<String>,
    token_sha256: Option<String>,
    role: Role,
    vms: Option<Vec<String>>,
}

/// The clients of the list.
#[derive(Debug, Default)]
pub struct Clients {
    by_certificate: HashMap<String, Caller>,
    by_token: HashMap<[u8; DIGEST], Caller>,
}

impl Clients {
    /// Reads a list.
    ///
    /// # Errors
    /// See [`ClientsError`].
    pub fn read(file: &Path) -> Result<Self, ClientsError> {
        let text = fs::read_to_string(file).map_err(|cause| ClientsError::Read {
            file: file.to_owned(),
            cause,
        })?;
        Self::parse(&text, file)
    }

    fn parse(text: &str, file: &Path) -> Result<Self, ClientsError> {
        let list: List = toml::from_str(text).map_err(|cause| ClientsError::Format {
            file: file.to_owned(),
            cause: Box::new(cause),
        })?;
        let mut clients = Self::default();
        for entry in list.client {
            let name = entry.name.clone();
            clients.add(entry).map_err(|reason| ClientsError::Client {
                file: file.to_owned(),
                name,
                reason,
            })?;
        }
        Ok(clients)
    }

    fn add(&mut self, entry: Entry) -> Result<(), &'static str> {
        let patterns = entry.vms.unwrap_or_else(|| vec!["*".to_owned()]);
        if patterns.is_empty() {
            return Err("it has no VMs: leave `vms` out for all of them");
        }
        let name: Arc<str> = entry.name.into();
        let caller = Caller {
            account: Account::Client(Arc::clone(&name)),
            name,
            role: entry.role,
            vms: patterns
                .iter()
                .map(|pattern| WildMatch::new(pattern))
                .collect(),
        };
        let is_new = match (entry.certificate, entry.token_sha256) {
            (Some(name), None) => self.by_certificate.insert(name, caller).is_none(),
            (None, Some(digest)) => {
                let digest = from_hex(&digest).ok_or(
                    "`token-sha256` isn't 64 hexadecimal digits, as `sha256sum` prints them",
                )?;
                self.by_token.insert(digest, caller).is_none()
            }
            _ => return Err("it has either `certificate` or `token-sha256`"),
        };
        match is_new {
            true => Ok(()),
            false => Err("another client has the same certificate or token"),
        }
    }

    /// Returns the client with a certificate of these names: the first that is known.
    pub(super) fn with_certificate(&self, names: &[String]) -> Option<&Caller> {
        names.iter().find_map(|name| self.by_certificate.get(name))
    }

    /// Returns the client with this token.
    pub(super) fn with_token(&self, token: &str) -> Option<&Caller> {
        let digest: [u8; DIGEST] = Sha256::digest(token).into();
        self.by_token.get(&digest)
    }
}

fn from_hex(text: &str) -> Option<[u8; DIGEST]> {
    let mut digest = [0; DIGEST];
    if text.len() != 2 * DIGEST || !text.is_ascii() {
        return None;
    }
    for (byte, place) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[place..place + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 of `test`.
    const TEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn parse(text: &str) -> Result<Clients, ClientsError> {
        Clients::parse(text, Path::new("clients.toml"))
    }

    #[test]
    fn clients_are_known_by_a_certificate_s_names_or_by_a_token() {
        let clients = parse(&format!(
            "[[client]]\nname = 'a'\ncertificate = 'a.example'\nrole = 'probe'\nvms = ['web-*', 'db']\n\
             [[client]]\nname = 'b'\ntoken-sha256 = '{TEST}'\nrole = 'observe'\n"
        ));
        let clients = clients.unwrap();
        let names = ["other".to_owned(), "a.example".to_owned()];
        let a = clients.with_certificate(&names).unwrap();
        assert_eq!((&*a.name, a.role), ("a", Role::Probe));
        assert!(a.may_use("web-1") && a.may_use("db") && !a.may_use("db2") && !a.may_use(""));
        let b = clients.with_token("test").unwrap();
        assert_eq!((&*b.name, b.role), ("b", Role::Observe));
        assert!(b.may_use("anything"));
        assert!(clients.with_token("Test").is_none());
        assert!(clients.with_certificate(&["a".to_owned()]).is_none());
    }

    #[test]
    fn what_is_wrong_with_a_list_is_told() {
        let client = |rest: &str| format!("[[client]]\nname = 'a'\nrole = 'probe'\n{rest}");
        let twice = client("certificate = 'a'\n").repeat(2);
        for (text, expected) in [
            ("clients = 1".to_owned(), "unknown field"),
            (client("role = 'probe'"), "clients.toml"),
            (client(""), "either `certificate` or `token-sha256`"),
            (client("token-sha256 = '12'"), "64 hexadecimal digits"),
            (
                client(&format!("token-sha256 = '{}'", "ä".repeat(32))),
                "64 hexadecimal digits",
            ),
            (client("certificate = 'a'\nvms = []"), "no VMs"),
            (twice, "another client"),
            (
                "[[client]]\nname = 'a'\ncertificate = 'a'\nrole = 'root'".to_owned(),
                "root",
            ),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
