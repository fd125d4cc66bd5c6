//! The log for programs.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::request;
use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const LINES: Test = Test {
    name: "each_line_of_the_log_is_json_with_its_vm_and_no_line_has_a_token",
    ids: &["SV06"],
    needs: Needs::Tiny,
    run: lines,
};

/// A client's secret, and its SHA-256.
const TOKEN: &str = "quite-secret-7f1d";
const DIGEST: &str = "a77b8b90316e83dee3edee31b2b4d9bf933a8d332adcab268709591108667007";

fn run(cx: &Context, arguments: &[&str]) -> Result<(bool, String), Failure> {
    let mut command = Command::new(cx.program("vmprobe"));
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(Failure::io("run vmprobe"))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.success(), errors))
}

/// Asks for metrics as a client with a token does.
async fn ask_with_token(socket: &Path) -> Result<(), Failure> {
    let io = || Failure::io("ask for metrics");
    let mut stream = UnixStream::connect(socket).await.map_err(io())?;
    let request = format!(
        "GET /metrics HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(io())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(io())?;
    check!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    Ok(())
}

fn lines(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let at = |name: &str| folder.path().join(name);
    let certs = at("certs").to_string_lossy().into_owned();
    let (made, errors) = run(cx, &["certs", "init", "--dir", &certs])?;
    check!(made, "{errors}");
    let certs = at("certs");
    let client =
        format!("\n[[client]]\nname = 'with-token'\ntoken-sha256 = '{DIGEST}'\nrole = 'observe'\n");
    let list = OpenOptions::new()
        .append(true)
        .open(certs.join("clients.toml"));
    let added = list.and_then(|mut list| list.write_all(client.as_bytes()));
    added.map_err(Failure::io("add a client"))?;
    let log = File::create(at("log")).map_err(Failure::io("make a log"))?;
    let server = Server::start_with(cx, |command| {
        command.args(["--log-format", "json", "--log-level", "trace"]);
        command.args(["--listen", "127.0.0.1:0"]);
        command.arg("--tls-cert").arg(certs.join("server.pem"));
        command.arg("--tls-key").arg(certs.join("server.key"));
        command.arg("--tls-client-ca").arg(certs.join("ca.pem"));
        command.arg("--clients").arg(certs.join("clients.toml"));
        command
            .arg("--metrics")
            .arg(format!("unix:{}", at("metrics").display()));
        command.stderr(log);
    })?;
    let endpoint = server.next_endpoint()?;
    let ca = certs.join("ca.pem").to_string_lossy().into_owned();
    let wrong_token = format!("{TOKEN}-wrong");
    for (token, is_known) in [(TOKEN, true), (&wrong_token, false)] {
        let file = at("token");
        fs::write(&file, token).map_err(Failure::io("write a token"))?;
        let file = file.to_string_lossy().into_owned();
        let credentials = [
            "--server",
            &endpoint,
            "--tls-ca",
            &ca,
            "--token-file",
            &file,
        ];
        let (succeeded, errors) = run(cx, &[&["vm", "list"][..], &credentials].concat())?;
        check_eq!(succeeded, is_known, "whether the token is taken: {errors}");
    }
    let made = cx.block_on(async {
        ask_with_token(&at("metrics")).await?;
        let client = server.client().await?;
        client.create_vm(request("logged")?).await?;
        client.delete_vm("logged").await?;
        pass_with("")
    });
    made?;
    server.stop()?;
    let text = fs::read_to_string(at("log")).map_err(Failure::io("read the log"))?;
    check!(!text.contains(TOKEN), "a token is in the log");
    let mut told = Vec::new();
    for line in text.lines() {
        let event: Value =
            serde_json::from_str(line).map_err(|error| wrong!("{error} in {line:?}"))?;
        for part in ["time", "level", "target", "message"] {
            check!(event[part].is_string(), "{part} is missing in {line}");
        }
        told.push(event);
    }
    let find = |message: &str| {
        let mut found = told.iter().filter(|event| event["message"] == message);
        let event = found.next();
        event.ok_or_else(|| wrong!("nothing tells that it is {message}"))
    };
    // These are from the process of the VM, and from the one that clients connect to.
    for message in ["created", "deleted"] {
        check_eq!(find(message)?["vm"], "logged", "the VM that was {message}");
    }
    let refused = told.iter().any(|event| {
        let message = event["message"].as_str().unwrap_or_default();
        event["level"] == "WARN" && message.contains("knows no client with this token")
    });
    check!(refused, "nothing tells of a wrong token");
    // Messages of libraries in the process of a VM have the VM's name, too.
    let h2 = |event: &&Value| {
        event["target"]
            .as_str()
            .is_some_and(|it| it.starts_with("h2"))
    };
    check!(
        told.iter().filter(h2).any(|event| event["vm"] == "logged"),
        "no library tells anything in the process of the VM"
    );
    pass_with(format!("{} lines", told.len()))
}
