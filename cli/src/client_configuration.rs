//! The user's file of servers, so that a server is called by a name:
//!
//! ```toml
//! server = "kvm1"                  # without --server and VMPROBE_SERVER
//!
//! [defaults]                       # of servers that say nothing else
//! tls-ca = "ca.pem"                # paths count from the file's folder
//! tls-cert = "alice.pem"
//! tls-key = "alice.key"
//!
//! [servers.kvm1]
//! address = "https://kvm1.example.org:7070"
//!
//! [servers.lab]
//! address = "https://10.0.0.5:7070"
//! token-file = "lab.token"         # in the certificate's place
//! ```

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde::Deserialize;
use vmprobe_client::Credentials;
use wildmatch::WildMatch;

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
    #[error(
        "the configuration {} makes no sense: tls-cert and tls-key of `{server}` belong together",
        .file.display()
    )]
    Half { file: PathBuf, server: String },
}

/// No server has a name.
#[derive(Debug, thiserror::Error)]
#[error("no server of the configuration is called `{name}`; {}", servers(.known))]
pub struct NoSuchServer {
    name: String,
    known: Vec<String>,
}

fn servers(names: &[String]) -> String {
    match names {
        [] => "it has none (see docs/deployment.md, Configuration)".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    }
}

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientConfiguration {
    /// A name below, or an address.
    pub server: Option<String>,
    /// What holds for servers that say nothing else.
    pub defaults: Defaults,
    /// By their names.
    pub servers: BTreeMap<String, NamedServer>,
}

/// What a client knows servers by, and what it shows them.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Defaults {
    pub tls_ca: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
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
    /// Takes the values that this server doesn't have from the defaults. A certificate or a token of its own replaces
    /// both.
    fn complete(&mut self, defaults: &Defaults) {
        let Defaults {
            tls_ca,
            tls_cert,
            tls_key,
            token_file,
        } = defaults;
        if self.tls_ca.is_none() {
            self.tls_ca.clone_from(tls_ca);
        }
        if self.tls_cert.is_none() && self.tls_key.is_none() && self.token_file.is_none() {
            self.identify(tls_cert.as_ref(), tls_key.as_ref(), token_file.as_ref());
        }
    }

    /// Makes paths count from a folder.
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

    /// Sets who this client is, if any of these is given: by a certificate or by a token.
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

    /// Reads the files.
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
    /// Reads the user's file; the configuration is empty if there is none.
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
        for (name, server) in &mut all.servers {
            server.complete(&all.defaults);
            if server.tls_cert.is_some() != server.tls_key.is_some() {
                return Err(ClientConfigurationError::Half {
                    file: file.to_owned(),
                    server: name.clone(),
                });
            }
            server.find_beneath(base);
        }
        Ok(all)
    }

    /// Returns the servers whose names match a pattern with `*` and `?`, each with its name. An address stands for
    /// itself.
    ///
    /// # Errors
    /// There is none.
    pub fn matching(&self, wanted: &str) -> Result<Vec<(String, NamedServer)>, NoSuchServer> {
        let pattern = WildMatch::new(wanted);
        let servers = self.servers.iter();
        let found: Vec<_> = servers
            .filter(|(name, _)| pattern.matches(name))
            .map(|(name, server)| (name.clone(), server.clone()))
            .collect();
        if !found.is_empty() {
            return Ok(found);
        }
        // Each address of a server has a port or a scheme.
        if wanted.contains(':') {
            return Ok(vec![(wanted.to_owned(), self.server(wanted))]);
        }
        Err(NoSuchServer {
            name: wanted.to_owned(),
            known: self.servers.keys().cloned().collect(),
        })
    }

    /// Returns the server of a name. Any other text is taken for an address, of which nothing else is known.
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
        let text = "server = 'a'\n[servers.a]\naddress = 'https://a:1'\ntls-ca = 'ca.pem'\ntoken-file = '/t'";
        fs::write(&file, text).unwrap();
        let all = ClientConfiguration::read(&file).unwrap();
        assert_eq!(all.server.as_deref(), Some("a"));
        let found = all.server("a");
        assert_eq!(found.address, "https://a:1");
        assert_eq!(found.tls_ca, Some(folder.path().join("ca.pem")));
        assert_eq!(found.token_file, Some("/t".into()));
        let other = all.server("unix:/s");
        assert_eq!((&*other.address, other.tls_ca), ("unix:/s", None));
    }

    #[test]
    fn servers_have_the_defaults_unless_they_say_otherwise_and_are_found_by_patterns() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let text = "[defaults]\ntls-ca = 'ca'\ntls-cert = 'cert'\ntls-key = 'key'\n\
                    [servers.kvm1]\naddress = 'https://a:7070'\n\
                    [servers.kvm2]\naddress = 'https://b'\ntoken-file = 'token'\n\
                    [servers.lab]\naddress = 'unix:/s'\n";
        fs::write(&file, text).unwrap();
        for (name, content) in [("ca", "CA"), ("cert", "C"), ("key", "K"), ("token", "T\n")] {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let all = ClientConfiguration::read(&file).unwrap();
        let names = |wanted| -> Vec<_> {
            let found = all.matching(wanted).unwrap();
            found.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names("*"), ["kvm1", "kvm2", "lab"]);
        assert_eq!(names("kvm*"), ["kvm1", "kvm2"]);
        assert_eq!(names("https://c:1"), ["https://c:1"]);
        let refused = all.matching("kmv*").unwrap_err().to_string();
        assert!(refused.contains("there are: kvm1, kvm2, lab"), "{refused}");
        let credentials = |name| all.server(name).credentials().unwrap();
        let (first, second) = (credentials("kvm1"), credentials("kvm2"));
        assert_eq!(first.identity, Some((b"C".to_vec(), b"K".to_vec())));
        assert_eq!((&first.token, &first.ca), (&None, &Some(b"CA".to_vec())));
        // A token takes the place of the certificate.
        assert_eq!(
            (second.token.as_deref(), &second.identity),
            (Some("T"), &None)
        );
        assert_eq!(second.ca, first.ca);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        for (text, told) in [
            ("\nsevrer = 'a'", "line 2"),
            ("[servers.a]\naddress = 'x'\ntls_ca = 'y'", "line 3"),
            ("[servers.a]", "address"),
            ("[defaults]\ntls-kez = 'a'", "line 2"),
            (
                "[servers.a]\naddress = 'x'\ntls-key = 'k'",
                "of `a` belong together",
            ),
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
