//! A server that is watched: by a Prometheus, by a browser, by readers of its log, by a receiver of metrics and logs.

mod dashboard;
mod log;
mod otlp;
mod page;
mod prometheus;
mod scrape;

use std::process::Command;

use iced_x86::code_asm::{al, dx};
use tiny_kernel::{self as image, COM1};
use vmprobe_client::Client;
use vmprobe_client::v1::probe_spec::Place;
use vmprobe_client::v1::{CreateVmRequest, ProbeSpec, SymbolPlace};

use crate::console::Console;
use crate::context::Context;
use crate::http;
use crate::server::Server;
use crate::test::{Failure, Test, check_eq};

pub const TESTS: &[Test] = &[
    scrape::COUNTS,
    scrape::HANGS,
    log::LINES,
    prometheus::SCRAPES,
    prometheus::CHECKED,
    dashboard::EXPRESSIONS,
    dashboard::DOCUMENTED,
    page::SHOWN,
    otlp::SAME,
    otlp::AWAY,
    otlp::STORED,
    otlp::EVENTS,
];

/// A function that the guest calls once for each byte that it is sent.
const CALLED: &str = "called";
/// A function that the guest calls all the time.
const BUSY: &str = "busy";
/// A VM's name that a page must treat as a text.
const VM: &str = "web-1.example";
/// A probe's name with characters that have to be escaped.
const PROBE: &str = r#"<b/id="x">&\"#;

/// A server with metrics, with a VM whose guest runs, and with a probe on each of its functions.
#[derive(Debug)]
struct Watched {
    client: Client,
    console: Console,
    server: Server,
    /// Where metrics are served: an IP address and a port.
    metrics: String,
}

impl Watched {
    async fn start(cx: &Context) -> Result<Self, Failure> {
        Self::start_with(cx, |_| {}).await
    }

    /// As [`start`](Self::start); `change` can change the server's command before.
    async fn start_with(cx: &Context, change: impl FnOnce(&mut Command)) -> Result<Self, Failure> {
        let watched = Self::held_with(cx, change).await?;
        watched.client.start_vm(VM).await?;
        Ok(watched)
    }

    /// As [`start`](Self::start), before the guest's first instruction.
    async fn held(cx: &Context) -> Result<Self, Failure> {
        Self::held_with(cx, |_| {}).await
    }

    async fn held_with(cx: &Context, change: impl FnOnce(&mut Command)) -> Result<Self, Failure> {
        let server = Server::start_with(cx, |command| {
            command.args(["--plain-text", "--metrics", "127.0.0.1:0"]);
            change(command);
        })?;
        let endpoint = server.metrics_endpoint()?;
        let metrics = endpoint.trim_start_matches("http://").to_owned();
        let client = server.client().await?;
        client.create_vm(request(VM)?).await?;
        let console = Console::attach(&client, VM).await?;
        let probes = vec![on(CALLED, PROBE), on(BUSY, "")];
        client.register_probes(VM, probes).await?;
        Ok(Self {
            client,
            console,
            server,
            metrics,
        })
    }

    /// Has the guest call its function `times` times, and returns when it has.
    async fn call(&mut self, times: usize) -> Result<(), Failure> {
        let text = vec![b'.'; times];
        self.console.send(&text).await?;
        check_eq!(self.console.bytes(times).await?, text, "the guest's answer");
        Ok(())
    }

    /// Returns its answer to a GET of this path.
    async fn get(&self, path: &str) -> Result<String, Failure> {
        http::get(&self.metrics, path).await
    }
}

/// A probe on a function of the guest.
fn on(symbol: &str, name: &str) -> ProbeSpec {
    ProbeSpec {
        name: name.into(),
        place: Some(Place::Symbol(SymbolPlace {
            symbol: symbol.into(),
            ..Default::default()
        })),
        ..Default::default()
    }
}

/// A VM whose guest echoes each byte, after it has called a function for it.
fn request(name: &str) -> Result<CreateVmRequest, Failure> {
    let kernel = image::build(|a, names| {
        let mut again = a.create_label();
        let mut called = a.create_label();
        let mut busy = a.create_label();
        a.set_label(&mut again)?;
        a.call(busy)?;
        a.mov(dx, u32::from(COM1 + 5))?;
        a.in_(al, dx)?;
        a.test(al, 1)?;
        a.jz(again)?;
        a.mov(dx, u32::from(COM1))?;
        a.in_(al, dx)?;
        a.call(called)?;
        a.out(dx, al)?;
        a.jmp(again)?;
        a.set_label(&mut called)?;
        a.nop()?;
        // An instruction can have only one label.
        names.here(a, CALLED)?;
        a.nop()?;
        a.ret()?;
        a.set_label(&mut busy)?;
        a.nop()?;
        // An instruction can have only one label.
        names.here(a, BUSY)?;
        a.nop()?;
        a.ret()
    })?;
    let path = std::env::temp_dir().join("watched-kernel");
    std::fs::write(&path, kernel).map_err(Failure::io("write a kernel"))?;
    Ok(CreateVmRequest {
        name: name.into(),
        kernel: path.to_string_lossy().into_owned(),
        memory_mib: 64,
        hold: true,
        ..Default::default()
    })
}
