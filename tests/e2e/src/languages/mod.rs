//! Clients in other languages: the examples that users start from. Each of them calls every method that there is.

mod guest;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prost::Message;
use prost_types::FileDescriptorSet;
use tempfile::TempDir;
use vmprobe_client::v1;

use crate::context::Context;
use crate::http;
use crate::remote::{Remote, errors};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_client_in_node_calls_every_method_with_a_certificate_and_with_a_token",
        ids: &["SV01"],
        needs: Needs::Host,
        run: node,
    },
    Test {
        name: "a_client_in_python_calls_every_method_with_a_certificate_and_with_a_token",
        ids: &["SV01"],
        needs: Needs::Host,
        run: python,
    },
];

/// A client's secret, and its SHA-256.
const TOKEN: &str = "quite-secret-7f1d";
const DIGEST: &str = "a77b8b90316e83dee3edee31b2b4d9bf933a8d332adcab268709591108667007";

fn node(cx: &Context) -> TestResult {
    tours(cx, || {
        let mut node = Command::new("node");
        node.arg(cx.program("examples/node/tour.mjs"));
        node
    })
}

fn python(cx: &Context) -> TestResult {
    tours(cx, || {
        let mut python = Command::new("python3");
        python
            .arg(cx.program("examples/python/tour.py"))
            .env("PYTHONPATH", cx.program("examples/python/packages"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        python
    })
}

/// Runs a client once with its certificate and once with a token, each time with a server of its own, and then checks
/// in the server's metrics which methods were called.
fn tours(cx: &Context, client: impl Fn() -> Command) -> TestResult {
    let expected = methods()?;
    for by_token in [false, true] {
        let tour = Tour::prepare(cx)?;
        tour.run(client(), by_token)?;
        let answered = tour.answered(cx)?;
        let missing: Vec<_> = expected.difference(&answered).collect();
        check!(
            missing.is_empty(),
            "these have not answered the client with OK: {missing:?}"
        );
    }
    pass_with(format!("{} methods", expected.len()))
}

/// A server for one client, and the client's files.
struct Tour {
    remote: Remote,
    folder: TempDir,
}

impl Tour {
    fn prepare(cx: &Context) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, bytes: &[u8]| {
            fs::write(at(name), bytes).map_err(Failure::io(format!("write {name}")))
        };
        write("kernel", &guest::kernel()?)?;
        write("token", TOKEN.as_bytes())?;
        let remote = Remote::start(cx, &["alice=control"], |command| {
            command.arg("--allow-changes");
            command.arg("--images").arg(at("images"));
            let metrics = format!("unix:{}", at("metrics").display());
            command.args(["--metrics", &metrics]);
        })?;
        add_client_with_token(&remote.certs())?;
        let tour = Self { remote, folder };
        // The server reads a changed list a moment later.
        while !tour.is_token_known(cx)? {}
        Ok(tour)
    }

    fn is_token_known(&self, cx: &Context) -> Result<bool, Failure> {
        let mut list = Command::new(cx.program("vmprobe"));
        list.args(["vm", "list", "--server", &self.remote.endpoint]);
        list.arg("--tls-ca").arg(self.remote.certs().join("ca.pem"));
        list.arg("--token-file").arg(self.at("token"));
        let output = list.stdin(Stdio::null()).output();
        Ok(output.map_err(Failure::io("run vmprobe"))?.status.success())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, mut client: Command, by_token: bool) -> Result<(), Failure> {
        let certs = self.remote.certs();
        let address = self.remote.endpoint.trim_start_matches("https://");
        client.args(["--server", address]);
        client.arg("--ca").arg(certs.join("ca.pem"));
        if by_token {
            client.arg("--token-file").arg(self.at("token"));
        } else {
            client.arg("--cert").arg(certs.join("alice.pem"));
            client.arg("--key").arg(certs.join("alice.key"));
        }
        client.arg("--kernel").arg(self.at("kernel"));
        client.args(["--function", guest::FUNCTION, "--type", guest::TYPE]);
        client.args(["--input", guest::INPUT]);
        client.arg("--dump").arg(self.at("dump"));
        let output = client.stdin(Stdio::null()).output();
        let output = output.map_err(Failure::io("run the client"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        check!(output.status.success(), "{said}{}", errors(&output));
        check!(said.ends_with("done\n"), "{said}");
        let dump = fs::read(self.at("dump")).map_err(Failure::io("read the dump"))?;
        check_eq!(
            dump.get(..4),
            Some(&b"\x7fELF"[..]),
            "what the dump begins with"
        );
        Ok(())
    }

    /// Returns the methods that have answered with OK, by the server's metrics.
    fn answered(&self, cx: &Context) -> Result<BTreeSet<String>, Failure> {
        let mut told = String::new();
        cx.block_on(async {
            told = http::get_by_socket(&self.at("metrics"), "/metrics").await?;
            pass_with("")
        })?;
        let method = |line: &str| {
            let labels = line.strip_prefix("vmprobe_calls_total{method=\"")?;
            let (method, rest) = labels.split_once('"')?;
            rest.starts_with(",code=\"OK\"").then(|| method.to_owned())
        };
        Ok(told.lines().filter_map(method).collect())
    }
}

/// Adds a client with a token to the server's list.
fn add_client_with_token(certs: &Path) -> Result<(), Failure> {
    let client =
        format!("\n[[client]]\nname = 'with-token'\ntoken-sha256 = '{DIGEST}'\nrole = 'control'\n");
    let list = OpenOptions::new()
        .append(true)
        .open(certs.join("clients.toml"));
    let added = list.and_then(|mut list| list.write_all(client.as_bytes()));
    added.map_err(Failure::io("add a client"))
}

/// Returns all methods of the protocol by reflection, under the names that metrics have for them.
fn methods() -> Result<BTreeSet<String>, Failure> {
    let set = FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET);
    let set = set.map_err(|error| wrong!("the protocol's descriptors: {error}"))?;
    let services = set.file.iter().flat_map(|file| &file.service);
    let methods = services.flat_map(|service| {
        let methods = service.method.iter();
        methods.map(move |method| format!("{}/{}", service.name(), method.name()))
    });
    let mut methods: BTreeSet<_> = methods.collect();
    check!(methods.len() > 30, "too few methods: {methods:?}");
    methods.insert("grpc.health.v1.Health/Check".into());
    Ok(methods)
}
