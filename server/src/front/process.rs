//! The process of a VM, as the server's front process sees it.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use vmprobe_proto::v1;
use vmprobe_proto::v1::probe_service_client::ProbeServiceClient;
use vmprobe_proto::v1::vm_service_client::VmServiceClient;

use crate::files::GrantedFiles;
use crate::images::HeldImages;
use crate::limits;
use crate::log::{self, FromVm, Records};
use crate::settings::Settings;
use crate::status::{self, Precondition};
use crate::vm_process::{self, Arguments};

/// How long a killed guest may take to end before its process is killed.
const END: Duration = Duration::from_secs(5);
/// How long the process of a deleted VM may take to end, so that clients can read the ends of their streams.
const LINGER: Duration = Duration::from_secs(60);
/// How long a process that has made no VM may take to end. No client reads anything from it.
const UNMADE: Duration = Duration::from_secs(1);
/// How long a process whose socket is closed may take to end.
const GONE: Duration = Duration::from_secs(5);
/// The program that runs a VM.
#[derive(Clone, Debug)]
pub enum VmProgram {
    /// A process of this program, `vmprobed`, for each VM.
    Process(PathBuf),
    /// This process itself, for measurements.
    #[cfg(feature = "testing")]
    Here(crate::testing::Publishers),
}

/// How a process has ended.
#[derive(Clone, Copy, Debug)]
struct Ended(Option<ExitStatus>);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Some(status)) = self else {
            return write!(f, "it answers no more");
        };
        write!(f, "{status}")?;
        if status.signal() == Some(Signal::SYS.as_raw()) {
            let why = "a system call that its filter forbids, which the server's log names";
            write!(f, ": {why}")?;
        }
        Ok(())
    }
}

/// The process of a VM, and the connection to it. The process ends when this is dropped and no call is under way.
#[derive(Debug)]
pub struct VmProcess {
    name: String,
    memory_mib: u64,
    channel: Channel,
    /// The last known description of the VM.
    known: Mutex<v1::Vm>,
    ended: watch::Receiver<Option<Ended>>,
    /// The images that the VM uses.
    images: Mutex<HeldImages>,
    /// The process's number, if it isn't this process.
    pid: Option<u32>,
    /// When this is dropped, the process is to end.
    _in_use: oneshot::Sender<()>,
}

impl VmProcess {
    /// Starts a process, and makes it create the VM of `request`, which has a name, of files that are `granted` and of
    /// `images` that are held for it.
    ///
    /// # Errors
    /// The host can't start a process, or the process answers with an error. Nothing is left then.
    pub async fn start(
        program: &VmProgram,
        request: v1::CreateVmRequest,
        settings: &Settings,
        granted: GrantedFiles,
        images: HeldImages,
    ) -> Result<(Self, v1::CreateVmResponse), Status> {
        let failed = |error: io::Error| {
            let why = format!("the host has no process for the VM: {error}");
            status::exhausted("host processes", why)
        };
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let arguments = Arguments::of(&request, settings, granted);
        let (in_use, dropped) = oneshot::channel();
        let made = Arc::new(AtomicBool::new(false));
        let (pid, ended) = match program {
            VmProgram::Process(path) => {
                let (log, output) = match &settings.records {
                    None => (None, Stdio::from(io::stderr())),
                    Some(records) => {
                        let (ours, theirs) = log::from_vm().map_err(failed)?;
                        let output = OwnedFd::from(theirs).into();
                        (Some((ours, records.clone())), output)
                    }
                };
                let child = Command::new(path)
                    // The name that lists of processes show.
                    .arg0(vm_process::PROGRAM)
                    .args(arguments.to_command_line())
                    .stdin(OwnedFd::from(theirs))
                    // This is a socket for copies of the log, or else standard error: the process has no other output.
                    .stdout(output)
                    // Ctrl-C on the terminal is for the server, which ends its guests.
                    .process_group(0)
                    .spawn()
                    .map_err(failed)?;
                let log = log.map(|(log, records)| keep(log, arguments.name.clone(), records));
                (
                    child.id(),
                    watch_child(child, dropped, Arc::clone(&made), log),
                )
            }
            #[cfg(feature = "testing")]
            VmProgram::Here(publishers) => {
                theirs.set_nonblocking(true).map_err(failed)?;
                let connection = UnixStream::from_std(theirs).map_err(failed)?;
                let granted = arguments.granted.clone();
                let vm = publishers.new_vm(&arguments.name, arguments.settings(), granted);
                let (end, ended) = watch::channel(None);
                tokio::spawn(async move {
                    let _why_is_told_by_the_calls = vm_process::serve(connection, vm).await;
                    end.send_replace(Some(Ended(None)));
                });
                drop(dropped);
                (None, ended)
            }
        };
        let stream = UnixStream::from_std(ours).map_err(failed)?;
        let mut process = Self {
            name: request.name.clone(),
            memory_mib: crate::convert::memory_mib(&request),
            channel: connect(stream)
                .await
                .map_err(|error| Status::from_error(error.into()))?,
            known: Mutex::default(),
            ended,
            images: Mutex::new(images),
            pid,
            _in_use: in_use,
        };
        let created = process.client().create_vm(request).await;
        match created {
            Ok(created) => {
                let created = created.into_inner();
                made.store(true, Ordering::Relaxed);
                *process.known.get_mut() = created.vm.clone().unwrap_or_default();
                Ok((process, created))
            }
            Err(status) => Err(process.explain(status).await),
        }
    }

    /// The VM's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// MiB of the guest's memory.
    pub fn memory_mib(&self) -> u64 {
        self.memory_mib
    }

    /// Returns the channel to the process's services.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    fn client(&self) -> VmServiceClient<Channel> {
        VmServiceClient::new(self.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Returns the VM's description. If its process has died, that is the last known one, with an ending.
    pub async fn describe(&self) -> v1::Vm {
        let request = v1::GetVmRequest {
            vm: self.name.clone(),
        };
        match self.client().get_vm(request).await {
            Ok(response) => {
                let vm = response.into_inner().vm.unwrap_or_default();
                self.known.lock().clone_from(&vm);
                vm
            }
            Err(_) => {
                let ending = self.lost().await;
                let mut known = self.known.lock();
                known.state = v1::VmState::Ended.into();
                known.ending.get_or_insert(ending);
                known.clone()
            }
        }
    }

    /// Returns the VM's counts and rates, or `None` if the process has ended, or doesn't answer within this time.
    pub async fn stats(
        &self,
        request: v1::GetVmStatsRequest,
        within: Duration,
    ) -> Option<v1::GetVmStatsResponse> {
        let mut client = self.client();
        let asked = timeout(within, client.get_vm_stats(request)).await;
        let stats = asked.ok()?.ok()?.into_inner();
        if let Some(vm) = &stats.vm {
            self.known.lock().clone_from(vm);
        }
        Some(stats)
    }

    /// Returns the last known description of the VM.
    pub fn last_known(&self) -> v1::Vm {
        self.known.lock().clone()
    }

    /// Returns the process's number, as long as the process exists and isn't this one.
    pub fn pid(&self) -> Option<u32> {
        // Once the process has been waited for, another process may get its number.
        self.pid.filter(|_| self.ended.borrow().is_none())
    }

    /// Waits for the guest's end.
    pub async fn guest_ended(&self) -> v1::Ending {
        let request = v1::WaitVmRequest {
            vm: self.name.clone(),
        };
        let waited = self.client().wait_vm(request).await;
        match waited
            .ok()
            .and_then(|response| response.into_inner().ending)
        {
            Some(ending) => ending,
            None => self.describe().await.ending.unwrap_or_default(),
        }
    }

    /// Ends the guest and gives its files and memory back. A process that doesn't do so ends when this is dropped, or
    /// is killed then.
    pub async fn delete_guest(&self) {
        let request = v1::DeleteVmRequest {
            vm: self.name.clone(),
        };
        // Clients may still read the ends of their streams. A process that has died or hangs keeps its images until it
        // is dropped.
        if let Ok(Ok(_)) = timeout(END, self.client().delete_vm(request)).await {
            drop(std::mem::take(&mut *self.images.lock()));
        }
    }

    /// Removes all probes from the guest, so that all of their events are on their way to the clients.
    pub async fn remove_probes(&self) {
        match timeout(END, self.try_remove_probes()).await {
            Ok(Ok(count)) => tracing::info!(vm = self.name, "its {count} probes are taken out"),
            Ok(Err(status)) => tracing::warn!(
                vm = self.name,
                "its probes end with its guest: {}",
                status.message()
            ),
            Err(_) => tracing::warn!(vm = self.name, "its probes end with its guest: it hangs"),
        }
    }

    async fn try_remove_probes(&self) -> Result<usize, Status> {
        let client = ProbeServiceClient::new(self.channel());
        let mut client = client.max_decoding_message_size(usize::MAX);
        let mut count = 0;
        loop {
            let request = v1::ListProbesRequest {
                vm: self.name.clone(),
                page_size: limits::PAGE_MOST,
                page_token: String::new(),
            };
            let listed = client.list_probes(request).await?.into_inner().probes;
            if listed.is_empty() {
                return Ok(count);
            }
            let selector = v1::ProbeSelector {
                ids: listed.iter().map(|probe| probe.id).collect(),
                names: Vec::new(),
            };
            let request = v1::UnregisterProbesRequest {
                vm: self.name.clone(),
                selector: Some(selector),
            };
            match client.unregister_probes(request).await {
                Ok(_) => {}
                // The probe's own client has removed it first.
                Err(status) if status.code() == Code::NotFound => continue,
                Err(status) => return Err(status),
            }
            count += listed.len();
        }
    }

    /// Ends the guest. Its description stays available.
    pub async fn kill_guest(&self) {
        let request = v1::KillVmRequest {
            vm: self.name.clone(),
        };
        let _it_has_died_or_hangs = timeout(END, self.client().kill_vm(request)).await;
    }

    /// Lets the process end, whose guest has ended, and waits until it has done so. A process that takes too long is
    /// logged.
    pub fn end(self: Arc<Self>) -> impl Future<Output = ()> {
        let ended = self.ended.clone();
        drop(self);
        async move {
            if soon(ended).await.is_none() {
                tracing::error!("a VM's process is still there after {GONE:?}");
            }
        }
    }

    /// Returns the error of a failed call, or the end of the process if that is the reason.
    pub async fn explain(&self, status: Status) -> Status {
        // A status that the process itself has answered has no source.
        if std::error::Error::source(&status).is_none() {
            return status;
        }
        let why = self.lost().await.detail;
        status::precondition(Precondition::State, &self.name, why)
    }

    /// Returns the ending of a guest whose process doesn't answer any more.
    async fn lost(&self) -> v1::Ending {
        let ended = soon(self.ended.clone()).await.unwrap_or(Ended(None));
        v1::Ending {
            kind: v1::EndingKind::Failed.into(),
            exit_code: vm_process::FAILED_EXIT_CODE,
            detail: format!(
                "the process of VM `{}` has ended ({ended}), and its guest with it; other VMs go on",
                self.name
            ),
        }
    }
}

/// Waits for the end of a process whose socket is closed. Returns `None` if that takes too long.
async fn soon(mut ended: watch::Receiver<Option<Ended>>) -> Option<Ended> {
    let ended = timeout(GONE, ended.wait_for(Option::is_some)).await.ok()?;
    // If the task that waits for the process has ended, so has the process, and its status is unknown.
    ended.map_or(Some(Ended(None)), |ended| *ended)
}

/// The task that keeps what a process logs, and the signal that the process has ended. Dropping the signal ends the
/// task.
type Kept = (oneshot::Sender<()>, JoinHandle<()>);

fn keep(log: FromVm, vm: String, records: Records) -> Kept {
    let (over, ended) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        let ended = async {
            // The sender is dropped without a message.
            let _ = ended.await;
        };
        log.keep(&vm, &records, ended).await;
    });
    (over, task)
}

/// Waits for the end of a process, and of its log. Once `dropped` completes, the process has to end by itself, soon if
/// it has not `made` its VM by then, or is killed.
fn watch_child(
    mut child: Child,
    dropped: oneshot::Receiver<()>,
    made: Arc<AtomicBool>,
    log: Option<Kept>,
) -> watch::Receiver<Option<Ended>> {
    let (end, ended) = watch::channel(None);
    tokio::spawn(async move {
        let status = tokio::select! {
            status = child.wait() => status,
            _ = dropped => {
                let patience = match made.load(Ordering::Relaxed) {
                    true => LINGER,
                    false => UNMADE,
                };
                match timeout(patience, child.wait()).await {
                    Ok(status) => status,
                    Err(_) => match child.kill().await {
                        Ok(()) => child.wait().await,
                        Err(error) => Err(error),
                    },
                }
            }
        };
        if let Some((over, task)) = log {
            drop(over);
            let _what_was_logged_is_kept = task.await;
        }
        end.send_replace(Some(Ended(status.ok())));
    });
    ended
}

/// Makes a channel over a stream that is connected already.
async fn connect(stream: UnixStream) -> Result<Channel, tonic::transport::Error> {
    let stream = Arc::new(Mutex::new(Some(stream)));
    // The address isn't used: there is one stream, and it's used once.
    Endpoint::from_static("http://vm")
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .connect_with_connector(tower::service_fn(move |_| {
            let stream = stream.lock().take();
            async move {
                let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
                stream.map(TokioIo::new).ok_or_else(gone)
            }
        }))
        .await
}
