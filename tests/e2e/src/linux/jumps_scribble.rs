//! A guest that writes over what its jumps record.

use tokio::time::timeout;

use super::guest::{Guest, VM, files};
use super::jumps::{SETTLE, jump};
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "a_guest_that_writes_over_its_rings_harms_only_its_own_events",
    ids: &["JP08"],
    needs: Needs::Linux,
    run: scribble,
}];

const VCPUS: u32 = 2;
/// Where rings and counters are in guest physical memory: behind the GiB of code that follows what the
/// guest has below 4 GiB.
const DATA: u64 = 6 << 30;
const ROUNDS: u64 = 12;
const CALLS: u64 = 100;

fn scribble(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let calm = guest.probe("calm=__x64_sys_getppid nojump").await?;
        let mut stream = guest.client.events(VM, vec![calm.id]).await?;
        let victims = [
            ("full", "umask", ""),
            ("count", "getuid", " count"),
            ("lossless", "getpgid", " lossless"),
        ];
        for (name, call, options) in victims {
            guest
                .probe(&format!("{name}=__x64_sys_{call}{options}"))
                .await?;
            jump(&guest, name).await?;
        }
        let all = CALLS * u64::from(VCPUS);
        let mut remarks = Vec::new();
        for (turn, (name, call, _)) in (1..).zip(victims) {
            let done = guest
                .work(&format!(
                    "scribble syscall={call} count={CALLS} rounds={ROUNDS} at={DATA:#x}"
                ))
                .await?;
            let calls = done["calls"].as_u64().unwrap_or_default();
            check!(calls > 0, "no calls: {done}");
            // Nobody else has lost anything.
            guest
                .work(&format!("threads syscall=getppid count={CALLS}"))
                .await?;
            let (seen, lost) = events::next(&mut stream, all).await?;
            check_eq!(lost, 0, "lost events of a breakpoint");
            check!(
                seen.iter().all(|event| event.probe_id == calm.id),
                "events of other probes"
            );
            let probe = guest.listed("calm").await?;
            check_eq!(
                (probe.hits, probe.missed),
                (turn * all, 0),
                "hits of a breakpoint"
            );
            let victim = guest.listed(name).await?;
            remarks.push(format!(
                "{call} was called {calls} times, {} hits and {} missed, {} words written",
                victim.hits, victim.missed, done["written"]
            ));
        }
        let damage = guest.client.get_vm(VM).await?.ring_damage;
        check!(damage > 0, "the damage wasn't noticed");
        // The rings serve again when nobody writes over them.
        guest.remove(&["full", "count", "lossless"]).await?;
        guest.probe("again=__x64_sys_umask").await?;
        jump(&guest, "again").await?;
        let request = format!("threads syscall=umask count={CALLS}");
        // What the guest has left open in its rings is waited for, for a while.
        let mended = timeout(SETTLE, async {
            loop {
                let before = guest.listed("again").await?.hits;
                guest.work(&request).await?;
                let after = guest.listed("again").await?;
                if after.hits - before == all {
                    return Ok::<_, Failure>(after);
                }
            }
        });
        let again = mended
            .await
            .map_err(|_| wrong!("the rings don't serve again"))??;
        guest.work(&request).await?;
        let after = guest.listed("again").await?;
        check_eq!(
            (after.hits - again.hits, after.missed - again.missed),
            (all, 0),
            "hits and missed hits afterwards"
        );
        guest.finish().await?;
        pass_with(format!(
            "damage was seen {damage} times; {}",
            remarks.join("; ")
        ))
    })
}
