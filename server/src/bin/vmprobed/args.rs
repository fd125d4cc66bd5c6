//! The arguments.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{CommandFactory, Parser};
use vmprobe_command_line::{ConfigurationError, Shell, with_file};
use vmprobe_proto::socket::default_socket;
use vmprobe_server::{
    Folders, Limits, ListenAddress, LogOptions, METRICS_PROBES, Records, ServeOptions, Settings,
    TelemetryOptions, TlsFiles, VmProgram, vm_process,
};

const EXIT_CODES: &str = "\
Prints a line for each address, `listening on ADDRESS` or `metrics on ADDRESS`, on standard output;
logs go to standard error.

A configuration file has the long names of the options as its keys, in TOML:
  listen = [\"unix:/run/vmprobe/vmprobed.sock\"]
  max-vms = 16
Variables take the place of what is there, and the command line the place of both. Files that it names are
read anew when they change; the file itself is read once.

Exit codes:
  0  ended by SIGTERM or SIGINT, guests killed; --check-config: the configuration is good
  1  failed; the reason is on standard error
  2  wrong arguments or a wrong configuration, or the address can't be listened on
  doctor: 0 when this host runs guests, 1 when it doesn't";

/// Serves VMs and probes over gRPC.
#[derive(Debug, Parser)]
#[command(name = "vmprobed", version, after_help = EXIT_CODES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: Serve,
}

impl Args {
    /// Options of the command line only.
    const NOT_IN_FILE: [&str; 2] = ["check_config", "exit_with_stdin"];

    /// Returns the arguments of the command line, completed by those of the file that it names.
    ///
    /// # Errors
    /// The file can't be used. Wrong words on the command line end the process, as clap does.
    pub fn read(words: impl Iterator<Item = OsString>) -> Result<Self, ConfigurationError> {
        let words = words.collect();
        let words = with_file(&Self::command(), words, "config", &Self::NOT_IN_FILE)?;
        Ok(Self::parse_from(words))
    }

    /// Returns the options of the log.
    pub fn log(&self) -> &LogOptions {
        match &self.command {
            Some(Command::Vm(arguments)) => &arguments.log,
            _ => &self.serve.log,
        }
    }

    /// Returns the VM's name, if the process is that of one VM.
    pub fn vm(&self) -> Option<&str> {
        match &self.command {
            Some(Command::Vm(arguments)) => Some(&arguments.name),
            _ => None,
        }
    }
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Say whether this host can run guests, and what is missing
    Doctor {
        /// The report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a script that completes the words of this program's command line
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Manual {
        /// The folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Run one VM for the server that is at the other end of standard input
    #[command(hide = true)]
    Vm(Box<vm_process::Arguments>),
}

#[derive(Debug, clap::Args)]
pub struct Serve {
    /// A file with options, in TOML. Without it none is read
    #[arg(long, value_name = "FILE", env = "VMPROBED_CONFIG")]
    pub config: Option<PathBuf>,
    /// Only say whether the options and the files that they name can be used
    #[arg(long)]
    pub check_config: bool,
    /// Where to listen: unix:PATH, or IP:PORT, of which port 0 is any free one (repeatable, or with
    /// commas) [default: a Unix socket,
    /// `/run/vmprobe/vmprobed.sock` for root, else `vmprobe/vmprobed.sock` in `$XDG_RUNTIME_DIR`]
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "VMPROBED_LISTEN",
        value_delimiter = ','
    )]
    pub listen: Vec<ListenAddress>,
    /// Permissions of the Unix sockets, in octal. Who may write to one may do all
    #[arg(
        long,
        value_name = "MODE",
        env = "VMPROBED_SOCKET_MODE",
        default_value = "600",
        value_parser = octal
    )]
    pub socket_mode: u32,
    /// The server's certificate for those who come by TCP, with its chain, in PEM. It is read anew when it changes
    #[arg(long, value_name = "FILE", env = "VMPROBED_TLS_CERT", requires_all = ["tls_key", "clients"])]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "VMPROBED_TLS_KEY",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,
    /// What clients' certificates must be signed by, in PEM; without it clients have tokens
    #[arg(
        long,
        value_name = "FILE",
        env = "VMPROBED_TLS_CLIENT_CA",
        requires = "tls_cert"
    )]
    pub tls_client_ca: Option<PathBuf>,
    /// The list of those who come by TCP, in TOML: who may do what to which VMs. It is read anew when it changes
    #[arg(
        long,
        value_name = "FILE",
        env = "VMPROBED_CLIENTS",
        requires = "tls_cert"
    )]
    pub clients: Option<PathBuf>,
    /// Add a line of JSON to this file for each call that changes something
    #[arg(long, value_name = "FILE", env = "VMPROBED_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,
    /// Take clients that come to an address of the loopback interface in plain text: any process of this host may do
    /// all
    #[arg(long, env = "VMPROBED_PLAIN_TEXT", conflicts_with = "tls_cert")]
    pub plain_text: bool,
    /// Answer by HTTP at this address with metrics for Prometheus (`/metrics`) and a page that shows what VMs do (`/`),
    /// for those who may look at VMs: unix:PATH, or IP:PORT, under the same conditions as `--listen` (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Vec<ListenAddress>,
    /// Probes of each VM that metrics tell one by one: those that were registered first
    #[arg(long, value_name = "N", env = "VMPROBED_METRICS_PROBES", default_value_t = METRICS_PROBES,
        value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub metrics_probes: u32,
    /// End when standard input closes: with the process that started this one
    #[arg(long)]
    pub exit_with_stdin: bool,
    /// Let clients change what runs in the guests, not only watch it: set registers, skip functions and return
    /// values of their own (`--override`), write memory. A wrong change crashes a guest or damages its data, at any
    /// time later; what a skipped function would have locked, counted or freed isn't
    #[arg(long, env = "VMPROBED_ALLOW_CHANGES")]
    pub allow_changes: bool,
    /// A folder below which clients may name files: kernels, initramfs, symbols, disks and shares that guests only read
    /// (repeatable). Without it and --writable-files, clients of this server's own user and root's may name any file,
    /// and others none
    #[arg(
        long,
        value_name = "FOLDER",
        env = "VMPROBED_FILES",
        value_delimiter = ':'
    )]
    pub files: Vec<PathBuf>,
    /// A folder below which clients may also name what guests change: disks, shares, and sockets (repeatable)
    #[arg(
        long,
        value_name = "FOLDER",
        env = "VMPROBED_WRITABLE_FILES",
        value_delimiter = ':'
    )]
    pub writable_files: Vec<PathBuf>,
    /// Where images are kept that clients hand over; without it they can hand none over. One server at a time can have
    /// it
    #[arg(long, value_name = "FOLDER", env = "VMPROBED_IMAGES")]
    pub images: Option<PathBuf>,
    /// A file with VMs that are made when the server starts, with their probes, in TOML: docs/operations.md
    #[arg(long, value_name = "FILE", env = "VMPROBED_VMS")]
    pub vms: Option<PathBuf>,
    /// Let the threads of VMs make any system call. A guest that breaks out of its VM can do more then: only for
    /// finding out what a filter forbids
    #[arg(long, env = "VMPROBED_NO_SECCOMP")]
    pub no_seccomp: bool,
    /// Where kernels that were unpacked are kept, so that the next VM with one starts sooner: at most 1 GiB. It may be
    /// deleted at any time [default: vmprobe/unpacked-kernels in `$XDG_CACHE_HOME` or ~/.cache]
    #[arg(
        long,
        value_name = "FOLDER",
        env = "VMPROBED_KERNEL_CACHE",
        conflicts_with = "no_kernel_cache"
    )]
    pub kernel_cache: Option<PathBuf>,
    /// Unpack a kernel for each VM
    #[arg(long, env = "VMPROBED_NO_KERNEL_CACHE")]
    pub no_kernel_cache: bool,
    #[command(flatten)]
    pub log: LogOptions,
    #[command(flatten)]
    pub telemetry: TelemetryOptions,
    #[command(flatten)]
    pub most: Most,
}

/// Limits; what goes beyond them is refused with `RESOURCE_EXHAUSTED`. Each can be set by its variable
/// as well, which `vmprobe run` hands on to its server
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct Most {
    /// VMs, ended ones included
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_VMS", default_value_t = Limits::default().vms)]
    pub max_vms: usize,
    /// Memory of all guests together; they take what they use of it
    #[arg(long, value_name = "MIB", env = "VMPROBED_MAX_GUEST_MEMORY",
        default_value_t = Limits::default().guest_memory_mib)]
    pub max_guest_memory: u64,
    /// A kernel's file, or an initramfs
    #[arg(long, value_name = "MIB", env = "VMPROBED_MAX_FILE",
        default_value_t = Limits::default().file_mib)]
    pub max_file: u64,
    /// VMs that are made at the same time; others wait
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_CREATIONS",
        default_value_t = Limits::default().creations)]
    pub max_creations: usize,
    /// Probes of one VM
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_PROBES",
        default_value_t = Limits::default().probes)]
    pub max_probes: usize,
    /// Calls at the same time
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_CALLS",
        default_value_t = Limits::default().calls)]
    pub max_calls: usize,
    /// Streams and waiting calls at the same time
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_STREAMS",
        default_value_t = Limits::default().streams)]
    pub max_streams: usize,
    /// Events that wait for one client, and that are kept for one that may come back; later ones are
    /// lost, and counted. 65,536 take up to 24 MiB
    #[arg(long, value_name = "N", env = "VMPROBED_EVENT_QUEUE",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..),
        default_value_t = Limits::default().event_queue)]
    pub event_queue: usize,
    /// One image that a client hands over
    #[arg(long, value_name = "MIB", env = "VMPROBED_MAX_IMAGE",
        default_value_t = Limits::default().image_mib)]
    pub max_image: u64,
    /// All images, with uploads under way and private copies of disks
    #[arg(long, value_name = "MIB", env = "VMPROBED_MAX_IMAGES",
        default_value_t = Limits::default().images_mib)]
    pub max_images: u64,
    /// One client's images, with its uploads and copies
    #[arg(long, value_name = "MIB", env = "VMPROBED_MAX_CLIENT_IMAGES",
        default_value_t = Limits::default().client_images_mib)]
    pub max_client_images: u64,
    /// Images of all clients
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_IMAGE_COUNT",
        default_value_t = Limits::default().image_count)]
    pub max_image_count: usize,
    /// Uploads of images at the same time
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_UPLOADS",
        default_value_t = Limits::default().uploads)]
    pub max_uploads: usize,
    /// Sessions of one VM, those included whose clients were cut off
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_SESSIONS",
        default_value_t = Limits::default().sessions)]
    pub max_sessions: usize,
    /// Connections of clients at the same time
    #[arg(long, value_name = "N", env = "VMPROBED_MAX_CONNECTIONS",
        default_value_t = Limits::default().connections)]
    pub max_connections: usize,
    /// One request; each call may take so much memory until its request is read
    #[arg(long, value_name = "MIB", env = "VMPROBED_MAX_REQUEST",
        default_value_t = Limits::default().request_mib)]
    pub max_request: usize,
    /// An upload of which nothing comes for so long ends
    #[arg(long, value_name = "SECONDS", env = "VMPROBED_UPLOAD_TIMEOUT",
        default_value_t = Limits::default().upload_seconds)]
    pub upload_timeout: u64,
}

impl Serve {
    fn tls(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_ca: self.tls_client_ca.clone(),
        })
    }

    /// Returns the server's options. Copies of the log go to `records`.
    pub fn options(&self, records: Option<Records>) -> ServeOptions {
        ServeOptions {
            listen: match self.listen.is_empty() {
                true => vec![ListenAddress::Unix(default_socket())],
                false => self.listen.clone(),
            },
            socket_mode: self.socket_mode,
            tls: self.tls(),
            clients: self.clients.clone(),
            audit_log: self.audit_log.clone(),
            vms: self.vms.clone(),
            plain_text: self.plain_text,
            metrics: self.metrics.clone(),
            metrics_probes: self.metrics_probes,
            telemetry: self.telemetry.clone(),
            settings: Settings {
                limits: Limits {
                    vms: self.most.max_vms,
                    guest_memory_mib: self.most.max_guest_memory,
                    file_mib: self.most.max_file,
                    creations: self.most.max_creations,
                    probes: self.most.max_probes,
                    calls: self.most.max_calls,
                    streams: self.most.max_streams,
                    event_queue: self.most.event_queue,
                    image_mib: self.most.max_image,
                    images_mib: self.most.max_images,
                    client_images_mib: self.most.max_client_images,
                    image_count: self.most.max_image_count,
                    uploads: self.most.max_uploads,
                    sessions: self.most.max_sessions,
                    connections: self.most.max_connections,
                    request_mib: self.most.max_request,
                    upload_seconds: self.most.upload_timeout,
                },
                changes: self.allow_changes,
                seccomp: !self.no_seccomp,
                files: Folders {
                    read: self.files.clone(),
                    write: self.writable_files.clone(),
                },
                images: self.images.clone(),
                kernel_cache: match (self.no_kernel_cache, &self.kernel_cache) {
                    (true, _) => None,
                    (false, Some(folder)) => Some(folder.clone()),
                    (false, None) => default_kernel_cache(),
                },
                log: self.log.clone(),
                records,
            },
            // This very program, even if another one was installed in its place.
            program: VmProgram::Process("/proc/self/exe".into()),
        }
    }
}

/// Returns the default folder, or `None` for a process without a home.
fn default_kernel_cache() -> Option<PathBuf> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|it| it.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("vmprobe/unpacked-kernels"))
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "give permissions in octal, such as 600 or 660".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_bad_address_is_refused_with_an_example() {
        let error = Args::try_parse_from(["vmprobed", "--listen", "localhost"]).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:7070"), "{error}");
        let error = Args::try_parse_from(["vmprobed", "--socket-mode", "9"]).unwrap_err();
        assert!(error.to_string().contains("octal"), "{error}");
    }
}
