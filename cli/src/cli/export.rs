//! The arguments of `vmprobe export`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use vmprobe_otlp::OtlpArgs;

use super::format::FormatArgs;
use super::target::ServerArgs;
use super::tracing::TracedArgs;

pub const EXPORT_EXAMPLES: &str = "\
Events go from the VMs of one server, or of several servers, to all places that are given, in the
order of their times, until Ctrl-C. See docs/exports.md for what they look like there.

Examples:
  vmprobe export --nats nats://bus:4222 'p:open do_sys_openat2 name=$arg2:ustring'
  vmprobe export --parquet /srv/events 'p:open do_sys_openat2 name=$arg2:ustring'
  vmprobe export --otlp https://collector:4317 'p:open do_sys_openat2 name=$arg2:ustring'
  vmprobe export --hosts 'kvm*' --vm 'web-*' --nats tls://bus --nats-creds probes.creds 'r vfs_fsync_range'";

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("to").args(["nats", "parquet", "otlp"]).required(true).multiple(true))]
pub struct Export {
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Only VMs whose names match this pattern, with * and ?
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    pub vm: String,
    /// Of several servers at once, in the place of --server: those of the configuration whose names match, and
    /// addresses. See docs/fleets.md
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// How long events wait for those of a server that is silent
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    pub window: u32,
    /// How long the end waits for servers that have not confirmed all events yet
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub drain: u32,
    #[command(flatten)]
    pub traced: TracedArgs,
    #[command(flatten)]
    pub nats: NatsArgs,
    #[command(flatten)]
    pub parquet: ParquetArgs,
    #[command(flatten)]
    pub otlp: OtlpArgs,
}

/// Parquet files.
#[derive(Debug, Args)]
pub struct ParquetArgs {
    /// To Parquet files below this folder, host=HOST/date=DATE/hour=HOUR/*.parquet
    #[arg(long, value_name = "FOLDER")]
    pub parquet: Option<PathBuf>,
    /// Close a file that has so many MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub parquet_size: u32,
    /// Close a file so many seconds after its first event: so old are events at most that readers don't see
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pub parquet_age: u32,
}

/// A stream of NATS.
#[derive(Debug, Args)]
pub struct NatsArgs {
    /// To a stream of NATS JetStream: `nats://[USER:PASSWORD@]HOST[:PORT]`, `tls://HOST`; several servers of a cluster
    /// with commas
    #[arg(long, value_name = "URL", value_delimiter = ',', env = "VMPROBE_NATS")]
    pub nats: Vec<String>,
    /// The stream; it is made if there is none of this name
    #[arg(long, value_name = "NAME", default_value = "VMPROBE")]
    pub nats_stream: String,
    /// A file of a user's JWT and seed
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub nats_creds: Option<PathBuf>,
    /// A file with the seed of a user's NKey
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub nats_nkey_file: Option<PathBuf>,
    /// A file with a token
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub nats_token_file: Option<PathBuf>,
    /// What the server's certificate is signed by, in PEM; the connection is by TLS then
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub nats_ca: Option<PathBuf>,
    /// The certificate that this client shows, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["nats", "nats_key"])]
    pub nats_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "nats_cert")]
    pub nats_key: Option<PathBuf>,
}
