//! `vmprobe run --root`: one command in a guest whose root is a folder of the host's or an image.

use tokio::io::{stderr, stdout};
use vmprobe_client::v1::{CreateVmRequest, Ending};
use vmprobe_client::{Client, ConsoleOutput, Message};
use vmprobe_init::PREFIX;
use vmprobe_kernel_log::Lines;

use super::event_file::{EventCopy, EventFile};
use super::guest;
use super::session::interrupted;
use crate::cli::Run;
use crate::failure::Failure;
use crate::host_root::{CommandInput, Outcome, Streams, prepare};
use crate::output::note;
use crate::render;
use crate::server_process::ServerProcess;
use crate::tail::Tail;
use crate::tracing::EventNames;

const NAME: &str = "guest";
/// What the kernel is told besides what the user wants: a panic ends the guest.
const CMDLINE: &str = "panic=-1";
/// Lines of the console that are shown when the guest ends before its command.
const SHOWN_LINES: usize = 40;
/// Exit code when the command could not be started, as shells have it.
const NOT_STARTED: u8 = 127;

/// Runs the command. Returns its exit code.
pub async fn run(run: Run) -> Result<u8, Failure> {
    if run.guest.machine.initramfs.is_some() {
        return Err(Failure::TwoRoots);
    }
    let mut request = guest::request(NAME, &run.guest.kernel, &run.guest.machine, true)?;
    let prepared = prepare(&run.guest.kernel, &run.root, request.devices.as_ref())?;
    prepared.add_to(&mut request)?;
    request.cmdline = format!("{} {CMDLINE}", request.cmdline);
    let sink = EventFile::open(run.events.as_deref())?;
    let streams = Streams::listen(&prepared.socket())?;
    let server = ServerProcess::start().await?;
    let result = tokio::select! {
        result = command_on(server.endpoint(), request, streams, sink) => result,
        failure = interrupted() => Err(failure),
    };
    server.stop().await;
    Ok(match result? {
        Outcome::Ended(code) => code,
        Outcome::NotStarted(reason) => {
            note(reason);
            NOT_STARTED
        }
    })
}

/// Creates the guest, and starts it when all that listens to it is in place.
async fn command_on(
    endpoint: &str,
    request: CreateVmRequest,
    streams: Streams,
    sink: EventFile,
) -> Result<Outcome, Failure> {
    let client = Client::connect(endpoint).await?;
    let (vm, probes) = client.create_vm(request).await?;
    let mut events = client.events(NAME, Vec::new()).await?;
    let (_input, output) = client.attach_console(NAME).await?;
    let names = EventNames::new(client.clone(), NAME.into(), events.tsc_hz(), vm.vcpus);
    let mut copy = EventCopy::new(names, &probes, sink)?;
    client.start_vm(NAME).await?;
    let copied = async {
        while let Some(Message::Batch { lost, events }) = events.next().await? {
            copy.write(lost, &events).await?;
        }
        copy.finish()
    };
    let served = async {
        let mut early_end = std::pin::pin!(guest_ended(&client, output));
        let connected = tokio::select! {
            connected = streams.connected() => connected?,
            failure = &mut early_end => return Err(failure),
        };
        let own = CommandInput::Own;
        match connected.serve(own, stdout(), stderr()).await? {
            Some(outcome) => Ok(outcome),
            None => Err(early_end.await),
        }
    };
    // The guest switches itself off behind its command, which ends the events.
    let (outcome, ()) = tokio::try_join!(served, copied)?;
    Ok(outcome)
}

/// Waits until the guest has ended: too early, unless its command has ended meanwhile.
async fn guest_ended(client: &Client, output: ConsoleOutput) -> Failure {
    let lines = match last_lines(output).await {
        Ok(lines) => lines,
        Err(failure) => return failure,
    };
    match client.wait_vm(NAME).await {
        Ok(ending) => no_command_end(&ending, &lines),
        Err(error) => error.into(),
    }
}

/// Reads the console to its end.
async fn last_lines(mut output: ConsoleOutput) -> Result<Vec<String>, Failure> {
    let (mut lines, mut last) = (Lines::new(), Tail::new(SHOWN_LINES));
    while let Some(chunk) = output.next().await? {
        for line in lines.push(&chunk.output) {
            last.push(line);
        }
    }
    lines.finish().into_iter().for_each(|line| last.push(line));
    Ok(last.into_lines())
}

fn no_command_end(ending: &Ending, lines: &[String]) -> Failure {
    let own: Vec<&str> = lines
        .iter()
        .filter_map(|line| Some(line.split_once(PREFIX)?.1))
        .collect();
    let said = if own.is_empty() {
        format!("\n{}", lines.join("\n"))
    } else {
        format!("\n{}", own.join("\n"))
    };
    Failure::NoCommandEnd {
        ending: render::ending(ending),
        said,
    }
}
