//! Which NATS, and who this client is there.

use std::fmt;
use std::path::PathBuf;

/// A NATS server or cluster, and the stream there.
#[derive(Clone, Default)]
pub struct NatsOptions {
    /// Addresses, such as `nats://bus:4222`, `tls://bus`, `nats://user:password@bus`. The first that answers is taken.
    pub servers: Vec<String>,
    /// The stream; it is made if there is none of the name.
    pub stream: String,
    /// A file of a user's JWT and seed (`.creds`).
    pub credentials: Option<PathBuf>,
    /// The seed of a user's NKey.
    pub nkey: Option<String>,
    /// A token.
    pub token: Option<String>,
    /// What the server's certificate is signed by, in PEM, besides what this system trusts.
    pub ca: Option<PathBuf>,
    /// This client's certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl fmt::Debug for NatsOptions {
    /// Without secrets; an address may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
