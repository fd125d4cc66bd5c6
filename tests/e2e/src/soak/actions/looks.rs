//! Actions that only read, and pauses.

use seeded_random::Random;
use vmprobe_client::v1::ProbeOrder;

use super::World;
use crate::test::{Failure, check};

/// Reads one thing or another of a guest that runs.
pub async fn look(world: &World, random: &mut Random) -> Result<(), Failure> {
    let client = world.connect().await?;
    let guest = &world.guests[random.below(2) as usize];
    let vm = guest.vm;
    match random.below(7) {
        0 => {
            // However many probes there are, the text that the guest's kernel sees has none of
            // them.
            let text = guest.read_text(&client, false).await?;
            check!(
                text == guest.text,
                "the text of {vm} shows probes: {text:x?}"
            );
        }
        1 => {
            let address = random.below(2 << 20);
            let length = 1 + random.below(1 << 20) as u32;
            client.read_memory(vm, 0, address, length).await?;
        }
        2 => drop(client.read_registers(vm, 0).await?),
        3 => {
            let stats = client.vm_stats(vm, 100, ProbeOrder::Rate, 100).await?;
            let streams = stats.streams.unwrap_or_default().streams;
            let full = streams.iter().find(|it| it.queued > it.capacity);
            check!(full.is_none(), "a queue beyond its capacity: {full:?}");
        }
        4 => drop(client.lookup_symbols(vm, "*", 0).await?),
        5 => drop(client.list_vms().await?),
        _ => {
            let mut blacklist = client.blacklist(vm, "").await?;
            while blacklist.next().await?.is_some() {}
        }
    }
    Ok(())
}

/// Checks that a paused guest executes nothing.
pub async fn pause(world: &World, random: &mut Random) -> Result<(), Failure> {
    let client = world.connect().await?;
    let guest = &world.guests[random.below(2) as usize];
    let _alone = world.pausing.lock().await;
    client.pause_vm(guest.vm).await?;
    let first = guest.counts(&client).await?;
    let second = guest.counts(&client).await?;
    client.resume_vm(guest.vm).await?;
    check!(
        first == second,
        "a guest that is paused goes on from {first:?} to {second:?}"
    );
    Ok(())
}
