//! One run of a job: a server of its own, a guest, and all that is seen of it.

use std::time::Instant;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use vmprobe_client::v1::{BootMethod, CreateVmRequest, Devices, Ending, EndingKind, Probe};
use vmprobe_client::{Client, ClientError, EventStream};

use super::artifacts::Artifacts;
use super::command_watch::{self, Printed};
use super::console_watch::{self, Told, symbolised};
use super::event_watch::{self, Seen};
use super::outcome::{Attempt, Check, End};
use super::plan::Job;
use super::planted::Planted;
use super::progress::JobProgress;
use super::standing;
use crate::cli::RootArgs;
use crate::commands::event_file::{EventCopy, EventFile};
use crate::commands::guest::{self, specs};
use crate::failure::Failure;
use crate::host_root::{CommandInput, Outcome, Streams, prepare};
use crate::paths;
use crate::render;
use crate::server_process::ServerProcess;
use crate::tracing::EventNames;

const NAME: &str = "guest";
/// The beginning of each guest's command line: a panic ends the guest.
const CMDLINE: &str = "console=ttyS0 panic=-1";
/// The shell that runs a job's command.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// Runs a job once. A failure to start is its result as well.
pub async fn run(job: &Job, artifacts: &Artifacts, progress: &JobProgress) -> Attempt {
    let begun = Instant::now();
    let run = try_to_run(job, artifacts, progress, begun).await;
    run.unwrap_or_else(|failure| not_run(&failure, begun))
}

/// Makes the result of a job that can't be run.
fn not_run(failure: &Failure, begun: Instant) -> Attempt {
    let end = End::NoStart(failure.to_string());
    Attempt {
        checks: vec![judged(&end, true)],
        ..Attempt::ended(end, begun.elapsed())
    }
}

async fn try_to_run(
    job: &Job,
    artifacts: &Artifacts,
    progress: &JobProgress,
    begun: Instant,
) -> Result<Attempt, Failure> {
    let mut request = request(job)?;
    let prepared = match job.settings.root {
        Some(_) => Some(prepare(&job.kernel, &root(job), request.devices.as_ref())?),
        None => None,
    };
    if let Some(prepared) = &prepared {
        prepared.add_to(&mut request)?;
    }
    let streams = prepared.as_ref().map(|it| Streams::listen(&it.socket()));
    let streams = streams.transpose()?;
    let server = ServerProcess::start().await?;
    let guest = Guest {
        job,
        artifacts,
        progress,
        begun,
    };
    let result = guest.run(&server, request, streams).await;
    server.stop().await;
    result
}

fn root(job: &Job) -> RootArgs {
    let settings = &job.settings;
    let command = settings.run.iter().map(String::as_str);
    RootArgs {
        root: settings.root.clone(),
        writable: settings.rw.clone(),
        modules: settings.modules.clone(),
        as_user: settings.as_user.unwrap_or(false),
        folder: settings.chdir.clone(),
        environment: settings.env.clone(),
        command: SHELL
            .into_iter()
            .chain(command)
            .map(str::to_owned)
            .collect(),
        ..RootArgs::default()
    }
}

fn request(job: &Job) -> Result<CreateVmRequest, Failure> {
    let disks = job.disks.iter().map(guest::disk);
    let networks = job.networks.iter().map(guest::network);
    let devices = Devices {
        disks: disks.collect::<Result<_, _>>()?,
        networks: networks.collect::<Result<_, _>>()?,
        ..Devices::default()
    };
    let initramfs = job.settings.initramfs.as_deref();
    let words = [CMDLINE.to_owned()].into_iter();
    let words: Vec<String> = words.chain(job.settings.append.clone()).collect();
    Ok(CreateVmRequest {
        name: NAME.to_owned(),
        kernel: paths::text(&job.kernel)?,
        initramfs: initramfs.map(paths::text).transpose()?.unwrap_or_default(),
        cmdline: words.join(" "),
        memory_mib: job.memory(),
        vcpus: job.vcpus(),
        boot: BootMethod::Elf.into(),
        probes: specs(&job.settings.probe)?,
        hold: true,
        devices: (devices != Devices::default()).then_some(devices),
        ..CreateVmRequest::default()
    })
}

/// A guest to be run.
struct Guest<'j> {
    job: &'j Job,
    artifacts: &'j Artifacts,
    progress: &'j JobProgress,
    begun: Instant,
}

/// The tasks that read what a guest tells, each to the guest's end.
struct Watchers {
    console: JoinHandle<Result<Told, Failure>>,
    events: JoinHandle<Result<Seen, Failure>>,
}

impl Guest<'_> {
    async fn run(
        &self,
        server: &ServerProcess,
        request: CreateVmRequest,
        streams: Option<Streams>,
    ) -> Result<Attempt, Failure> {
        let client = Client::connect(server.endpoint()).await?;
        let (vm, mut probes) = client.create_vm(request).await?;
        let planted = Planted::plant(&client, NAME, &self.job.expectations).await?;
        probes.extend(planted.probes.iter().cloned());
        let events = client.events(NAME, Vec::new()).await?;
        let names = || EventNames::new(client.clone(), NAME.into(), events.tsc_hz(), vm.vcpus);
        let last_names = names();
        let copy = self.event_copy(names(), &probes)?;
        let watchers = self.watch(&client, events, copy).await?;
        client.start_vm(NAME).await?;

        let (mut outcome, mut printed) = (None, None);
        let over = async {
            if let Some(streams) = streams {
                let (ended, all) = self.command(&client, streams).await?;
                (outcome, printed) = (ended, Some(all));
            }
            Ok::<Ending, Failure>(client.wait_vm(NAME).await?)
        };
        let limit = self.job.timeout();
        let mut hangs = Vec::new();
        let end = match timeout(limit, over).await {
            Ok(ending) => self.end(outcome, &ending?),
            Err(_) => {
                // The guest may have ended just now.
                hangs = standing::of_all(&client, NAME, vm.vcpus)
                    .await
                    .unwrap_or_default();
                client.kill_vm(NAME).await?;
                End::TimedOut(limit)
            }
        };
        let told = joined(watchers.console).await?;
        let seen = joined(watchers.events).await?;
        let last = client.list_probes(NAME).await?;
        let last_events = match hangs.is_empty() {
            true => Vec::new(),
            false => seen.last_lines(last_names, &probes).await?,
        };
        let mut reports = Vec::new();
        for report in told.reports {
            reports.push(symbolised(&client, NAME, report).await);
        }
        let (expected, coverage) = planted.judge(&last, &seen);
        let mut checks = vec![judged(&end, self.job.settings.run.is_none())];
        let failing = reports.iter().filter(|it| it.is_failure(&self.job.allowed));
        checks.extend(failing.map(|it| Check {
            name: format!("kernel: {}", it.kind()),
            passed: false,
            detail: it.report.title.clone(),
        }));
        checks.extend(expected);
        let printed: Printed = printed.unwrap_or_default();
        let mut tests = told.tests;
        tests.cases.extend(printed.tests.cases);
        tests.problems.extend(printed.tests.problems);
        Ok(Attempt {
            checks,
            reports,
            cases: tests.cases,
            problems: tests.problems,
            coverage,
            standing: hangs,
            last_events,
            lost: seen.lost,
            console: told.tail,
            output: printed.tail,
            ..Attempt::ended(end, self.begun.elapsed())
        })
    }

    fn event_copy(
        &self,
        names: EventNames,
        probes: &[Probe],
    ) -> Result<Option<EventCopy>, Failure> {
        let Some(path) = self.artifacts.path("events.txt") else {
            return Ok(None);
        };
        let sink = EventFile::open(Some(&path))?;
        Ok(Some(EventCopy::new(names, probes, sink)?))
    }

    async fn watch(
        &self,
        client: &Client,
        events: EventStream,
        copy: Option<EventCopy>,
    ) -> Result<Watchers, Failure> {
        let (_input, console) = client.attach_console(NAME).await?;
        let file = self.artifacts.file("console.txt")?;
        let progress = self.progress.clone();
        Ok(Watchers {
            console: tokio::spawn(console_watch::watch(console, progress, file)),
            events: tokio::spawn(event_watch::watch(events, copy)),
        })
    }

    /// Serves the command until it has ended, with all of its output. Returns none if the guest has ended before it.
    async fn command(
        &self,
        client: &Client,
        streams: Streams,
    ) -> Result<(Option<Outcome>, Printed), Failure> {
        let connected = tokio::select! {
            connected = streams.connected() => connected?,
            ending = client.wait_vm(NAME) => {
                ending?;
                return Ok((None, Printed::default()));
            }
        };
        let (output, errors, both) = command_watch::streams();
        let file = self.artifacts.file("output.txt")?;
        let printed = command_watch::watch(both, self.progress.clone(), file);
        let served = async {
            let served = connected.serve(CommandInput::Nothing, output, errors);
            Ok::<_, Failure>(served.await?)
        };
        tokio::try_join!(served, printed)
    }

    fn end(&self, outcome: Option<Outcome>, ending: &Ending) -> End {
        match outcome {
            Some(Outcome::Ended(code)) => End::Command(code),
            Some(Outcome::NotStarted(reason)) => End::NotStarted(reason),
            None => End::Guest {
                is_good: ending.kind() == EndingKind::PowerOff && self.job.settings.run.is_none(),
                how: render::ending(ending),
            },
        }
    }
}

/// Checks whether a job has ended as it should. `alone` is true for a job without a command.
fn judged(end: &End, alone: bool) -> Check {
    let (passed, detail) = match end {
        End::Command(code) => (*code == 0, format!("exit code {code}")),
        End::NotStarted(reason) | End::NoStart(reason) => (false, reason.clone()),
        End::Guest { is_good, how } if alone => (*is_good, format!("the guest ended: {how}")),
        End::Guest { how, .. } => {
            let detail = format!("the guest ended before its command did: {how}");
            (false, detail)
        }
        End::TimedOut(limit) => {
            let limit = humantime::format_duration(*limit);
            (false, format!("not done within {limit}"))
        }
    };
    Check {
        name: "end".to_owned(),
        passed,
        detail,
    }
}

async fn joined<T>(task: JoinHandle<Result<T, Failure>>) -> Result<T, Failure> {
    let ended = task.await;
    ended.unwrap_or_else(|error| Err(ClientError::Disconnected(error.to_string()).into()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_a_good_end_passes() {
        let guest = |is_good, how: &str| End::Guest {
            is_good,
            how: how.to_owned(),
        };
        for (end, alone, passed, detail) in [
            (End::Command(0), false, true, "exit code 0"),
            (End::Command(3), false, false, "exit code 3"),
            (
                guest(true, "power-off"),
                true,
                true,
                "the guest ended: power-off",
            ),
            (
                guest(false, "panic"),
                false,
                false,
                "the guest ended before its command did: panic",
            ),
            (
                End::TimedOut(Duration::from_secs(90)),
                false,
                false,
                "not done within 1m 30s",
            ),
        ] {
            let check = judged(&end, alone);
            assert_eq!((check.passed, &*check.detail), (passed, detail));
        }
    }
}
