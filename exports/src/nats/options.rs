//! The NATS server, and this client's credentials.

use std::fmt;
use std::path::PathBuf;

/// A NATS server or cluster, and the stream there.
#[derive(Clone, Default)]
pub struct NatsOptions {
    /// Addresses, such as `nats://bus:4222`, `tls://bus`, `nats://user:password@bus`. The first that answers is used.
    pub servers: Vec<String>,
    /// The stream, which is made if none has this name.
    pub stream: String,
    /// A file of a user's JWT and seed (`.creds`).
    pub credentials: Option<PathBuf>,
    /// The seed of a user's NKey.
    pub nkey: Option<String>,
    /// A token.
    pub token: Option<String>,
    /// The certificates that may have signed the server's, in PEM, besides those that this system trusts.
    pub ca: Option<PathBuf>,
    /// This client's certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl fmt::Debug for NatsOptions {
    /// Leaves the secrets out, also the addresses, which may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
