//! A server for remote clients, as its owner sets it up by the command line.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::context::Context;
use crate::remote::{Remote, errors};
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass};

pub const ROLES: Test = Test {
    name: "clients_with_certificates_do_by_tls_what_their_roles_allow",
    ids: &["SV04"],
    needs: Needs::None,
    run: roles,
};

pub const REFUSED: Test = Test {
    name: "a_server_without_tls_listens_where_others_do_not_reach_it",
    ids: &["SV04"],
    needs: Needs::None,
    run: refused,
};

fn run(cx: &Context, arguments: &[&str]) -> Result<Output, Failure> {
    let mut command = Command::new(cx.program("vmprobe"));
    command.args(arguments).stdin(Stdio::null());
    command.output().map_err(Failure::io("run vmprobe"))
}

fn roles(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let audit = folder.path().join("audit.jsonl");
    let remote = Remote::start(cx, &["alice=control", "bob"], |command| {
        command.arg("--audit-log").arg(&audit);
    })?;
    let certs = remote.certs();
    let dir = certs.to_string_lossy().into_owned();
    let key = fs::metadata(certs.join("alice.key")).map_err(Failure::io("look at a key"))?;
    check_eq!(key.mode() & 0o777, 0o600, "permissions of a key");
    // Existing files aren't overwritten.
    let again = run(cx, &["certs", "init", "--dir", &dir])?;
    check_eq!(
        again.status.code(),
        Some(1),
        "exit code of another one in the same folder"
    );

    let endpoint = &remote.endpoint;
    check!(endpoint.starts_with("https://127.0.0.1:"), "{endpoint}");
    let create = ["vm", "create", "--kernel", "/nowhere/kernel"];
    for (client, arguments, code, part) in [
        ("alice", &["vm", "list", "--json"][..], 0, ""),
        ("bob", &["vm", "list", "--json"], 0, ""),
        ("alice", &create, 1, "may name no files of its host"),
        (
            "bob",
            &create,
            1,
            "takes the role `control`, and client `bob` has `observe`",
        ),
    ] {
        let output = remote.run(client, arguments)?;
        let errors = errors(&output);
        check_eq!(
            output.status.code(),
            Some(code),
            "exit code for {client}: {errors}"
        );
        check!(errors.contains(part), "{errors}");
    }
    // A client that is added later is known without a restart.
    let added = run(cx, &["certs", "client", "--dir", &dir, "carol"])?;
    check!(added.status.success(), "{}", errors(&added));
    while remote.run("carol", &["vm", "list"])?.status.code() != Some(0) {}
    // Existing files stay, unless they are to be replaced; the list has each client once.
    let list =
        || fs::read_to_string(certs.join("clients.toml")).map_err(Failure::io("read the list"));
    let before = list()?;
    let renew = ["certs", "client", "--dir", &dir, "carol"];
    let refused = run(cx, &renew)?;
    let told = errors(&refused);
    check!(told.contains("is there already: --replace"), "{told}");
    let renewed = run(cx, &[&renew[..], &["--replace"]].concat())?;
    check!(renewed.status.success(), "{}", errors(&renewed));
    check_eq!(
        remote.run("carol", &["vm", "list"])?.status.code(),
        Some(0),
        "exit code"
    );
    check_eq!(list()?, before, "the list of clients");

    check_lines(&audit)?;
    pass()
}

/// Checks that the audit log has each call that was to change something, and the client that made
/// it.
fn check_lines(audit: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(audit).map_err(Failure::io("read the audit log"))?;
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_default())
        .collect();
    let told: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line["client"].as_str(),
                line["call"].as_str(),
                line["code"].as_i64(),
            )
        })
        .collect();
    let create = Some("VmService/CreateVm");
    let expected = [
        (Some("alice"), create, Some(7)),
        (Some("bob"), create, Some(7)),
    ];
    check_eq!(told, expected, "lines of the audit log");
    Ok(())
}

fn refused(cx: &Context) -> TestResult {
    for (arguments, part) in [
        (
            &["--listen", "0.0.0.0:0"][..],
            "is for those who come by TLS",
        ),
        (&["--listen", "127.0.0.1:0"], "is for those who come by TLS"),
        (
            &["--plain-text", "--listen", "0.0.0.0:0"],
            "is for those who come by TLS",
        ),
    ] {
        let output = Command::new(cx.program("vmprobed"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(Failure::io("start vmprobed"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        check_eq!(output.status.code(), Some(2), "exit code: {errors}");
        check!(errors.contains(part), "{errors}");
    }
    // Only the owner can open the socket.
    let server = Server::start(cx)?;
    let socket = server.endpoint.trim_start_matches("unix:").to_owned();
    let found = fs::metadata(&socket).map_err(Failure::io("look at the socket"))?;
    check_eq!(found.mode() & 0o777, 0o600, "permissions of the socket");
    pass()
}
