//! `vmprobe boot-timeline`: what a kernel's boot spends its time on.

mod initcalls;
mod log;
mod report;
mod stages;

use std::collections::BTreeSet;
use std::pin::Pin;

use vmprobe_client::spec;
use vmprobe_client::v1::{CreateVmRequest, Ending, EndingKind, ProbeSpec};
use vmprobe_client::{Client, ClientError, EventStream, Message};

use self::initcalls::Names;
use self::log::BootLog;
use self::report::BootReport;
use crate::cli::BootTimeline;
use crate::commands::event_file::{EventCopy, EventFile};
use crate::commands::guest;
use crate::commands::session::interrupted;
use crate::failure::Failure;
use crate::output::{note, print};
use crate::render;
use crate::server_process::ServerProcess;
use crate::tracing::EventNames;

const NAME: &str = "boot";

/// Boots the guest, watches it until user space or the given place, and prints what was seen.
/// Returns the guest's exit code where the guest ended by itself.
pub async fn boot_timeline(arguments: BootTimeline) -> Result<u8, Failure> {
    let request = guest::request(NAME, &arguments.kernel, &arguments.machine, true)?;
    let until = arguments.until.as_deref().map(spec::parse).transpose()?;
    let sink = arguments
        .events
        .as_deref()
        .map(|file| EventFile::open(Some(file)))
        .transpose()?;
    let server = ServerProcess::start().await?;
    let session = Session {
        arguments: &arguments,
        endpoint: server.endpoint(),
    };
    let result = session.run(request, until, sink).await;
    server.stop().await;
    result
}

/// Why watching stopped.
enum End {
    /// The guest has come to the place until which it was to be watched.
    Reached,
    Ended(Ending),
    Interrupted(Failure),
}

struct Session<'a> {
    arguments: &'a BootTimeline,
    endpoint: &'a str,
}

impl Session<'_> {
    async fn run(
        &self,
        request: CreateVmRequest,
        until: Option<ProbeSpec>,
        sink: Option<EventFile>,
    ) -> Result<u8, Failure> {
        let interrupted = interrupted();
        tokio::pin!(interrupted);
        let (client, mut log, events, kernel) = tokio::select! {
            prepared = self.prepare(request, until) => prepared?,
            failure = &mut interrupted => return Err(failure),
        };
        let tsc_hz = events.tsc_hz();
        if tsc_hz == 0 {
            return Err(Failure::NoFrequency);
        }
        client.start_vm(NAME).await?;
        let vcpus = self.arguments.machine.vcpus;
        let names = EventNames::new(client.clone(), NAME.into(), tsc_hz, vcpus);
        let copy = sink.map(|sink| EventCopy::new(names, &[], sink));
        let end = observe(&mut log, events, copy.transpose()?, interrupted).await?;
        if !self.arguments.keep && !matches!(end, End::Ended(_)) {
            // The client asks for names while the VM still exists; the guest needn't go on
            // meanwhile. When it can't be paused it has just ended by itself.
            let _ = client.pause_vm(NAME).await;
        }
        self.print(&client, &log, tsc_hz, &kernel, &end).await?;
        match end {
            End::Interrupted(failure) => Err(failure),
            End::Ended(ending) => Ok(exit_code(&ending)),
            End::Reached if self.arguments.keep => self.keep(&client).await,
            End::Reached => {
                client.kill_vm(NAME).await?;
                Ok(0)
            }
        }
    }

    /// Creates the guest and plants the probes; subscribes before its first instruction.
    async fn prepare(
        &self,
        request: CreateVmRequest,
        until: Option<ProbeSpec>,
    ) -> Result<(Client, BootLog, EventStream, String), Failure> {
        let client = Client::connect(self.endpoint).await?;
        let (vm, probes) = client.create_vm(request).await?;
        let mut log = BootLog::default();
        for probe in &probes {
            log.add_probe(probe.id, probe.name.clone());
        }
        stages::plant(&client, NAME, until, &mut log).await?;
        let events = client.events(NAME, Vec::new()).await?;
        let release = vm.kernel_version.split_whitespace().next();
        let kernel = release.unwrap_or(&vm.kernel).to_owned();
        Ok((client, log, events, kernel))
    }

    async fn print(
        &self,
        client: &Client,
        log: &BootLog,
        tsc_hz: u64,
        kernel: &str,
        end: &End,
    ) -> Result<(), Failure> {
        let mut report = BootReport::new(log, tsc_hz, kernel);
        if let End::Ended(ending) = end {
            report.ending = Some(ending.clone());
        }
        let shown = match self.arguments.format.is_json() {
            true => usize::MAX,
            false => self.arguments.top,
        };
        let functions: BTreeSet<u64> = report
            .slowest(shown)
            .map(|initcall| initcall.function)
            .collect();
        report.names = Names::ask(client, NAME, &functions).await?;
        let probes = client.list_probes(NAME).await?;
        let initcall = probes.iter().find(|probe| log.is_initcall(probe.id));
        report.missed = initcall.map_or(0, |probe| probe.missed);
        if self.arguments.format.is_json() {
            print([report.json().to_string()])
        } else {
            print(report.text(self.arguments.top))
        }
    }

    /// Lets the guest go on to its end.
    async fn keep(&self, client: &Client) -> Result<u8, Failure> {
        note(format!(
            "the guest goes on; its server is {}; Ctrl-C ends it",
            self.endpoint
        ));
        let ending = tokio::select! {
            ending = client.wait_vm(NAME) => ending?,
            failure = interrupted() => return Err(failure),
        };
        if ending.kind() != EndingKind::PowerOff {
            note(format!("the guest ended: {}", render::ending(&ending)));
        }
        Ok(exit_code(&ending))
    }
}

fn exit_code(ending: &Ending) -> u8 {
    u8::try_from(ending.exit_code).unwrap_or(u8::MAX)
}

/// Gathers events until the place was reached, the guest has ended, or the user wants to see what
/// there is.
async fn observe(
    log: &mut BootLog,
    mut events: EventStream,
    mut copy: Option<EventCopy>,
    mut interrupted: Pin<&mut impl Future<Output = Failure>>,
) -> Result<End, Failure> {
    loop {
        let message = tokio::select! {
            message = events.next() => message?,
            failure = &mut interrupted => return Ok(End::Interrupted(failure)),
        };
        match message {
            Some(Message::Batch { lost, events }) => {
                if let Some(copy) = &mut copy {
                    copy.write(lost, &events).await?;
                }
                log.lost(lost);
                for event in &events {
                    if log.add(event) {
                        return Ok(End::Reached);
                    }
                }
            }
            // This subscription didn't ask for progress.
            Some(Message::Progress { .. }) => {}
            Some(Message::Ended(ending)) => return Ok(End::Ended(ending)),
            None => {
                let text = "the stream stopped before the guest's end";
                return Err(ClientError::Disconnected(text.into()).into());
            }
        }
    }
}
