//! The process that runs one VM: monitor, engine and services, for the server that has started it.
//!
//! The server is at the other end of the socket that is the process's standard input, and uses the same gRPC on it as
//! clients do. The process ends when the socket is closed, and its guest ends with it.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::thread::set_name;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio_stream::{StreamExt, once, pending};
use tonic::transport::server::Connected;
use vmm::confinement::{Confinement, ConfinementError, Role};
use vmprobe_proto::v1;
use vmprobe_proto::v1::console_service_server::ConsoleServiceServer;
use vmprobe_proto::v1::debug_service_server::DebugServiceServer;
use vmprobe_proto::v1::event_service_server::EventServiceServer;
use vmprobe_proto::v1::hit_service_server::HitServiceServer;
use vmprobe_proto::v1::probe_service_server::ProbeServiceServer;
use vmprobe_proto::v1::session_service_server::SessionServiceServer;
use vmprobe_proto::v1::symbol_service_server::SymbolServiceServer;
use vmprobe_proto::v1::vm_service_server::VmServiceServer;

use crate::files::{Folders, GrantedFiles};
use crate::limits::{self, Limits};
use crate::log::{Copies, LogOptions, ToServer};
use crate::one_vm::OneVm;
use crate::services::{Consoles, Debuggers, Events, Hits, Probes, Sessions, Symbols, Vms};
use crate::settings::Settings;

/// The exit code of `vmprobe run` for a guest whose monitor has failed.
pub const FAILED_EXIT_CODE: u32 = 7;
/// The program's name, in lists of processes.
pub(crate) const PROGRAM: &str = "vmprobed";
/// The most threads for work that blocks, whatever the limits are.
const MOST_THREADS: usize = 16 * 1024;
/// Threads for work that doesn't block.
const WORKERS: usize = 4;
/// How long the guest may take to end when the server is gone.
const END: Duration = Duration::from_secs(5);

/// Why a VM's process ended early.
#[derive(Debug, Error)]
pub enum VmProcessError {
    /// Standard input isn't a socket.
    #[error("standard input is no socket of a server's ({0}): `vmprobed` starts this by itself")]
    Connection(io::Error),
    /// The process can't be confined.
    #[error(transparent)]
    Confinement(#[from] ConfinementError),
    /// The runtime can't start.
    #[error("can't start the asynchronous runtime: {0}")]
    Runtime(io::Error),
    /// The transport failed.
    #[error("the gRPC transport failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// What the process is started with.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The VM's name
    pub name: String,
    /// A folder that the guest reads
    #[arg(long, value_name = "FOLDER")]
    pub read: Vec<PathBuf>,
    /// A folder that the guest changes
    #[arg(long, value_name = "FOLDER")]
    pub write: Vec<PathBuf>,
    /// A folder where the guest's socket is
    #[arg(long, value_name = "FOLDER")]
    pub sockets: Vec<PathBuf>,
    /// The files that it opens
    #[command(flatten)]
    pub granted: GrantedFiles,
    /// MiB of a kernel's file, or an initramfs
    #[arg(long, value_name = "MIB")]
    pub max_file: u64,
    /// Probes of the VM
    #[arg(long, value_name = "N")]
    pub max_probes: usize,
    /// Calls at the same time
    #[arg(long, value_name = "N")]
    pub max_calls: usize,
    /// Streams and waiting calls at the same time
    #[arg(long, value_name = "N")]
    pub max_streams: usize,
    /// Events that wait for one client
    #[arg(long, value_name = "N")]
    pub event_queue: usize,
    /// Sessions of the VM
    #[arg(long, value_name = "N")]
    pub max_sessions: usize,
    /// MiB of one request
    #[arg(long, value_name = "MIB")]
    pub max_request: usize,
    /// Where kernels that were unpacked are kept
    #[arg(long, value_name = "FOLDER")]
    pub kernel_cache: Option<PathBuf>,
    /// Clients may change what runs in the guest
    #[arg(long)]
    pub allow_changes: bool,
    /// No thread has a filter of system calls
    #[arg(long)]
    pub no_seccomp: bool,
    /// Standard output is a socket of the server's, which takes copies of what is logged
    #[arg(long)]
    pub copy_log: bool,
    /// What it logs
    #[command(flatten)]
    pub log: LogOptions,
}

impl Arguments {
    /// Returns the arguments for the VM that a request asks for.
    pub fn of(request: &v1::CreateVmRequest, settings: &Settings, granted: GrantedFiles) -> Self {
        let limits = &settings.limits;
        let devices = request.devices.clone().unwrap_or_default();
        let is_written = |share: &v1::Share| share.mode() == v1::ShareMode::ReadWrite;
        let (write, read): (Vec<_>, Vec<_>) = devices.shares.into_iter().partition(is_written);
        let folders = |shares: Vec<v1::Share>| {
            let paths = shares.into_iter().map(|share| share.path.into());
            paths.collect()
        };
        let socket = devices.vsock.map(|vsock| PathBuf::from(vsock.path));
        let sockets = socket.iter().filter_map(|path| path.parent());
        Self {
            name: request.name.clone(),
            read: folders(read),
            write: folders(write),
            sockets: sockets.map(here).collect(),
            granted,
            max_file: limits.file_mib,
            max_probes: limits.probes,
            max_calls: limits.calls,
            max_streams: limits.streams,
            event_queue: limits.event_queue,
            max_sessions: limits.sessions,
            max_request: limits.request_mib,
            kernel_cache: settings.kernel_cache.clone(),
            allow_changes: settings.changes,
            no_seccomp: !settings.seccomp,
            copy_log: settings.records.is_some(),
            log: settings.log.clone(),
        }
    }

    /// Returns where copies of its log go.
    pub fn copies(&self) -> Option<Copies> {
        self.copy_log.then(|| Copies::ToServer(ToServer::default()))
    }

    /// Returns the arguments as words behind the program's name.
    pub fn to_command_line(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["vm".into()];
        let numbers = [
            ("--max-file", self.max_file),
            ("--max-probes", self.max_probes as u64),
            ("--max-calls", self.max_calls as u64),
            ("--max-streams", self.max_streams as u64),
            ("--event-queue", self.event_queue as u64),
            ("--max-sessions", self.max_sessions as u64),
            ("--max-request", self.max_request as u64),
        ];
        for (option, number) in numbers {
            words.extend([option.into(), number.to_string().into()]);
        }
        for (option, paths) in [
            ("--read", &*self.read),
            ("--write", &*self.write),
            ("--sockets", &*self.sockets),
            ("--kernel-cache", self.kernel_cache.as_slice()),
        ] {
            for path in paths {
                words.extend([option.into(), path.into()]);
            }
        }
        words.extend(self.granted.to_command_line());
        let flags = [
            ("--allow-changes", self.allow_changes),
            ("--no-seccomp", self.no_seccomp),
            ("--copy-log", self.copy_log),
        ];
        let set = flags.iter().filter(|(_, is_set)| *is_set);
        words.extend(set.map(|(option, _)| option.into()));
        words.extend(self.log.to_command_line().into_iter().map(OsString::from));
        words.extend(["--".into(), self.name.clone().into()]);
        words
    }

    /// Returns the process's settings. Limits that are missing here are enforced by the server.
    pub fn settings(&self) -> Settings {
        Settings {
            limits: Limits {
                file_mib: self.max_file,
                probes: self.max_probes,
                calls: self.max_calls,
                streams: self.max_streams,
                event_queue: self.event_queue,
                sessions: self.max_sessions,
                request_mib: self.max_request,
                ..Limits::default()
            },
            changes: self.allow_changes,
            seccomp: !self.no_seccomp,
            // The folders for this VM are in `granted`.
            files: Folders::default(),
            images: None,
            kernel_cache: self.kernel_cache.clone(),
            log: self.log.clone(),
            // The server keeps the records.
            records: None,
        }
    }
}

/// Returns the path of a folder. The folder of a file in the working folder has an empty name.
fn here(folder: &Path) -> PathBuf {
    match folder.as_os_str().is_empty() {
        true => ".".into(),
        false => folder.into(),
    }
}

/// Runs a VM for the server at the other end of standard input, until the server goes. The process has only one thread
/// yet.
///
/// # Errors
/// See [`VmProcessError`].
pub fn run(arguments: &Arguments) -> Result<(), VmProcessError> {
    // Else the name would be that of the path by which it was started, `/proc/self/exe`.
    let _it_is_only_shown = CString::new(PROGRAM).map(|name| set_name(&name));
    let connection = io::stdin().as_fd().try_clone_to_owned();
    let connection = StdUnixStream::from(connection.map_err(VmProcessError::Connection)?);
    connection
        .set_nonblocking(true)
        .map_err(VmProcessError::Connection)?;
    let granted = &arguments.granted;
    let (access, held) = granted.access(&arguments.read, &arguments.write, &arguments.sockets);
    let confinement = Confinement::prepare(&access, !arguments.no_seccomp)?;
    drop(held);
    // The runtime's threads are started by this thread, and are confined as it is.
    confinement.enter(Role::Service)?;
    let (name, settings) = (arguments.name.clone(), arguments.settings());
    let granted = granted.clone();
    let limits = &settings.limits;
    let threads = limits.calls.saturating_add(limits.streams);
    let workers = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(WORKERS));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        // A call or a stream takes at most one thread that may block, so none waits for another's thread.
        .max_blocking_threads(threads.clamp(1, MOST_THREADS))
        .enable_all()
        .build()
        .map_err(VmProcessError::Runtime)?;
    let served = runtime.block_on(async {
        let connection = UnixStream::from_std(connection).map_err(VmProcessError::Connection)?;
        serve(
            connection,
            Arc::new(OneVm::new(name, settings, granted, confinement)),
        )
        .await
    });
    runtime.shutdown_background();
    served
}

/// Serves a VM on a connection until the connection is closed. Then ends the guest.
///
/// # Errors
/// [`VmProcessError::Transport`].
pub(crate) async fn serve(connection: UnixStream, vm: Arc<OneVm>) -> Result<(), VmProcessError> {
    let (closed, close) = oneshot::channel();
    let connection = Connection {
        stream: connection,
        _closed: closed,
    };
    let shared = || Arc::clone(&vm);
    let request = vm.max_request_bytes();
    let router = tonic::transport::Server::builder()
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        // The server limits the calls, and is trusted with how it ends them.
        .max_concurrent_streams(Some(u32::MAX))
        .http2_max_pending_accept_reset_streams(Some(usize::MAX))
        .add_service(VmServiceServer::new(Vms(shared())).max_decoding_message_size(request))
        .add_service(ProbeServiceServer::new(Probes(shared())).max_decoding_message_size(request))
        .add_service(EventServiceServer::new(Events(shared())))
        .add_service(HitServiceServer::new(Hits(shared())))
        .add_service(DebugServiceServer::new(Debuggers(shared())))
        .add_service(SessionServiceServer::new(Sessions(shared())))
        .add_service(SymbolServiceServer::new(Symbols(shared())))
        .add_service(ConsoleServiceServer::new(Consoles(shared())));
    let only = once(Ok::<_, io::Error>(connection)).chain(pending());
    let served = router.serve_with_incoming_shutdown(only, async {
        // The sender is dropped without a message, together with the connection.
        let _ = close.await;
    });
    let served = served.await;
    if let Some(machine) = vm.machine() {
        machine.kill();
        if tokio::time::timeout(END, machine.ended()).await.is_err() {
            tracing::error!("the guest did not end in {END:?}; it ends with this process");
        }
    }
    Ok(served?)
}

/// A connection that reports its end by dropping `_closed`.
struct Connection {
    stream: UnixStream,
    _closed: oneshot::Sender<()>,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::log::LogFormat;

    #[derive(Debug, Parser)]
    enum Program {
        Vm(#[command(flatten)] Arguments),
    }

    #[test]
    fn a_process_gets_the_folders_and_limits_of_its_vm() {
        let share = |path: &str, mode: v1::ShareMode| v1::Share {
            path: path.into(),
            mode: mode.into(),
            ..Default::default()
        };
        let request = v1::CreateVmRequest {
            name: "-a".into(),
            devices: Some(v1::Devices {
                shares: vec![
                    share("/r", v1::ShareMode::Unspecified),
                    share("/w", v1::ShareMode::ReadWrite),
                ],
                vsock: Some(v1::Vsock {
                    path: "socket".into(),
                    cid: 3,
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let settings = Settings {
            limits: Limits {
                probes: 7,
                sessions: 8,
                request_mib: 9,
                ..Limits::default()
            },
            changes: true,
            seccomp: false,
            files: Folders::default(),
            images: None,
            kernel_cache: Some("/k".into()),
            log: LogOptions {
                log_format: LogFormat::Json,
                log_level: Some("info".into()),
            },
            records: None,
        };
        let granted = GrantedFiles {
            files: vec!["/f".into()],
            images: vec!["a=/images/=".parse().unwrap()],
            copies: Some("/images".into()),
            ..GrantedFiles::default()
        };
        let words = Arguments::of(&request, &settings, granted.clone()).to_command_line();
        let words = [vec!["vmprobed".into()], words].concat();
        let Program::Vm(arguments) = Program::try_parse_from(words).unwrap();
        assert_eq!(arguments.name, "-a");
        assert_eq!(arguments.settings(), settings);
        assert_eq!(arguments.granted, granted);
        let folders = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(arguments.read, folders(&["/r"]));
        assert_eq!(arguments.write, folders(&["/w"]));
        assert_eq!(arguments.sockets, folders(&["."]));
    }
}
