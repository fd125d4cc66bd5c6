//! A server that is watched: by a Prometheus, by a browser, by whoever reads its log.

mod dashboard;
pub mod http;
mod log;
mod page;
mod prometheus;
mod scrape;

use iced_x86::code_asm::{al, dx};
use tiny_kernel::{self as image, COM1};
use vmprobe_client::Client;
use vmprobe_client::v1::probe_spec::Place;
use vmprobe_client::v1::{CreateVmRequest, ProbeSpec, SymbolPlace};

use crate::console::Console;
use crate::context::Context;
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
];

/// A function of the guest that it calls once for each byte that it is sent.
const CALLED: &str = "called";
/// A function that it calls all the time.
const BUSY: &str = "busy";
/// A VM's name that a page has to take as a text.
const VM: &str = "web-1.example";
/// A probe's name that isn't nice to quote.
const PROBE: &str = r#"<b/id="x">&\"#;

/// A server that tells metrics, with a VM whose guest runs, and whose functions have a probe each.
#[derive(Debug)]
struct Watched {
    client: Client,
    console: Console,
    server: Server,
    /// Where metrics are told: an IP address and a port.
    metrics: String,
}

impl Watched {
    async fn start(cx: &Context) -> Result<Self, Failure> {
        let watched = Self::held(cx).await?;
        watched.client.start_vm(VM).await?;
        Ok(watched)
    }

    /// As [`start`](Self::start), before the guest's first instruction.
    async fn held(cx: &Context) -> Result<Self, Failure> {
        let server = Server::start_with(cx, |command| {
            command.args(["--plain-text", "--metrics", "127.0.0.1:0"]);
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

    /// Has the guest call its function so many times; returns when it has.
    async fn call(&mut self, times: usize) -> Result<(), Failure> {
        let text = vec![b'.'; times];
        self.console.send(&text).await?;
        check_eq!(self.console.bytes(times).await?, text, "the guest's answer");
        Ok(())
    }

    /// An answer of its own to a question for this path.
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

/// A VM that sends back each byte that it is sent, once it has called a function for it.
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
        // An instruction has one label at most.
        names.here(a, CALLED)?;
        a.nop()?;
        a.ret()?;
        a.set_label(&mut busy)?;
        a.nop()?;
        // An instruction has one label at most.
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
