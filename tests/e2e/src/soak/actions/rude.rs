//! Clients that are killed, ask for impossible things, or don't speak the protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use seeded_random::Random;
use tokio::time::timeout;
use vmprobe_client::v1::{CreateVmRequest, ProbeSpec};
use vmprobe_client::{Client, ClientError, spec};

use super::super::guest::BODIES;
use super::{World, name};
use crate::test::{Failure, check, wrong};

/// What a connection by HTTP/2 begins with (RFC 9113, 3.4), and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Probes of a batch that is cut off.
const BATCH: u64 = 400;
/// Longer than any step takes. It only ends a hanging soak.
const NET: Duration = Duration::from_secs(100);

/// A process that is ended by SIGKILL when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns true if a guest has probes whose names begin with `prefix`.
async fn has(client: &Client, vm: &str, prefix: &str) -> Result<bool, Failure> {
    let listed = client.list_probes(vm).await?;
    Ok(listed.iter().any(|probe| probe.name.starts_with(prefix)))
}

/// Waits until a guest has such probes, or has none.
async fn until(client: &Client, vm: &str, prefix: &str, there: bool) -> Result<(), Failure> {
    let wait = async {
        while has(client, vm, prefix).await? != there {
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    let waited = timeout(NET, wait).await;
    waited.map_err(|_| wrong!("probes {prefix}: not {there} within {NET:?}"))?
}

/// Checks that the probes of a killed process go, whether it had come to register them or not.
pub async fn kill(world: &World, random: &mut Random) -> Result<(), Failure> {
    let client = world.connect().await?;
    let vm = world.guests[random.below(2) as usize].vm;
    let name = name("killed", random);
    let mut command = Command::new(&world.vmprobe);
    let probe = format!("{name}={}", random.pick(&BODIES));
    command.args(["trace", &probe, "--vm", vm]);
    command.args(["--server", &world.server.endpoint]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    let killed = Killed(command.spawn().map_err(Failure::io("run vmprobe"))?);
    if !random.once_in(3) {
        until(&client, vm, &name, true).await?;
    }
    drop(killed);
    until(&client, vm, &name, false).await
}

/// Checks that a bad request is refused for what is wrong with it, and that no part of it is done.
pub async fn wrong(world: &World, random: &mut Random) -> Result<(), Failure> {
    let client = world.connect().await?;
    let guest = &world.guests[random.below(2) as usize];
    let (vm, name) = (guest.vm, name("wrong", random));
    let named = |place: &str| parse(&format!("p:{name} {place}"));
    let refused = match random.below(8) {
        0 => client
            .register_probes(vm, vec![named("emulated")?, named("nowhere")?])
            .await
            .map(drop),
        1 => client
            .register_probes(vm, vec![named("emulated")?, named("emulated+1")?])
            .await
            .map(drop),
        2 => client
            .unregister_probes(vm, vec![u64::MAX], Vec::new())
            .await
            .map(drop),
        3 => client.get_vm(&name).await.map(drop),
        4 => client
            .read_memory(vm, 0, guest.text_at, u32::MAX)
            .await
            .map(drop),
        5 => {
            let request = CreateVmRequest {
                name: vm.into(),
                kernel: "/nowhere".into(),
                ..Default::default()
            };
            client.create_vm(request).await.map(drop)
        }
        6 => client
            .open_session(vm, Duration::from_secs(10_000))
            .await
            .map(drop),
        _ => client.delete_image(&name).await,
    };
    match refused {
        Err(
            ClientError::NotFound(_)
            | ClientError::InvalidArgument { .. }
            | ClientError::AlreadyExists(_),
        ) => {}
        other => return Err(wrong!("a wrong request: {other:?}")),
    }
    check!(
        !has(&client, vm, &name).await?,
        "a part of a batch was registered that was refused"
    );
    Ok(())
}

fn parse(text: &str) -> Result<ProbeSpec, Failure> {
    spec::parse(text).map_err(|error| wrong!("{text}: {error}"))
}

/// Is a client whose connection breaks at some moment between a batch's request and its answer.
pub async fn tear(world: &World, random: &mut Random) -> Result<(), Failure> {
    let client = world.connect().await?;
    let vm = world.guests[random.below(2) as usize].vm;
    let name = name("torn", random);
    let specs: Result<Vec<_>, _> = (0..1 + random.below(BATCH))
        .map(|at| parse(&format!("p:{name}.{at} {}", random.pick(&BODIES))))
        .collect();
    let session = client.open_session(vm, Duration::ZERO).await?;
    let call = session.register_probes(specs?);
    let patience = Duration::from_micros(random.below(20_000));
    if let Ok(Err(error)) = timeout(patience, call).await {
        return Err(error.into());
    }
    drop((session, client));
    until(&world.connect().await?, vm, &name, false).await
}

/// Sends bytes that are no call, on a connection that is then closed.
pub async fn garbage(world: &World, random: &mut Random) -> Result<(), Failure> {
    let client = world.connect().await?;
    let mut bytes = vec![0; random.below(2000) as usize];
    random.fill(&mut bytes);
    let mut connection =
        UnixStream::connect(world.socket()).map_err(Failure::io("connect to the server"))?;
    let begun = random.once_in(2);
    if begun {
        connection
            .write_all(PREFACE)
            .map_err(Failure::io("write a preface"))?;
        let mut settings = [0; 9];
        connection
            .read_exact(&mut settings)
            .map_err(Failure::io("read the server's settings"))?;
    }
    // The server may have closed the connection by now.
    let _it_need_not_take_all = connection.write_all(&bytes);
    // Other clients aren't affected.
    client.list_vms().await?;
    Ok(())
}
