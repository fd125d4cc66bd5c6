//! A guest that writes over what its jumps record.

use tokio::time::timeout;

use super::guest::{Guest, VM, files};
use super::jumps::{SETTLE, jump};
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_guest_that_writes_over_its_rings_harms_only_its_own_events",
        ids: &["JP08"],
        needs: Needs::Linux,
        run: scribble,
    },
    Test {
        name: "a_guest_that_writes_over_our_code_and_its_calls_harms_only_itself",
        ids: &["JP08"],
        needs: Needs::Linux,
        run: overwrite,
    },
];

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

/// Where code of ours is in guest physical memory: the GiB before the data. Detours begin in its middle.
const CODE: u64 = DATA - (1 << 30);
const DETOURS: u64 = CODE + (512 << 20);
/// The table of followed calls, behind 16 MiB of counters: 16 MiB.
const CALL_TABLE: u64 = DATA + (16 << 20);
const CALL_TABLE_LEN: u64 = 16 << 20;
/// Where random numbers begin.
const SEEDS: [u64; 3] = [1, 0x6a70_3038, 0xdead_beef];
/// How often the server is asked while the guest's call table isn't worth anything.
const QUESTIONS: u64 = 40;
/// Ticks of the clock that processes' work is counted by, in a second (`proc(5)`, `USER_HZ`); and how
/// many times more work the answers may be when everything is damaged.
const CLOCK_TICKS: u64 = 100;
const TIMES: u64 = 10;
/// Bytes of code that are written over, and of a jump and a detour.
const CODE_BYTES: u64 = 32 << 10;
const JUMP_LEN: usize = 5;
const DETOUR: usize = 256;
/// What the server may need besides the guest's memory and what it writes to of ours, in KiB.
const MORE_MEMORY: u64 = 64 << 10;

/// The guest writes over our code, which takes nothing in; then over the table of its own calls, of which
/// it may die: the server goes on answering, with no more memory and no more work than before.
fn overwrite(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        guest
            .probes(&["full=__x64_sys_umask", "r64:back __x64_sys_umask"])
            .await?;
        let full = jump(&guest, "full").await?;
        jump(&guest, "back").await?;
        let region = guest.memory(full.address, JUMP_LEN).await?;
        let distance = region[1..].first_chunk().copied().unwrap_or_default();
        let detour = full
            .address
            .wrapping_add(JUMP_LEN as u64)
            .wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
        let code = guest.memory(detour, DETOUR).await?;
        let mut hits = 0;
        for seed in SEEDS {
            let done = guest
                .work(&format!(
                    "overwrite syscall=umask count={CODE_BYTES} rounds=1 at={DETOURS:#x} seed={seed}"
                ))
                .await?;
            hits += done["calls"].as_u64().unwrap_or_default();
            for name in ["full", "back"] {
                let probe = guest.listed(name).await?;
                check_eq!(
                    (probe.hits, probe.missed),
                    (hits, 0),
                    "hits and missed hits of {name} with the code written over, seed {seed}"
                );
            }
            check!(
                guest.memory(detour, DETOUR).await? == code,
                "the guest has changed the code of a detour, seed {seed}"
            );
        }
        check!(hits > 0, "no calls");

        let started = guest.server().work()?;
        ask(&guest).await?;
        let calm = guest.server().work()? - started;
        let before = guest.server().status("VmRSS")?;
        let rounds = 1_000_000;
        guest
            .say(&format!(
                "workload=overwrite syscall=umask count={CALL_TABLE_LEN} rounds={rounds} at={CALL_TABLE:#x}"
            ))
            .await?;
        guest.console.report("begins").await?;
        let started = guest.server().work()?;
        ask(&guest).await?;
        let most = before + CALL_TABLE_LEN / 1024 + MORE_MEMORY;
        let after = guest.server().status("VmRSS")?;
        check!(after <= most, "the server has {after} KiB, and had {before}");
        let busy = guest.server().work()? - started;
        check!(
            busy <= TIMES * calm + CLOCK_TICKS,
            "the server's own threads worked for {busy} ticks, and for {calm} before"
        );
        // However it ended, or if it is to be ended.
        let _ended = guest.client.kill_vm(VM).await;
        let ending = guest.client.wait_vm(VM).await?;
        guest.client.delete_vm(VM).await?;
        check_eq!(guest.client.list_vms().await?.len(), 0, "VMs left");
        pass_with(format!(
            "seeds {SEEDS:x?}: {hits} calls counted exactly; the call table written over: {QUESTIONS} \
             answers, the guest ended by {:?}, the server had {before} KiB and then {after}, its own \
             threads worked for {calm} ticks and then {busy}",
            ending.kind()
        ))
    })
}

/// Asks the server, which has to answer.
async fn ask(guest: &Guest) -> Result<(), Failure> {
    for _ in 0..QUESTIONS {
        let answers = async {
            guest.client.get_vm(VM).await?;
            Ok::<_, Failure>(guest.client.list_probes(VM).await?.len())
        };
        let answers = timeout(SETTLE, answers).await;
        let probes = answers.map_err(|_| wrong!("the server doesn't answer"))??;
        check_eq!(probes, 2, "probes listed");
    }
    Ok(())
}
