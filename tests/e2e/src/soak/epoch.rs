//! An epoch of a soak: probes that each guest has from its beginning to its end. Their hits must be those that the
//! guest counts itself.

use std::sync::Arc;

use seeded_random::Random;
use serde::Serialize;
use tokio::task::JoinHandle;
use vmprobe_client::v1::Probe;
use vmprobe_client::{Client, EventOptions, EventStream, spec};

use super::guest::BODIES;
use super::ledger::Ledger;
use super::{LINGER, World};
use crate::test::{Failure, check, check_eq, wrong};

/// The probes: the body and the passes between two hits. The first is followed by two clients.
const PROBES: [(&str, usize, u64); 4] = [
    ("p:all.emulated emulated", 0, 1),
    ("p:all.stepped stepped", 1, 1),
    ("p:all.odd again if=rbx&1", 2, 2),
    ("p:all.called called count", 3, 1),
];

/// The probes of one guest in an epoch, and the followers of the first of them.
#[derive(Debug)]
pub struct Watch {
    guest: usize,
    probes: Vec<Probe>,
    before: [u64; BODIES.len()],
    /// This client reads nothing until the epoch is over.
    stalled: (Client, EventStream),
    /// This client breaks its stream at random, and resumes it where it was.
    resumed: JoinHandle<Result<Resumed, Failure>>,
}

/// The sums of an epoch, of one guest or of several.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Sums {
    pub hits: u64,
    pub events: u64,
    pub lost: u64,
    pub breaks: u64,
}

impl Sums {
    pub fn add(&mut self, other: Self) {
        self.hits += other.hits;
        self.events += other.events;
        self.lost += other.lost;
        self.breaks += other.breaks;
    }
}

/// The state of the client that breaks its stream.
#[derive(Debug)]
struct Resumed {
    client: Client,
    stream: EventStream,
    ledger: Ledger,
    breaks: u64,
}

/// Begins an epoch of a guest that is paused and has no probes.
///
/// # Errors
/// If the server refuses a call.
pub async fn begin(
    world: &Arc<World>,
    guest: usize,
    client: &Client,
    mut random: Random,
    over: tokio::sync::watch::Receiver<bool>,
) -> Result<Watch, Failure> {
    let of = &world.guests[guest];
    let specs: Result<Vec<_>, _> = PROBES.iter().map(|(text, ..)| spec::parse(text)).collect();
    let specs = specs.map_err(|error| wrong!("{error}"))?;
    let before = of.counts(client).await?;
    let probes = client.register_probes(of.vm, specs).await?;
    let first = vec![probes[0].id];
    let stalls = world.connect().await?;
    let stalled = stalls.events(of.vm, first.clone()).await?;
    let follower = world.connect().await?;
    let lingering = EventOptions::lingering(LINGER);
    let stream = follower.events_to_resume(of.vm, first, lingering).await?;
    let resumed = Resumed {
        client: follower,
        stream,
        ledger: Ledger::each(1),
        breaks: 0,
    };
    let (world, vm) = (Arc::clone(world), of.vm);
    let resumed = tokio::spawn(async move { resumed.follow(&world, vm, &mut random, over).await });
    Ok(Watch {
        guest,
        probes,
        before,
        stalled: (stalls, stalled),
        resumed,
    })
}

impl Resumed {
    /// Follows the events until the epoch is over.
    async fn follow(
        mut self,
        world: &World,
        vm: &str,
        random: &mut Random,
        mut over: tokio::sync::watch::Receiver<bool>,
    ) -> Result<Self, Failure> {
        loop {
            for _ in 0..=random.below(30) {
                tokio::select! {
                    taken = self.ledger.next(&mut self.stream) => taken?,
                    // An error means that the sender is gone: then the epoch is over as well.
                    _ = over.changed() => return Ok(self),
                }
            }
            let lingering = EventOptions::lingering(LINGER);
            self.resume(world, vm, lingering).await?;
            self.breaks += 1;
        }
    }

    /// Breaks the stream, and resumes it by another connection.
    async fn resume(
        &mut self,
        world: &World,
        vm: &str,
        options: EventOptions,
    ) -> Result<(), Failure> {
        let at = self.stream.cursor().clone();
        let client = world.connect().await?;
        // The server may see the old connection end before or after this call.
        self.stream = client.resume_events(vm, &at, options).await?;
        self.client = client;
        Ok(())
    }
}

impl Watch {
    /// Ends the epoch of a paused guest. Checks that its probes have counted as many executions as the guest, and that
    /// each follower has received or lost all of them.
    ///
    /// # Errors
    /// If it isn't so.
    pub async fn settle(self, world: &World, client: &Client) -> Result<Sums, Failure> {
        let guest = &world.guests[self.guest];
        let after = guest.counts(client).await?;
        let rip = client.read_registers(guest.vm, 0).await?.rip;
        let ids = self.probes.iter().map(|probe| probe.id).collect();
        let removed = client.unregister_probes(guest.vm, ids, Vec::new()).await?;
        for (probe, (text, body, step)) in removed.iter().zip(PROBES) {
            // A hit counts before its step is made. The guest may be paused in between.
            let waits = u64::from(rip == probe.address);
            let (first, last) = (self.before[body], after[body]);
            // The passes with hits are 1, 1 + step and so on.
            let executed = last.div_ceil(step) - first.div_ceil(step);
            let counted = probe.hits + probe.missed;
            check!(
                probe.missed == 0 && (executed..=executed + waits).contains(&counted),
                "{} of {text}: {} hits and {} missed, {executed} executed ({first} to {last}), RIP {rip:#x}",
                guest.vm,
                probe.hits,
                probe.missed
            );
        }
        let hits = removed[0].hits;
        let (_client, mut stalled) = self.stalled;
        let mut ledger = Ledger::each(1);
        ledger.settle(&mut stalled, hits).await?;
        let resumed = self.resumed.await;
        let mut resumed = resumed.map_err(|error| wrong!("a follower: {error}"))??;
        resumed.ledger.settle(&mut resumed.stream, hits).await?;
        // Otherwise its events would be kept for a client that doesn't come back.
        let now = EventOptions::default();
        resumed.resume(world, guest.vm, now).await?;
        check_eq!(resumed.ledger.total(), hits, "hits of a stream resumed");
        Ok(Sums {
            hits: removed.iter().map(|probe| probe.hits).sum(),
            events: ledger.events + resumed.ledger.events,
            lost: ledger.lost + resumed.ledger.lost,
            breaks: resumed.breaks,
        })
    }
}
