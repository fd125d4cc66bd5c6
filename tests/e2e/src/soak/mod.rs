//! The soak: a server with two guests that run all the time, and clients that do random things. It goes through epochs.
//! At the end of each the clients rest, and everything must be as expected: counts, text, processes.

mod actions;
mod epoch;
mod guest;
mod ledger;
mod levels;
mod report;
mod world;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seeded_random::Random;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use vmprobe_client::Client;

use crate::context::Context;
use crate::process::Process;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub use actions::Action;
use levels::{Allowance, Sample};
use report::Report;
use world::World;

pub const TESTS: &[Test] = &[Test {
    name: "two_guests_under_clients_at_random_for_a_minute_keep_counts_text_memory_and_files_right",
    ids: &["SV02", "SV03", "SV07"],
    needs: Needs::Host,
    run: minute,
}];

/// How long the test takes.
const MINUTE: Duration = Duration::from_secs(60);
/// The length of an epoch: short enough that a minute has enough epochs to show a leak by its slope.
const EPOCH: Duration = Duration::from_secs(4);
/// Clients at the same time.
const CLIENTS: usize = 5;
/// The longest rest of a client between two actions, in milliseconds. The machine has other work, too.
const REST_MS: u64 = 60;
/// How long a broken stream is kept: longer than its client takes to come back.
const LINGER: Duration = Duration::from_secs(300);
/// How long it may take until something removed is gone. It only ends a hanging soak.
const NET: Duration = Duration::from_secs(100);
/// How much more processes may use at the end.
const ALLOWANCE: Allowance = Allowance {
    rss_kib: 8 << 10,
    // One for each call under way: the runtime keeps the threads of the busiest moment as long as it has work for them.
    threads: 2 * CLIENTS as u64,
};

fn minute(cx: &Context) -> TestResult {
    let report = run(cx, MINUTE, Vec::new());
    let told = report.to_string();
    match report.failure {
        None => pass_with(told),
        Some(why) => Err(wrong!("{why}; {told}")),
    }
}

/// Soaks for this long, only with the given actions if there are any, and writes the report into a file. Returns true
/// if it went well. The last line of output sums it up.
///
/// # Errors
/// If the report can't be written.
pub fn run_for(
    cx: &Context,
    time: Duration,
    only: Vec<Action>,
    file: Option<&Path>,
) -> Result<bool, Failure> {
    crate::say(&format!(
        "# soaking for {} s; --seed {}",
        time.as_secs(),
        cx.seed
    ));
    let report = run(cx, time, only);
    if let Some(file) = file {
        let json = serde_json::to_string_pretty(&report).map_err(|error| wrong!("{error}"))?;
        let written = std::fs::write(file, json + "\n");
        written.map_err(Failure::io(format!("write {}", file.display())))?;
    }
    let verdict = match &report.failure {
        None => "passed".to_owned(),
        Some(why) => format!("failed: {why}"),
    };
    crate::say(&format!("soak {verdict}: {report}"));
    Ok(report.failure.is_none())
}

/// Soaks for this long, from the context's seed on. The report says whether it went well.
fn run(cx: &Context, time: Duration, only: Vec<Action>) -> Report {
    let begun = Instant::now();
    let mut report = Report::new(cx.seed);
    let soaked = cx.block_on(async {
        let world = Arc::new(World::start(cx, only).await?);
        let mut random = cx.random();
        let soaked = soak(&world, &mut random, begun + time, &mut report).await;
        report.actions = world.counts();
        if let Err(why) = soaked {
            return Err(wrong!("{why}; the log: {:?}", unexpected(&world.log()?)));
        }
        end(world)?;
        levels(&report)?;
        crate::test::pass()
    });
    report.failure = soaked.err().map(|failure| failure.to_string());
    report.seconds = begun.elapsed().as_secs();
    report
}

/// Goes through epochs until `end`.
async fn soak(
    world: &Arc<World>,
    random: &mut Random,
    end: Instant,
    report: &mut Report,
) -> Result<(), Failure> {
    let client = world.connect().await?;
    let (stop, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    // Clients begin no action before the first epoch.
    let mut alone = Some(world.gate.write().await);
    for _ in 0..CLIENTS {
        let (world, random) = (Arc::clone(world), Random::new(random.bits()));
        clients.spawn(be_client(world, random, stopped.clone()));
    }
    while Instant::now() < end {
        let (over, is_over) = watch::channel(false);
        let mut watches = Vec::new();
        for guest in 0..world.guests.len() {
            client.pause_vm(world.guests[guest].vm).await?;
            let random = Random::new(random.bits());
            let watch = epoch::begin(world, guest, &client, random, is_over.clone());
            watches.push(watch.await?);
            client.resume_vm(world.guests[guest].vm).await?;
        }
        drop(alone.take());
        tokio::select! {
            () = tokio::time::sleep(EPOCH) => {}
            // A client's task ends by itself only when it fails.
            ended = clients.join_next() => return Err(failure_of(ended)),
        }
        alone = Some(world.gate.write().await);
        // Each follower ends after its next batch.
        over.send_replace(true);
        for (watch, guest) in watches.into_iter().zip(&world.guests) {
            client.pause_vm(guest.vm).await?;
            let sums = watch.settle(world, &client).await?;
            report.sums.add(sums);
            untouched(&client, guest).await?;
            client.resume_vm(guest.vm).await?;
        }
        measure(world, &client, report).await?;
        for guest in &world.guests {
            goes_on(&client, guest).await?;
        }
        report.epochs += 1;
    }
    drop(alone);
    stop.send_replace(true);
    while let Some(ended) = clients.join_next().await {
        ended.map_err(|error| wrong!("a client: {error}"))??;
    }
    Ok(())
}

fn failure_of(ended: Option<Result<Result<(), Failure>, tokio::task::JoinError>>) -> Failure {
    match ended {
        Some(Ok(Err(failure))) => failure,
        other => wrong!("a client has ended: {other:?}"),
    }
}

/// Does one action after the other until it is stopped.
async fn be_client(
    world: Arc<World>,
    mut random: Random,
    stopped: watch::Receiver<bool>,
) -> Result<(), Failure> {
    loop {
        let gate = world.gate.read().await;
        if *stopped.borrow() {
            return Ok(());
        }
        let action = Action::draw(&mut random, &world.only);
        let acted = timeout(NET, action.act(&world, &mut random)).await;
        let name = action.name();
        acted
            .map_err(|_| wrong!("{name} did not end within {NET:?}"))?
            .map_err(|failure| wrong!("{name}: {failure}"))?;
        world.count(name);
        drop(gate);
        tokio::time::sleep(Duration::from_millis(random.below(REST_MS))).await;
    }
}

/// Checks that a paused guest has no probes, and that its text is as it was at first.
async fn untouched(client: &Client, guest: &guest::Guest) -> Result<(), Failure> {
    let probes = client.list_probes(guest.vm).await?;
    check!(
        probes.is_empty(),
        "{} has probes left: {probes:?}",
        guest.vm
    );
    let text = guest.read_text(client, true).await?;
    let changed = text
        .iter()
        .zip(&guest.text)
        .position(|(one, other)| one != other);
    if let Some(at) = changed {
        let address = guest.text_at + at as u64;
        return Err(wrong!(
            "the text of {} isn't whole without probes: {:#x} instead of {:#x} at {address:#x}",
            guest.vm,
            text[at],
            guest.text[at]
        ));
    }
    Ok(())
}

/// Checks that a guest executes all its bodies without a probe: a step that was under way has ended.
async fn goes_on(client: &Client, guest: &guest::Guest) -> Result<(), Failure> {
    let first = guest.counts(client).await?;
    let moved = async {
        loop {
            let counts = guest.counts(client).await?;
            if counts
                .iter()
                .zip(&first)
                .all(|(count, first)| count > first)
            {
                return Ok(());
            }
        }
    };
    let moved = timeout(NET, moved).await;
    moved.map_err(|_| wrong!("{} stands still at {first:?}", guest.vm))?
}

/// Takes samples of the processes while only this client is connected.
async fn measure(world: &World, client: &Client, report: &mut Report) -> Result<(), Failure> {
    let files = report.server.last().map(|sample| sample.files);
    let settled = async {
        loop {
            // A process ends when it learns that its VM is gone: soon, but not at once. So does a connection.
            let processes = world.server.vm_processes()?;
            let open = world.server.process().open_files()? as u64;
            let most = files.unwrap_or(u64::MAX);
            if processes.len() == world.guests.len() && (open <= most || report.epochs < WARM_UP) {
                return Ok::<(), Failure>(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if timeout(NET, settled).await.is_err() {
        return Err(wrong!(
            "processes or files of clients that have gone are left: {:?} for {} VMs, {} files, {files:?} before",
            world.server.vm_processes()?,
            world.guests.len(),
            world.server.process().open_files()?
        ));
    }
    check_eq!(client.list_vms().await?.len(), world.guests.len(), "VMs");
    check_eq!(client.list_images().await?.len(), 0, "images");
    report.server.push(Sample::of(world.server.process())?);
    for (guest, samples) in world.guests.iter().zip(&mut report.vms) {
        let process: Process = world.server.vm_process(guest.vm)?;
        samples.push(Sample::of(process)?);
    }
    Ok(())
}

/// Epochs at the beginning after which more files may be open than before: some are opened at their first use.
const WARM_UP: u64 = 2;

/// What a server logs of a tiny kernel, which has none of Linux's tables, and of a KVM that doesn't boot Linux.
const EXPECTED: [&str; 2] = [
    "no code can be put into the guest: the page table that maps the kernel can't be found",
    "Linux does not boot on it",
];

/// Ends the server, and checks that it has logged nothing else.
fn end(world: Arc<World>) -> Result<(), Failure> {
    let world = Arc::into_inner(world).ok_or_else(|| wrong!("a client is still there"))?;
    let log = world.file("log");
    check_eq!(world.server.stop()?, Some(0), "exit code of the server");
    let log = std::fs::read_to_string(&log).map_err(Failure::io("read the log"))?;
    let unexpected = unexpected(&log);
    check!(
        unexpected.is_empty(),
        "the server has logged: {unexpected:?}"
    );
    Ok(())
}

fn unexpected(log: &str) -> Vec<&str> {
    let is_expected = |line: &&str| EXPECTED.iter().any(|expected| line.contains(expected));
    log.lines().filter(|line| !is_expected(line)).collect()
}

/// Checks that no process uses more and more.
fn levels(report: &Report) -> Result<(), Failure> {
    for (process, samples) in report.processes() {
        let grown = levels::grown(levels::warm(samples), ALLOWANCE);
        check!(
            grown.is_empty(),
            "{process} has grown: {}",
            grown.join("; ")
        );
    }
    Ok(())
}
