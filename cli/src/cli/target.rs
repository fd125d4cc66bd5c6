//! Which server, and which VM.

use clap::Args;
use vmprobe_client::DEFAULT_ENDPOINT;

/// A server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The server's address
    #[arg(long, value_name = "URL", env = "VMPROBE_SERVER", default_value = DEFAULT_ENDPOINT)]
    pub server: String,
}

/// A VM on a server.
#[derive(Debug, Args)]
pub struct TargetArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// The VM; may be left out when the server has only one
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,
}
