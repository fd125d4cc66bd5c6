//! The demonstration: Debian's stock kernel boots on `vmprobed`, and separate `vmprobe` processes
//! probe it over gRPC. Shows each command and what it says.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde::Serialize;

use crate::context::Context;
use crate::linux::files;
use crate::say;
use crate::server::Server;
use crate::test::{Failure, wrong};

/// Fewest events that make the demonstration a success.
const LEAST_EVENTS: u64 = 100;
/// Event lines of opened files to show; the others are counted.
const SHOWN: usize = 8;
/// Files that the guest opens and reads.
const FILES: u32 = 100;
/// What the first probes ask for.
const OPENED: &str = "p:opened do_sys_openat2 dfd=$arg1:s32 name=+u0($arg2):ustring";
/// See [`OPENED`].
const READ: &str = "r:read vfs_read bytes=$retval:s64";
/// What is kept for Perfetto: entries and returns of a function, with a flow between them.
const RECORDED: [&str; 3] = [
    "p:fs/open do_sys_openat2 name=+u0($arg2):ustring",
    "p:fs/reading vfs_read count=$arg3:u64",
    "r:fs/read vfs_read bytes=$retval:s64",
];
/// Events that the commands for latency, flame graph and trace each ask for.
const ASKED: &str = "90";
/// Where the flame graph goes.
const FLAME: &str = "/tmp/vmprobe-demo.svg";
/// Where the trace for Perfetto goes.
const TRACE: &str = "/tmp/vmprobe-demo.pftrace";

/// A file that a command of the demonstration has written.
#[derive(Debug, Serialize)]
struct Written {
    name: &'static str,
    bytes: Vec<u8>,
}

/// Runs it; returns true if there were enough events, none was lost, and the guest ended well. The files that its
/// commands have written go to `results`, one line of JSON each.
///
/// # Errors
/// If a command fails that should not.
pub fn run(cx: &Context, results: Option<&Path>) -> Result<bool, Failure> {
    let success = show(cx)?;
    if let Some(results) = results {
        let mut lines = String::new();
        for (name, path) in [("flame.svg", FLAME), ("trace.pftrace", TRACE)] {
            let bytes = fs::read(path).map_err(Failure::io("read what a command has written"))?;
            // Text and numbers always serialize.
            lines += &serde_json::to_string(&Written { name, bytes }).unwrap_or_default();
            lines.push('\n');
        }
        fs::write(results, lines).map_err(Failure::io("write the results file"))?;
    }
    Ok(success)
}

/// Runs all of it except for writing `results`.
fn show(cx: &Context) -> Result<bool, Failure> {
    say("# A server. It listens on a socket that only this user reaches.");
    let server = Server::start(cx)?;
    say(&format!("$ vmprobed --listen {} &", server.endpoint));
    say(&format!("listening on {}", server.endpoint));
    say(&format!("$ export VMPROBE_SERVER={}", server.endpoint));
    let cli = Cli {
        cx,
        endpoint: server.endpoint.clone(),
    };

    say(
        "\n# Debian's stock cloud kernel, as packaged. One probe is there before its first instruction.",
    );
    let (kernel, initramfs) = (cx.file(files::BZIMAGE_6_1), cx.file(files::INITRAMFS));
    cli.run(&[
        "vm",
        "create",
        "--name",
        "demo",
        "--kernel",
        &kernel,
        "--initramfs",
        &initramfs,
        "--vcpus",
        "2",
        "--cmdline",
        "console=ttyS0 quiet -- workload=echo",
        "--probe",
        "boot=start_kernel",
    ])?;
    let mut console = cli.background(&["console"], "guest | ")?;
    console.wait_for("\"ready\"")?;
    cli.run(&["vm", "list"])?;

    say("\n# It runs. Who opens which file? Both probes become jumps: a hit costs no exit.");
    cli.run(&["probe", "add", OPENED, READ])?;
    cli.run(&["probe", "wait"])?;
    let trace = cli.background(&["trace", "opened", "read"], "")?;
    // Each line that the guest reads is a hit of vfs_read. The trace is attached as soon as it shows one.
    let mut lines = Vec::new();
    loop {
        console.send("hello")?;
        console.wait_for("hello")?;
        if let Some(line) = trace.try_line() {
            lines.push(line);
            break;
        }
    }
    console.send(&format!("workload=files count={FILES}"))?;
    console.wait_for("\"done\"")?;
    let is_open = |line: &&String| line.contains(" opened: ");
    while lines.iter().filter(is_open).count() < SHOWN {
        lines.push(trace.line()?);
    }
    lines.iter().filter(is_open).for_each(|line| say(line));
    let probes = cli.run(&["probe", "list"])?.lines().count();

    say(
        "\n# How long does a read take? Who allocates memory? Other commands ask meanwhile. One keeps it for Perfetto.",
    );
    let latency = cli.background(&["latency", "vfs_read", "--count", ASKED], "")?;
    let flame = cli.background(
        &["flame", "p kmem_cache_alloc", "-o", FLAME, "--count", ASKED],
        "",
    )?;
    let record = ["record", "-o", TRACE, "--count", ASKED];
    let record = cli.background(&[&record[..], &RECORDED].concat(), "")?;
    cli.wait_for_probes(probes + 2 + RECORDED.len())?;
    console.send(&format!("workload=files count={FILES}"))?;
    console.wait_for("\"done\"")?;
    let latency = latency.finish()?;
    latency.output.iter().for_each(|line| say(line));
    say(&flame.finish()?.notes);
    say(&record.finish()?.notes);

    say("\n# In mid-function, too, but only where an instruction begins:");
    let mut mid = None;
    for offset in 0x10..0x40 {
        let spec = format!("mid=do_sys_openat2+{offset:#x}");
        if cli.try_run(&["probe", "add", &spec])? {
            mid = Some(spec);
            break;
        }
    }
    mid.ok_or_else(|| wrong!("no instruction of do_sys_openat2 could be probed"))?;

    say("\n# The guest goes on without probes, and switches itself off.");
    cli.run(&["probe", "rm", "--all"])?;
    console.send("quit")?;
    let ended = cli.try_code(&["vm", "wait"])?;
    let rest = trace.finish()?;
    lines.extend(rest.output);
    console.finish()?;

    say("\n# The trace has ended with the guest.");
    let (events, lost) = totals(&rest.notes)?;
    say(&rest.notes);
    if server.stop()? != Some(0) {
        return Err(wrong!("the server failed at its end"));
    }
    say(&format!(
        "demo: {events} events, {probes} probes, {lost} lost, guest exit {ended}"
    ));
    let opened = lines.iter().filter(is_open);
    let names = opened.filter(|line| line.contains("name=\"/init\""));
    Ok(events >= LEAST_EVENTS
        && events == lines.len() as u64
        && names.count() >= FILES as usize
        && lost == 0
        && ended == 0)
}

/// Returns the numbers in the last line of the trace: `vmprobe: N events, L lost; ...`.
fn totals(note: &str) -> Result<(u64, u64), Failure> {
    let number = |what: &str| {
        let before = note.split(what).next()?;
        before.split_whitespace().next_back()?.parse().ok()
    };
    let numbers = number(" events").zip(number(" lost"));
    numbers.ok_or_else(|| wrong!("`vmprobe trace` did not say how many events it saw: {note:?}"))
}

/// The `vmprobe` command line with its server.
struct Cli<'a> {
    cx: &'a Context,
    endpoint: String,
}

impl Cli<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.cx.program("vmprobe"));
        command.args(args).env("VMPROBE_SERVER", &self.endpoint);
        command
    }

    /// Shows a command and runs it to its end; shows and returns its output.
    fn output(&self, args: &[&str]) -> Result<(i32, String), Failure> {
        say(&format!("$ vmprobe {}", quoted(args)));
        let output = self
            .command(args)
            .stdin(Stdio::null())
            .output()
            .map_err(Failure::io("start vmprobe"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        if !shown.is_empty() {
            say(shown.trim_end());
        }
        Ok((output.status.code().unwrap_or(-1), text))
    }

    /// As [`Cli::output`]; a command that fails ends the demonstration.
    fn run(&self, args: &[&str]) -> Result<String, Failure> {
        match self.output(args)? {
            (0, text) => Ok(text),
            (code, _) => Err(wrong!(
                "`vmprobe {}` failed with exit code {code}",
                quoted(args)
            )),
        }
    }

    /// As [`Cli::output`]; returns true if the command succeeded.
    fn try_run(&self, args: &[&str]) -> Result<bool, Failure> {
        Ok(self.output(args)?.0 == 0)
    }

    /// As [`Cli::output`]; returns the exit code.
    fn try_code(&self, args: &[&str]) -> Result<i32, Failure> {
        Ok(self.output(args)?.0)
    }

    /// Shows a command and starts it; its lines are shown with this prefix, or kept if that is
    /// empty.
    fn background(&self, args: &[&str], prefix: &'static str) -> Result<Background, Failure> {
        say(&format!("$ vmprobe {} &", quoted(args)));
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Failure::io("start vmprobe"))?;
        let input = child.stdin.take();
        let output = child
            .stdout
            .take()
            .ok_or_else(|| wrong!("vmprobe has no output"))?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if !prefix.is_empty() {
                    say(&format!("{prefix}{}", line.trim_end()));
                }
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Background {
            child,
            input,
            lines,
        })
    }
}

impl Cli<'_> {
    /// Waits until the list of probes has this number of lines and all probes are enabled. Commands enable theirs when
    /// they are ready for events.
    fn wait_for_probes(&self, lines: usize) -> Result<(), Failure> {
        loop {
            let listed = self.command(&["probe", "list"]).output();
            let listed = listed.map_err(Failure::io("start vmprobe"))?;
            let listed = String::from_utf8_lossy(&listed.stdout);
            if listed.lines().count() >= lines && !listed.contains(" disabled ") {
                return Ok(());
            }
        }
    }
}

fn quoted(args: &[&str]) -> String {
    let quote = |arg: &&str| {
        if arg.contains([' ', '*', '$', '(']) {
            format!("'{arg}'")
        } else {
            (*arg).to_owned()
        }
    };
    args.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// A command in the background.
struct Background {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// What a command in the background left.
struct Left {
    output: Vec<String>,
    notes: String,
}

impl Background {
    fn wait_for(&self, text: &str) -> Result<(), Failure> {
        loop {
            match self.lines.recv() {
                Ok(line) if line.contains(text) => return Ok(()),
                Ok(_) => {}
                Err(_) => return Err(wrong!("vmprobe ended without a line with {text:?}")),
            }
        }
    }

    fn line(&self) -> Result<String, Failure> {
        let line = self.lines.recv();
        line.map_err(|_| wrong!("vmprobe ended too early"))
    }

    fn try_line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    fn send(&mut self, line: &str) -> Result<(), Failure> {
        let input = self
            .input
            .as_mut()
            .ok_or_else(|| wrong!("vmprobe has no input"))?;
        let sent = input.write_all(format!("{line}\n").as_bytes());
        sent.and_then(|()| input.flush())
            .map_err(Failure::io("type on the guest's console"))
    }

    /// Waits for its end.
    fn finish(mut self) -> Result<Left, Failure> {
        let output = self.lines.iter().collect();
        let mut notes = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors
                .read_to_string(&mut notes)
                .map_err(Failure::io("read vmprobe's notes"))?;
        }
        let status = self.child.wait().map_err(Failure::io("wait for vmprobe"))?;
        if !status.success() {
            return Err(wrong!("vmprobe failed ({status}): {notes}"));
        }
        Ok(Left {
            output,
            notes: notes.trim_end().to_owned(),
        })
    }
}
