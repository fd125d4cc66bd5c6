//! Registration of the same probes on many servers at once (SV10), each of which runs a guest in a process of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use vmprobe_client::fleet::{Fleet, FleetMessage, FleetOptions, Host};
use vmprobe_client::v1::ProbeSpec;
use vmprobe_client::{ClientError, spec};

use crate::in_process::{InProcessError, Running, Transport, create_guest};
use crate::report::Entry;
use crate::stops::{FUNCTION, Loop, kernel};

const VM: &str = "fleet";
/// Probes of each guest.
const PROBES: usize = 1000;
/// Numbers of servers. The difference between one and many is what they cost each other.
const HOSTS: [usize; 2] = [1, 50];
/// Registrations; the figure is that of the one in the middle.
const ROUNDS: usize = 5;
/// How long events wait for those of a silent VM. No event comes.
const WINDOW: Duration = Duration::from_secs(2);

/// Why no registration was measured.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// There is no runtime, no server or no guest.
    #[error(transparent)]
    InProcess(#[from] InProcessError),
    /// A probe isn't one.
    #[error("the probe {0} is not understood")]
    Spec(String),
    /// A server or a VM doesn't take the probes.
    #[error("instead of its VM's probes a server told {0}")]
    Told(String),
}

impl From<ClientError> for FleetError {
    fn from(error: ClientError) -> Self {
        Self::InProcess(error.into())
    }
}

/// Measures it with VMs in processes of the server's program.
///
/// # Errors
/// See [`FleetError`].
pub fn measure(program: &Path) -> Result<Vec<Entry>, FleetError> {
    let runtime = Runtime::new().map_err(|error| InProcessError::Io("start a runtime", error))?;
    runtime.block_on(async {
        let mut entries = Vec::new();
        let mut servers = Vec::new();
        for count in HOSTS {
            while servers.len() < count {
                servers.push(server(program).await?);
            }
            entries.push(register(&servers).await?);
        }
        for server in servers {
            server.end().await;
        }
        Ok(entries)
    })
}

/// A server with a guest that is halted.
async fn server(program: &Path) -> Result<Running, FleetError> {
    let running = Running::start(Transport::Plain, Some(program)).await?;
    let client = running.connect().await?;
    let code = kernel(Loop::Halts, PROBES).map_err(InProcessError::from)?;
    create_guest(&client, VM, &code).await?;
    client.start_vm(VM).await?;
    Ok(running)
}

/// Measures the time until the last VM has its probes.
async fn register(servers: &[Running]) -> Result<Entry, FleetError> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let hosts = servers.iter().enumerate().map(|(index, server)| Host {
            name: index.to_string(),
            endpoint: server.endpoint.clone(),
            credentials: server.credentials.clone(),
        });
        let options = FleetOptions {
            probes: probes()?,
            vms: "*".into(),
            window: WINDOW,
            linger: Duration::ZERO,
        };
        let began = Instant::now();
        let mut fleet = Fleet::follow(hosts.collect(), options);
        for _ in 0..servers.len() {
            match fleet.next().await {
                Some(FleetMessage::Joined(vm)) if vm.probes.len() == PROBES => {}
                other => return Err(FleetError::Told(format!("{other:.200?}"))),
            }
        }
        times.push(began.elapsed());
        fleet.close().await;
    }
    times.sort_unstable();
    let time = times[ROUNDS / 2];
    let all = PROBES * servers.len();
    let how = format!(
        "from connecting to the last word that probes are in, {PROBES} probes on each of {} servers with a halted \
         guest in a process of its own; median of {ROUNDS}",
        servers.len()
    );
    let note = format!("{:.1} us a probe", time.as_secs_f64() * 1e6 / all as f64);
    let milliseconds = (time.as_secs_f64() * 1e4).round() / 10.0;
    let entry = Entry::native("SV10", milliseconds, "ms", how).note(note);
    Ok(Entry {
        place: "host",
        ..entry
    })
}

fn probes() -> Result<Vec<ProbeSpec>, FleetError> {
    let specs = (0..PROBES).map(|index| {
        let text = format!("p {FUNCTION}{index}");
        spec::parse(&text).map_err(|_| FleetError::Spec(text))
    });
    specs.collect()
}
