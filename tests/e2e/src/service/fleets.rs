//! One client of several servers.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, ptr, r8, rax, rbx, rdx};
use serde_json::Value;
use tempfile::TempDir;
use tiny_kernel as image;
use vmprobe_client::Client;
use vmprobe_client::v1::CreateVmRequest;

use crate::context::{Context, Place};
use crate::process::Process;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TRACED: Test = Test {
    name: "events_of_two_servers_come_in_the_order_of_their_times_and_one_that_was_away_rejoins",
    ids: &["SV10"],
    needs: Needs::Tiny,
    run: traced,
};

/// Events of each server that are looked at.
const EACH: usize = 20;
/// Ticks of the guest's counter between two hits: some milliseconds, so that no reader of events falls behind. Ten
/// times as many in the AMD lab, whose counter runs at the host's rate and whose instructions take far longer.
fn pace(place: Place) -> i32 {
    match place {
        Place::Host | Place::LabIntel => 10_000_000,
        Place::LabAmd => 100_000_000,
    }
}

/// A server at an address that another server can use after it.
fn server(cx: &Context, socket: &Path) -> Result<Server, Failure> {
    let server = Server::start_with(cx, |command| {
        command.args(["--listen", &format!("unix:{}", socket.display())]);
    })?;
    server.next_endpoint()?;
    Ok(server)
}

/// A kernel that goes through `body` again and again, at this pace.
fn kernel(pace: i32) -> Result<Vec<u8>, Failure> {
    let counter = |a: &mut CodeAssembler| -> Result<(), IcedError> {
        a.rdtsc()?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)
    };
    Ok(image::build(|a, names| {
        let (mut again, mut wait) = (a.create_label(), a.create_label());
        counter(a)?;
        a.mov(r8, rax)?;
        a.set_label(&mut again)?;
        a.add(r8, pace)?;
        a.set_label(&mut wait)?;
        counter(a)?;
        a.cmp(rax, r8)?;
        a.jb(wait)?;
        names.here(a, "body")?;
        a.lea(rbx, ptr(rbx + 1))?;
        names.here(a, "after")?;
        a.jmp(again)
    })?)
}

/// Makes a guest that goes through `body`, and starts it unless `hold`.
async fn run_guest(client: &Client, kernel: &Path, name: &str, hold: bool) -> Result<(), Failure> {
    let request = CreateVmRequest {
        name: name.into(),
        kernel: kernel.to_string_lossy().into_owned(),
        memory_mib: 64,
        hold,
        ..Default::default()
    };
    client.create_vm(request).await?;
    Ok(())
}

/// A command that traces on all servers of a configuration.
struct Trace {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// The last event's time.
    last: String,
}

impl Trace {
    fn start(cx: &Context, folder: &Path) -> Result<Self, Failure> {
        let notes = File::create(folder.join("notes")).map_err(Failure::io("make a file"))?;
        let mut command = Command::new(cx.program("vmprobe"));
        command
            .env("VMPROBE_CONFIG", folder.join("config.toml"))
            .args(["trace", "--hosts", "one,t*", "--vm", "web-*"])
            .args(["--json", "p:pass body"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(notes);
        let mut child = command.spawn().map_err(Failure::io("run vmprobe"))?;
        let lines = child.stdout.take();
        let lines = lines.ok_or_else(|| wrong!("vmprobe has no output"))?;
        Ok(Self {
            child,
            lines: BufReader::new(lines),
            last: String::new(),
        })
    }

    /// Returns the host of the next event, and checks the event's VM and time.
    fn next(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line);
        read.map_err(Failure::io("read a trace"))?;
        let event: Value =
            serde_json::from_str(&line).map_err(|error| wrong!("{error} in {line:?}"))?;
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        check_eq!(text("probe"), "pass", "the probe in {line}");
        check!(text("vm").starts_with("web-"), "{line}");
        // Times have the same length, so that their order as texts is that in time.
        let time = text("time");
        check!(
            time.len() == "2026-11-27T12:00:00.123456789Z".len() && time >= self.last,
            "{time} is behind {}",
            self.last
        );
        self.last = time;
        Ok(text("host"))
    }

    /// Reads until this many events of a host have come.
    fn until(&mut self, host: &str) -> Result<(), Failure> {
        let mut left = EACH;
        while left > 0 {
            if self.next()? == host {
                left -= 1;
            }
        }
        Ok(())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _ = self.child.wait();
    }
}

fn traced(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let folder = folder.path();
    let sockets = ["one", "two"].map(|name| folder.join(format!("{name}.sock")));
    let named = |name: &str, socket: &Path| {
        let socket = socket.display();
        format!("[servers.{name}]\naddress = \"unix:{socket}\"\n")
    };
    let configuration = named("one", &sockets[0]) + &named("two", &sockets[1]);
    fs::write(folder.join("config.toml"), configuration)
        .map_err(Failure::io("write a configuration"))?;
    let kernel = &folder.join("kernel");
    fs::write(kernel, self::kernel(pace(cx.place))?).map_err(Failure::io("write a kernel"))?;
    cx.block_on(async {
        let (one, two) = (server(cx, &sockets[0])?, server(cx, &sockets[1])?);
        let clients = [one.client().await?, two.client().await?];
        run_guest(&clients[0], kernel, "web-1", false).await?;
        run_guest(&clients[1], kernel, "web-2", false).await?;
        run_guest(&clients[1], kernel, "db", true).await?;
        let mut trace = Trace::start(cx, folder)?;
        trace.until("one")?;
        trace.until("two")?;
        check_eq!(
            clients[1].list_probes("db").await?.len(),
            0,
            "probes of another VM"
        );

        two.process().signal(libc::SIGKILL)?;
        drop(two);
        let notes = || {
            let notes = fs::read_to_string(folder.join("notes"));
            notes.map_err(Failure::io("read what vmprobe says"))
        };
        while !notes()?.contains("two is away") {
            trace.next()?;
        }
        trace.until("one")?;
        let two = server(cx, &sockets[1])?;
        let client = two.client().await?;
        run_guest(&client, kernel, "web-2", false).await?;
        // Events from before may still arrive.
        while notes()?.matches("two/web-2: 1 probes").count() < 2 {
            trace.next()?;
        }
        trace.until("two")?;

        Process(trace.child.id()).signal(libc::SIGINT)?;
        // The command goes on writing until it notices the end of its output.
        while trace.next().is_ok() {}
        let status = trace
            .child
            .wait()
            .map_err(Failure::io("wait for vmprobe"))?;
        check_eq!(status.code(), Some(0), "exit code");
        for (client, vm) in [(&clients[0], "web-1"), (&client, "web-2")] {
            check_eq!(
                client.list_probes(vm).await?.len(),
                0,
                "probes of {vm} afterwards"
            );
        }
        let notes = notes()?;
        for expected in [
            "two is away: ",
            "two is back",
            "two/web-2: 1 probes",
            ", 0 lost, 0 out of order",
        ] {
            check!(notes.contains(expected), "{expected:?} isn't in {notes}");
        }
        pass_with(notes.lines().last().unwrap_or_default().to_owned())
    })
}
