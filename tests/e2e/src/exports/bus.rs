//! Events to NATS.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use test_certificates::{Authority, Signed};
use tokio::time::sleep;

use super::command::{Export, HOST, number};
use super::guest::{self, VM};
use super::nats::Nats;
use super::one_way::OneWay;
use super::python;
use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const RESTARTED: Test = Test {
    name: "every_hit_is_once_and_in_order_in_a_stream_of_nats_that_was_killed_meanwhile",
    ids: &["SV10"],
    needs: Needs::Host,
    run: restarted,
};

pub const FORGOTTEN: Test = Test {
    name: "every_hit_is_once_and_in_order_in_a_stream_of_nats_that_has_forgotten_what_came_before_the_break",
    ids: &["SV10"],
    needs: Needs::Host,
    run: forgotten,
};

pub const AWAY: Test = Test {
    name: "an_export_that_ends_while_nats_is_away_says_how_many_events_are_not_confirmed",
    ids: &["SV10"],
    needs: Needs::Host,
    run: away,
};

pub const SECURED: Test = Test {
    name: "an_export_shows_nats_its_certificate_and_who_it_is_and_trusts_its_authority_alone",
    ids: &["SV10"],
    needs: Needs::Host,
    run: secured,
};

const STREAM: &str = "EVENTS";
const HITS: u32 = 4000;
/// Messages in the stream when its server is killed.
const BEFORE: u64 = 500;
/// Messages that it stores after that and whose confirmations are kept back.
const UNCONFIRMED: u64 = 200;
/// The least time for which a server recognizes messages that it has stored.
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);
/// Events of an export to a server that accepts its client.
const FEW: &str = "50";

fn restarted(cx: &Context) -> TestResult {
    broken(cx, false)
}

fn forgotten(cx: &Context) -> TestResult {
    broken(cx, true)
}

/// Exports to a server that is killed and started again after it has stored messages whose confirmations were kept
/// back. If `is_forgotten`, the time in which the stream recognizes stored messages is over by then.
fn broken(cx: &Context, is_forgotten: bool) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let folder = folder.path();
    cx.block_on(async {
        let mut nats = Nats::start(cx, folder, &[]).await?;
        let url = format!("nats://{}", nats.address());
        if is_forgotten {
            let script = include_str!("stream.py");
            let _made: String = python::run(cx, script, &[url.as_ref(), STREAM.as_ref()]).await?;
        }
        let server = Server::start(cx)?;
        let client = server.client().await?;
        guest::create(&client, folder, HITS).await?;
        let between = OneWay::to(nats.address()).await?;
        let exported_to = format!("nats://{}", between.address);
        let args = [
            "--nats",
            &exported_to,
            "--nats-stream",
            STREAM,
            "--drain",
            "60",
        ];
        let mut export = Export::start(cx, &server, folder, "", &args)?;
        export.says(&format!("{HOST}/{VM}: 1 probes")).await?;
        client.start_vm(VM).await?;
        nats.has(BEFORE).await?;
        between.silence(true);
        let unconfirmed = nats.messages().await? + UNCONFIRMED;
        nats.has(unconfirmed).await?;

        nats.kill().await?;
        export.says("nats is away: ").await?;
        between.silence(false);
        if is_forgotten {
            sleep(2 * SHORTEST_WINDOW).await;
        }
        nats.start_again(cx).await?;
        export.says("nats is back").await?;
        nats.has(HITS.into()).await?;
        guest::check_hits(&client, HITS.into()).await?;

        export.interrupt()?;
        check_eq!(export.end().await?, Some(0), "exit code");
        let notes = export.notes()?;
        for expected in [
            format!("{HITS} events, 0 lost, 0 out of order"),
            format!("nats: {HITS} events exported, 0 failed"),
        ] {
            check!(notes.contains(&expected), "{expected:?} isn't in {notes}");
        }
        let script = include_str!("messages.py");
        let messages: Vec<(String, Value, Value)> =
            python::run(cx, script, &[url.as_ref(), STREAM.as_ref()]).await?;
        check_eq!(messages.len(), HITS as usize, "messages");
        let mut last = String::new();
        for (at, (subject, headers, event)) in messages.iter().enumerate() {
            check_eq!(subject, "vmprobe.kvm1_example.web-1.pass", "a subject");
            check_eq!(headers["Content-Type"], "application/json", "of {event}");
            check_eq!(event["arguments"]["n"], at, "the hit in message {at}");
            check_eq!(event["host"], HOST, "the host in {event}");
            check_eq!(event["vm"], VM, "the VM in {event}");
            let time = event["time"].as_str().unwrap_or_default();
            check!(time > last.as_str(), "{time} is not behind {last}");
            last = time.to_owned();
        }
        pass_with(notes.lines().last().unwrap_or_default().to_owned())
    })
}

fn away(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let folder = folder.path();
    cx.block_on(async {
        let mut nats = Nats::start(cx, folder, &[]).await?;
        let url = format!("nats://{}", nats.address());
        let server = Server::start(cx)?;
        let client = server.client().await?;
        guest::create(&client, folder, guest::ENDLESS).await?;
        client.start_vm(VM).await?;
        let args = ["--nats", &url, "--nats-stream", STREAM, "--drain", "1"];
        let mut export = Export::start(cx, &server, folder, "", &args)?;
        nats.has(BEFORE).await?;
        nats.kill().await?;
        export.says("nats is away: ").await?;
        export.interrupt()?;
        check_eq!(export.end().await?, Some(1), "exit code");

        let notes = export.notes()?;
        let unconfirmed = number(&notes, " events are not confirmed by nats")?;
        let events = number(&notes, " events, 0 lost")?;
        let exported = number(&notes, " events exported")?;
        let failed = number(&notes, " failed")?;
        check!(
            unconfirmed > 0 && unconfirmed <= failed && exported + failed == events,
            "the numbers don't go together: {notes}"
        );
        nats.start_again(cx).await?;
        let messages = nats.messages().await?;
        check!(
            (exported..=events).contains(&messages),
            "{messages} messages are there: {notes}"
        );
        pass_with(format!(
            "{exported} of {events} events confirmed, {messages} messages"
        ))
    })
}

/// Files for connections by TLS.
struct Files {
    server: [String; 3],
    client: [String; 3],
}

impl Files {
    fn write(folder: &Path, authority: &Authority) -> Result<Self, Failure> {
        let write = |name: &str, content: &str| {
            let path = folder.join(name).to_string_lossy().into_owned();
            fs::write(&path, content).map_err(Failure::io(format!("write {path}")))?;
            Ok::<_, Failure>(path)
        };
        let made = |error| wrong!("make a certificate: {error}");
        let pair = |name: &str, signed: &Signed| {
            Ok::<_, Failure>([
                write("ca.pem", &authority.pem)?,
                write(&format!("{name}.pem"), &signed.certificate)?,
                write(&format!("{name}.key"), &signed.key)?,
            ])
        };
        Ok(Self {
            server: pair("server", &authority.server().map_err(made)?)?,
            client: pair("client", &authority.client("exporter").map_err(made)?)?,
        })
    }
}

fn secured(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let folder = folder.path();
    let authority = || Authority::new().map_err(|error| wrong!("make an authority: {error}"));
    let other = folder.join("other.pem").to_string_lossy().into_owned();
    fs::write(&other, authority()?.pem).map_err(Failure::io("write a certificate"))?;
    let files = Files::write(folder, &authority()?)?;
    let ([ca, cert, key], [_, own_cert, own_key]) = (&files.server, &files.client);
    let (token, wrong_token) = (folder.join("token"), folder.join("wrong-token"));
    for (file, content) in [(&token, "secret-of-the-bus\n"), (&wrong_token, "guessed\n")] {
        fs::write(file, content).map_err(Failure::io("write a token"))?;
    }
    let [token, wrong_token] = [token, wrong_token].map(|it| it.to_string_lossy().into_owned());
    let tls = [
        "--tlsverify",
        "--tlscacert",
        ca,
        "--tlscert",
        cert,
        "--tlskey",
        key,
    ];
    let by_token = ["--auth", "secret-of-the-bus"];
    let by_user = ["--user", "exporter", "--pass", "a/word"];
    let identity = ["--nats-cert", &**own_cert, "--nats-key", own_key];
    let trust = ["--nats-ca", &**ca];
    let distrust = ["--nats-ca", &*other];
    let shown = ["--nats-token-file", &*token];
    let wrong = ["--nats-token-file", &*wrong_token];
    let all = |more: &[_]| [&trust[..], &identity, more].concat();
    let authorization = Some("authorization violation");
    let certificate = Some("ertificate");
    // What the server asks for; the user in the address; the client's options; why it is refused.
    let cases = [
        (&by_token[..], "", all(&shown), None),
        (&by_token, "", all(&wrong), authorization),
        (&by_token, "", all(&[]), authorization),
        (&by_token, "secret-of-the-bus@", all(&[]), None),
        (&by_user, "exporter:a%2Fword@", all(&[]), None),
        (&by_user, "exporter:guess@", all(&[]), authorization),
        (&by_token, "", [&trust[..], &shown].concat(), certificate),
        (
            &by_token,
            "",
            [&distrust[..], &identity, &shown].concat(),
            certificate,
        ),
    ];
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        guest::create(&client, folder, guest::ENDLESS).await?;
        client.start_vm(VM).await?;
        for (asked, user, has, refusal) in cases {
            let nats = Nats::start(cx, folder, &[&tls[..], asked].concat()).await?;
            let url = format!("tls://{user}{}", nats.address());
            let args = [&["--nats", &*url, "--count", FEW][..], &has].concat();
            let mut export = Export::start(cx, &server, folder, "", &args)?;
            let code = export.end().await?;
            let notes = export.notes()?;
            check!(
                !notes.contains("secret-of-the-bus") && !notes.contains("Fword@"),
                "{notes}"
            );
            let messages = nats.messages().await?;
            match refusal {
                None => {
                    check_eq!(code, Some(0), "exit code: {notes}");
                    check_eq!(messages.to_string(), FEW, "messages: {notes}");
                }
                Some(why) => {
                    check_eq!(code, Some(1), "exit code: {notes}");
                    check!(notes.contains(why), "{why:?} isn't in {notes}");
                    check_eq!(messages, 0, "messages");
                }
            }
        }
        pass()
    })
}
