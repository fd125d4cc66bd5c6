//! Debian's gdb, attached to a guest by `vmprobe gdb`.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::context::Context;
use crate::note;
use crate::test::{Failure, wrong};

/// A `vmprobe gdb` that waits for gdb. It ends when this is dropped.
#[derive(Debug)]
pub struct GdbServer {
    process: Child,
    address: String,
}

impl GdbServer {
    /// Starts `vmprobe gdb` for the only VM of a server.
    ///
    /// # Errors
    /// If `vmprobe gdb` doesn't get to wait for gdb.
    pub fn start(cx: &Context, endpoint: &str) -> Result<Self, Failure> {
        let mut process = Command::new(cx.program("vmprobe"))
            .args(["gdb", "--listen", "127.0.0.1:0", "-o", "json"])
            .args(["--server", endpoint])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::io("start vmprobe gdb"))?;
        let mut told = String::new();
        if let Some(output) = process.stdout.take() {
            let read = BufReader::new(output).read_line(&mut told);
            read.map_err(Failure::io("read what vmprobe gdb tells"))?;
        }
        let told: Value =
            serde_json::from_str(&told).map_err(|error| wrong!("{error}: {told:?}"))?;
        Ok(Self {
            process,
            address: told["address"].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// Connects as any local program may, sends bytes, and disconnects.
    ///
    /// # Errors
    /// If `vmprobe gdb` doesn't take the connection.
    pub fn send(&self, bytes: &[u8]) -> Result<(), Failure> {
        let connected = TcpStream::connect(&self.address);
        let sent = connected.and_then(|mut connection| connection.write_all(bytes));
        sent.map_err(Failure::io("connect to vmprobe gdb"))
    }

    /// A command line of gdb that attaches and does these commands one after the other. Then gdb detaches and ends.
    /// `symbols` is the ELF file of the guest's kernel.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn gdb(
        &self,
        cx: &Context,
        symbols: Option<&Path>,
        commands: &[String],
    ) -> Result<Command, Failure> {
        let mut gdb = Command::new(cx.program("gdb"));
        gdb.args(["-nx", "-batch"]).args(symbols);
        let attach = format!("target remote {}", self.address);
        let first = ["set confirm off", "set pagination off", &attach];
        for command in first.into_iter().chain(commands.iter().map(String::as_str)) {
            gdb.args(["-ex", command]);
        }
        gdb.stdin(Stdio::null());
        Ok(gdb)
    }

    /// Returns what gdb prints at these commands, line by line.
    ///
    /// # Errors
    /// If it can't be started, or fails.
    pub fn ask(
        &self,
        cx: &Context,
        symbols: Option<&Path>,
        commands: &[String],
    ) -> Result<Vec<String>, Failure> {
        let mut gdb = self.gdb(cx, symbols, commands)?;
        let output = gdb.output().map_err(Failure::io("start gdb"))?;
        let lines = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let said = lines(&output.stdout);
        for line in said.iter().chain(&lines(&output.stderr)) {
            note(&format!("# gdb: {line}"));
        }
        match output.status.success() {
            true => Ok(said),
            false => Err(wrong!("gdb ended with {}", output.status)),
        }
    }
}

impl Drop for GdbServer {
    fn drop(&mut self) {
        let _it_may_have_ended = self.process.kill();
        let _it_has_ended = self.process.wait();
    }
}

/// Returns the last value that gdb has printed with this prefix, such as `$3 = `.
///
/// # Errors
/// If there is none.
pub fn printed<'l>(lines: &'l [String], prefix: &str) -> Result<&'l str, Failure> {
    let found = lines
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix(prefix));
    found.ok_or_else(|| wrong!("gdb has printed no `{prefix}`: {lines:?}"))
}
