//! The program `vmprobed`: its announcement, its exit codes and its end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

fn vmprobed(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmprobed"));
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts a server on a free port; returns when it listens, with its output and its endpoint.
fn started(args: &[&str]) -> (Child, BufReader<ChildStdout>, String) {
    let mut child = vmprobed(&[&["--plain-text", "--listen", "127.0.0.1:0"], args].concat())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let endpoint = line
        .trim_end()
        .strip_prefix("listening on ")
        .expect(&line)
        .to_owned();
    (child, output, endpoint)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_accepts_connections_once_it_has_announced_itself() {
    let (mut child, _output, endpoint) = started(&["--exit-with-stdin"]);
    let client = vmprobe_client::Client::connect(&endpoint).await.unwrap();
    assert!(client.list_vms().await.unwrap().is_empty());
    drop(client);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_server_ends_when_the_process_that_started_it_goes() {
    let (mut child, mut output, _) = started(&["--exit-with-stdin"]);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "standard output has one line only");
}

#[test]
fn a_signal_ends_it_with_success() {
    for signal in ["TERM", "INT"] {
        let (mut child, _output, _) = started(&[]);
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &pid])
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_port_in_use_is_exit_code_2_and_a_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = vmprobed(&["--plain-text", "--listen", &address])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        text(&output),
        format!(
            "vmprobed: {address} is in use: stop what listens there, or choose another address with \
             --listen\n"
        )
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn an_address_of_tcp_is_exit_code_2_without_tls() {
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let output = vmprobed(&["--listen", listen]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = text(&output);
        assert!(text.contains("is for those who come by TLS"), "{text}");
    }
    let output = vmprobed(&["--plain-text", "--listen", "0.0.0.0:0"]).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}

#[test]
fn a_socket_where_none_can_be_is_exit_code_2() {
    let listen = "unix:/proc/nowhere/a.sock";
    let output = vmprobed(&["--listen", listen]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = text(&output);
    assert!(
        text.contains(&format!("can't listen on {listen}")),
        "{text}"
    );
}
