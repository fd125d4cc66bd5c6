//! `vmprobe run`: a server and a guest in one command.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use vmprobe_client::v1::{CreateVmRequest, Ending, EndingKind, Probe};
use vmprobe_client::{Client, EventStream, Message};

use super::session::interrupted;
use super::trace::EventLines;
use super::{console, guest};
use crate::cli::Run;
use crate::failure::Failure;
use crate::output::note;
use crate::render;
use crate::server_process::ServerProcess;

const NAME: &str = "guest";

/// Runs a guest from its start to its end; answers with its exit code.
pub async fn run(run: Run) -> Result<u8, Failure> {
    let request = guest::request(NAME, &run.guest.kernel, &run.guest.machine, true)?;
    let sink = EventFile::open(run.events.as_deref())?;
    let server = ServerProcess::start().await?;
    let result = tokio::select! {
        result = guest_on(server.endpoint(), request, sink) => result,
        failure = interrupted() => Err(failure),
    };
    server.stop().await;
    let ending = result?;
    if ending.kind() != EndingKind::PowerOff {
        note(format!("the guest ended: {}", render::ending(&ending)));
    }
    Ok(u8::try_from(ending.exit_code).unwrap_or(u8::MAX))
}

/// Creates the guest, and starts it when all that listens to it is in place.
async fn guest_on(
    endpoint: &str,
    request: CreateVmRequest,
    sink: EventFile,
) -> Result<Ending, Failure> {
    let client = Client::connect(endpoint).await?;
    let (_, probes) = client.create_vm(request).await?;
    let events = client.events(NAME, Vec::new()).await?;
    let (input, output) = client.attach_console(NAME).await?;
    note(format!("this guest's server is {endpoint}"));
    let keyboard = console::keyboard(input)?;
    client.start_vm(NAME).await?;

    let watch = async {
        let events = copy_events(client.clone(), events, &probes, sink);
        tokio::try_join!(console::copy_out(output), events)
    };
    tokio::select! {
        watched = watch => { watched?; }
        () = keyboard => { client.kill_vm(NAME).await?; }
    }
    Ok(client.wait_vm(NAME).await?)
}

async fn copy_events(
    client: Client,
    mut stream: EventStream,
    probes: &[Probe],
    mut sink: EventFile,
) -> Result<(), Failure> {
    let mut lines = EventLines::new(client, NAME.into(), stream.tsc_hz(), false);
    lines.tracer.learn(probes);
    while let Some(Message::Batch { lost, events }) = stream.next().await? {
        sink.write(&lines.of_batch(lost, &events).await?)?;
    }
    Ok(())
}

/// Where event lines go.
pub struct EventFile {
    name: PathBuf,
    to: Box<dyn Write + Send>,
}

impl EventFile {
    pub fn open(file: Option<&Path>) -> Result<Self, Failure> {
        let Some(file) = file else {
            return Ok(Self {
                name: "standard error".into(),
                to: Box::new(BufWriter::new(io::stderr())),
            });
        };
        let name = file.to_owned();
        match File::create(file) {
            Ok(created) => Ok(Self {
                name,
                to: Box::new(BufWriter::new(created)),
            }),
            Err(cause) => Err(Failure::EventFile { file: name, cause }),
        }
    }

    pub fn write(&mut self, lines: &[String]) -> Result<(), Failure> {
        let mut write = || {
            for line in lines {
                writeln!(self.to, "{line}")?;
            }
            self.to.flush()
        };
        write().map_err(|cause| Failure::EventFile {
            file: self.name.clone(),
            cause,
        })
    }
}
