//! `vmprobe run`: a server and a guest in one command, and the guest's console on this terminal.

use vmprobe_client::v1::{CreateVmRequest, Ending, EndingKind, Probe};
use vmprobe_client::{Client, EventStream, Message};

use super::event_file::{EventCopy, EventFile};
use super::session::interrupted;
use super::{console, guest};
use crate::cli::Run;
use crate::cloud_init::Seed;
use crate::failure::Failure;
use crate::host_root::{Prepared, prepare};
use crate::output::note;
use crate::render;
use crate::server_process::ServerProcess;
use crate::tracing::EventNames;

const NAME: &str = "guest";

/// Runs a guest from its start to its end. Returns its exit code.
pub async fn run(run: Run) -> Result<u8, Failure> {
    let mut request = guest::request(NAME, &run.guest.kernel, &run.guest.machine, true)?;
    let seed = Seed::make(&run.cloud_init)?;
    if let Some(seed) = &seed {
        seed.add_to(&mut request)?;
    }
    let _in_use_until_the_end = boot_root(&run, &mut request)?;
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

/// Makes the guest boot the system in its root, if that is asked for.
fn boot_root(run: &Run, request: &mut CreateVmRequest) -> Result<Option<Prepared>, Failure> {
    if run.root.root.is_none() {
        return Ok(None);
    }
    if run.guest.machine.initramfs.is_some() {
        return Err(Failure::TwoRoots);
    }
    let prepared = prepare(&run.guest.kernel, &run.root, request.devices.as_ref())?;
    prepared.add_to(request)?;
    Ok(Some(prepared))
}

/// Creates the guest, and starts it when all that listens to it is in place.
async fn guest_on(
    endpoint: &str,
    request: CreateVmRequest,
    sink: EventFile,
) -> Result<Ending, Failure> {
    let client = Client::connect(endpoint).await?;
    let (vm, probes) = client.create_vm(request).await?;
    let events = client.events(NAME, Vec::new()).await?;
    let (input, output) = client.attach_console(NAME).await?;
    note(format!("this guest's server is {endpoint}"));
    let keyboard = console::keyboard(input)?;
    client.start_vm(NAME).await?;

    let watch = async {
        let names = EventNames::new(client.clone(), NAME.into(), events.tsc_hz(), vm.vcpus);
        let events = copy_events(names, events, &probes, sink);
        tokio::try_join!(console::copy_out(output), events)
    };
    tokio::select! {
        watched = watch => { watched?; }
        () = keyboard => { client.kill_vm(NAME).await?; }
    }
    Ok(client.wait_vm(NAME).await?)
}

async fn copy_events(
    names: EventNames,
    mut stream: EventStream,
    probes: &[Probe],
    sink: EventFile,
) -> Result<(), Failure> {
    let mut copy = EventCopy::new(names, probes, sink)?;
    while let Some(Message::Batch { lost, events }) = stream.next().await? {
        copy.write(lost, &events).await?;
    }
    copy.finish()
}
