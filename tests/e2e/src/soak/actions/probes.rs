//! Probes that come and go.

use std::time::Duration;

use seeded_random::Random;
use tiny_kernel::DATA;
use tokio::time::timeout;
use vmprobe_client::v1::{Probe, ProbeSpec};
use vmprobe_client::{Client, ClientError, EventStream, spec};

use super::super::guest::{BODIES, Guest};
use super::super::ledger::Ledger;
use super::{World, name};
use crate::test::{Failure, check_eq, wrong};

/// Hits that a client waits for at most.
const HITS: u64 = 60;
/// Probes of a batch at most.
const BATCH: u64 = 100;
/// Longer than any step takes. It only ends a hanging soak.
const NET: Duration = Duration::from_secs(100);

/// Options of a probe, and the passes between two hits.
const OPTIONS: [(&str, u64); 5] = [
    ("", 1),
    (" regs=rbx", 1),
    (" rbx=%bx counted=+0(%si)", 1),
    (" if=rbx&1", 2),
    (" nojump regs=rbx+rsi+rsp", 1),
];

fn guest<'a>(world: &'a World, random: &mut Random) -> &'a Guest {
    &world.guests[random.below(2) as usize]
}

fn parse(text: &str) -> Result<ProbeSpec, Failure> {
    spec::parse(text).map_err(|error| wrong!("{text}: {error}"))
}

/// A probe with a drawn place and drawn options, and the passes between its hits.
fn drawn(random: &mut Random) -> Result<(ProbeSpec, u64), Failure> {
    let (options, step) = random.pick(&OPTIONS);
    let text = format!(
        "p:{} {}{options}",
        name("any", random),
        random.pick(&BODIES)
    );
    Ok((parse(&text)?, step))
}

/// Registers a probe that isn't enabled yet, and opens a stream of its events.
async fn followed(
    client: &Client,
    guest: &Guest,
    spec: ProbeSpec,
) -> Result<(Probe, EventStream), Failure> {
    let off = ProbeSpec {
        enabled: Some(false),
        ..spec
    };
    let probe = client.register_probes(guest.vm, vec![off]).await?.remove(0);
    let stream = client.events(guest.vm, vec![probe.id]).await?;
    Ok((probe, stream))
}

/// Removes a probe, and returns how often it was hit.
async fn removed(client: &Client, guest: &Guest, probe: &Probe) -> Result<u64, Failure> {
    let ids = vec![probe.id];
    let removed = client.unregister_probes(guest.vm, ids, Vec::new()).await?;
    check_eq!(removed.len(), 1, "probes removed");
    Ok(removed[0].hits)
}

/// Checks that all hits from the first to the last are reported or counted as lost.
pub async fn follow(world: &World, random: &mut Random) -> Result<(), Failure> {
    let (client, guest) = (world.connect().await?, guest(world, random));
    let (spec, step) = drawn(random)?;
    let (probe, mut stream) = followed(&client, guest, spec).await?;
    client
        .enable_probes(guest.vm, vec![probe.id], Vec::new())
        .await?;
    let mut ledger = Ledger::each(step);
    ledger.at_least(&mut stream, 1 + random.below(HITS)).await?;
    let hits = removed(&client, guest, &probe).await?;
    ledger.settle(&mut stream, hits).await
}

/// As [`follow`], with a probe that is disabled and enabled meanwhile.
pub async fn switch(world: &World, random: &mut Random) -> Result<(), Failure> {
    let (client, guest) = (world.connect().await?, guest(world, random));
    let (spec, _) = drawn(random)?;
    let (probe, mut stream) = followed(&client, guest, spec).await?;
    let ids = || vec![probe.id];
    let mut ledger = Ledger::switched();
    for _ in 0..=random.below(4) {
        client.enable_probes(guest.vm, ids(), Vec::new()).await?;
        let wanted = ledger.total() + 1 + random.below(HITS / 4);
        ledger.at_least(&mut stream, wanted).await?;
        let off = client.disable_probes(guest.vm, ids(), Vec::new()).await?;
        ledger.settle(&mut stream, off.probes[0].hits).await?;
    }
    let hits = removed(&client, guest, &probe).await?;
    ledger.settle(&mut stream, hits).await
}

/// Checks that a batch is registered whole or not at all, whatever is done with parts of it.
pub async fn batch(world: &World, random: &mut Random) -> Result<(), Failure> {
    let (client, guest) = (world.connect().await?, guest(world, random));
    let count = 1 + random.below(BATCH);
    let specs: Result<Vec<_>, _> = (0..count)
        .map(|_| drawn(random).map(|(spec, _)| spec))
        .collect();
    let probes = client.register_probes(guest.vm, specs?).await?;
    check_eq!(probes.len() as u64, count, "probes of a batch");
    let mut ids: Vec<u64> = probes.iter().map(|probe| probe.id).collect();
    let drawn = 1 + random.below(count) as usize;
    let some = random.draw(ids.clone(), drawn);
    let (vm, none) = (guest.vm, Vec::new);
    let changed = match random.below(4) {
        0 => client.disable_probes(vm, some.clone(), none()).await?,
        1 => client.optimize_probes(vm, some.clone(), none()).await?,
        2 => client.keep_breakpoints(vm, some.clone(), none()).await?,
        _ => client.unregister_batch(vm, some.clone(), none()).await?,
    };
    check_eq!(changed.probes.len(), some.len(), "probes that have changed");
    let listed = client.list_probes(vm).await?;
    ids.retain(|id| listed.iter().any(|probe| probe.id == *id));
    let left = client.unregister_probes(vm, ids.clone(), none()).await?;
    check_eq!(left.len(), ids.len(), "probes that are left of a batch");
    Ok(())
}

/// Checks that the probes of a client's session go when the client goes, although it never reads
/// its stream.
pub async fn vanish(world: &World, random: &mut Random) -> Result<(), Failure> {
    let (client, guest) = (world.connect().await?, guest(world, random));
    let session = client.open_session(guest.vm, Duration::ZERO).await?;
    let (spec, _) = drawn(random)?;
    let probes = session.register_probes(vec![spec]).await?;
    let _nobody_reads_it = client.events(guest.vm, vec![probes[0].id]).await?;
    let gone = async |client: Client| loop {
        let listed = client.list_probes(guest.vm).await?;
        if listed.iter().all(|probe| probe.id != probes[0].id) {
            return Ok(());
        }
    };
    drop((session, _nobody_reads_it, client));
    let waited = timeout(NET, gone(world.connect().await?)).await;
    waited.map_err(|_| wrong!("the probe of a client that has gone stays: {probes:?}"))?
}

/// Checks that a watchpoint is registered or refused. What it reports depends on the processor.
pub async fn watchpoint(world: &World, random: &mut Random) -> Result<(), Failure> {
    let (client, guest) = (world.connect().await?, guest(world, random));
    let address = DATA + 0x2000 + 8 * random.below(4);
    let text = format!("w:{} {address:#x}/8", name("watch", random));
    match client.register_probes(guest.vm, vec![parse(&text)?]).await {
        Ok(probes) => removed(&client, guest, &probes[0]).await.map(drop),
        // Other probes have all debug registers.
        Err(ClientError::ResourceExhausted(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
