//! A guest that overwrites the records and the code of its jumps.

use std::time::Instant;

use tokio::time::timeout;

use super::{SETTLE, jump};
use crate::context::Context;
use crate::events;
use crate::linux::guest::{Guest, VM, files};
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
/// Where rings and counters are in guest physical memory: behind the GiB of code, which follows the guest's own memory
/// below 4 GiB. And the length of the part that the guest overwrites.
const DATA: u64 = 6 << 30;
const DATA_LEN: u64 = 48 << 20;
const ROUNDS: u64 = 12;
const CALLS: u64 = 100;
/// Probes whose memory is overwritten: name, system call, options.
const VICTIMS: [(&str, &str, &str); 3] = [
    ("full", "umask", ""),
    ("count", "getuid", " count"),
    ("lossless", "getpgid", " lossless"),
];

fn scribble(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut random = cx.random();
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let calm = guest.probe("calm=__x64_sys_getppid nojump").await?;
        let mut stream = guest.client.events(VM, vec![calm.id]).await?;
        register(&guest).await?;
        let all = CALLS * u64::from(VCPUS);
        let server = Bounds::measure(&guest, DATA_LEN).await?;
        let mut remarks = Vec::new();
        for (turn, (name, call, _)) in (1..).zip(VICTIMS) {
            let seed = random.bits();
            // These calls leave something to overwrite: the guest leaves words that are zero alone.
            guest
                .work(&format!("threads syscall={call} count={CALLS}"))
                .await?;
            guest
                .say(&format!(
                    "workload=scribble syscall={call} count={CALLS} rounds={ROUNDS} at={DATA:#x} seed={seed}"
                ))
                .await?;
            guest.console.report("begins").await?;
            let cost = server.check(&guest).await?;
            let done = guest.console.report("done").await?;
            let calls = done["calls"].as_u64().unwrap_or_default();
            check!(calls > 0, "no calls: {done}");
            // No other probe has lost anything.
            guest
                .work(&format!("threads syscall=getppid count={CALLS}"))
                .await?;
            let (seen, lost) = events::next(&mut stream, all).await?;
            check_eq!(lost, 0, "lost events of a breakpoint, seed {seed}");
            check!(
                seen.iter().all(|event| event.probe_id == calm.id),
                "events of other probes, seed {seed}"
            );
            let probe = guest.listed("calm").await?;
            check_eq!(
                (probe.hits, probe.missed),
                (turn * all, 0),
                "hits of a breakpoint, seed {seed}"
            );
            let victim = guest.listed(name).await?;
            remarks.push(format!(
                "seed {seed}: {call} was called {calls} times, {} hits and {} missed, {} words written, \
                 {cost}",
                victim.hits, victim.missed, done["written"]
            ));
        }
        let damage = guest.client.get_vm(VM).await?.ring_damage;
        check!(damage > 0, "the damage wasn't noticed");
        // The guest no longer writes to the rings, so they work again from the next probes on.
        guest.remove(&VICTIMS.map(|(name, ..)| name)).await?;
        register(&guest).await?;
        for (name, call, _) in VICTIMS {
            guest
                .work(&format!("threads syscall={call} count={CALLS}"))
                .await?;
            let probe = guest.listed(name).await?;
            check_eq!(
                (probe.hits, probe.missed),
                (all, 0),
                "hits and missed hits of {name} right afterwards, seed {}",
                cx.seed
            );
        }
        guest.finish().await?;
        pass_with(format!(
            "damage was seen {damage} times; {}",
            remarks.join("; ")
        ))
    })
}

/// Registers the victims, and waits until they are jumps.
async fn register(guest: &Guest) -> Result<(), Failure> {
    for (name, call, options) in VICTIMS {
        guest
            .probe(&format!("{name}=__x64_sys_{call}{options}"))
            .await?;
        jump(guest, name).await?;
    }
    Ok(())
}

/// Where our code is in guest physical memory: the GiB before the data. Detours begin in its middle.
const CODE: u64 = DATA - (1 << 30);
const DETOURS: u64 = CODE + (512 << 20);
/// The table of followed calls, behind 16 MiB of counters: 16 MiB.
const CALL_TABLE: u64 = DATA + (16 << 20);
const CALL_TABLE_LEN: u64 = 16 << 20;
/// How often our code is overwritten.
const TURNS: usize = 3;
/// How often the server is asked while our memory in the guest is damaged.
const QUESTIONS: u64 = 40;
/// Ticks a second of the clock in which processes' CPU time is counted (`proc(5)`, `USER_HZ`); and how many times more
/// CPU time the answers may take when everything is damaged.
const CLOCK_TICKS: u64 = 100;
const TIMES: u64 = 10;
/// One tenth of the time may be spent by the server's threads besides: the optimizer takes that much while its data are
/// damaged.
const SHARE: u64 = 10;
/// Bytes of code that are overwritten, and lengths of a jump and of a detour.
const CODE_BYTES: u64 = 32 << 10;
const JUMP_LEN: usize = 5;
const DETOUR: usize = 256;
/// The memory, in KiB, that the server may need besides the guest's and besides the pages that the guest overwrites.
const MORE_MEMORY: u64 = 64 << 10;

/// The guest writes to our code, which isn't writable for it. Then it overwrites the table of its own calls, and may
/// crash from that. The server goes on answering, with no more memory and no more work than before.
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
        let mut random = cx.random();
        for _ in 0..TURNS {
            let seed = random.bits();
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

        let server = Bounds::measure(&guest, CALL_TABLE_LEN).await?;
        let (seed, rounds) = (random.bits(), 1_000_000);
        guest
            .say(&format!(
                "workload=overwrite syscall=umask count={CALL_TABLE_LEN} rounds={rounds} at={CALL_TABLE:#x} \
                 seed={seed}"
            ))
            .await?;
        guest.console.report("begins").await?;
        let cost = server.check(&guest).await?;
        // However the guest has ended. If it still runs, it is killed.
        let _ended = guest.client.kill_vm(VM).await;
        let ending = guest.client.wait_vm(VM).await?;
        guest.client.delete_vm(VM).await?;
        check_eq!(guest.client.list_vms().await?.len(), 0, "VMs left");
        pass_with(format!(
            "seed {}: {hits} calls counted exactly with the code written over {TURNS} times; then the call \
             table: the guest ended by {:?}, {cost}",
            cx.seed,
            ending.kind()
        ))
    })
}

/// The limits of the server while the guest overwrites our memory.
struct Bounds {
    probes: usize,
    /// KiB that may be resident.
    memory: u64,
    /// Ticks of CPU time of its own threads for all answers while nothing was damaged.
    calm: u64,
}

impl Bounds {
    /// Measures a server whose guest will overwrite `written` bytes that have not been used so far.
    async fn measure(guest: &Guest, written: u64) -> Result<Self, Failure> {
        let probes = guest.client.list_probes(VM).await?.len();
        let started = guest.process()?.work()?;
        ask(guest, probes).await?;
        Ok(Self {
            probes,
            calm: guest.process()?.work()? - started,
            memory: guest.process()?.status("VmRSS")? + written / 1024 + MORE_MEMORY,
        })
    }

    /// Asks the server. It must answer within the limits.
    async fn check(&self, guest: &Guest) -> Result<String, Failure> {
        let (begun, started) = (Instant::now(), guest.process()?.work()?);
        ask(guest, self.probes).await?;
        let busy = guest.process()?.work()? - started;
        let ticks = begun.elapsed().as_millis() as u64 * CLOCK_TICKS / 1000;
        check!(
            busy <= TIMES * self.calm + CLOCK_TICKS + ticks / SHARE,
            "the server's own threads worked for {busy} ticks of {ticks}, and for {} before",
            self.calm
        );
        let memory = guest.process()?.status("VmRSS")?;
        check!(
            memory <= self.memory,
            "the server has {memory} KiB, and may have {}",
            self.memory
        );
        Ok(format!(
            "{QUESTIONS} answers, for which the server's own threads worked for {busy} ticks, and for {} \
             before; it had {memory} KiB of {}",
            self.calm, self.memory
        ))
    }
}

/// Asks the server. It must answer.
async fn ask(guest: &Guest, probes: usize) -> Result<(), Failure> {
    for _ in 0..QUESTIONS {
        let answers = async {
            guest.client.get_vm(VM).await?;
            Ok::<_, Failure>(guest.client.list_probes(VM).await?.len())
        };
        let answers = timeout(SETTLE, answers).await;
        let listed = answers.map_err(|_| wrong!("the server doesn't answer"))??;
        check_eq!(listed, probes, "probes listed");
    }
    Ok(())
}
