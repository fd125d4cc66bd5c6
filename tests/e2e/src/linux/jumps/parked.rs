//! A task or vCPU that is inside a jump's region, or comes there, finds the right instruction.

use std::sync::atomic::{AtomicBool, Ordering};

use iced_x86::{Instruction, Mnemonic};
use tokio::time::timeout;
use vmprobe_client::Client;
use vmprobe_client::v1::Probe;
use vmprobe_client::words;

use super::{BREAKPOINT, SETTLE, first_byte, is_jump, jump, no_jump};
use crate::context::Context;
use crate::linux::code;
use crate::linux::guest::{Guest, VM, files, quiet, specs};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "vcpus_that_stand_in_a_region_when_it_is_patched_go_on_rightly",
        ids: &["JP04"],
        needs: Needs::Linux,
        run: parked,
    },
    Test {
        name: "vcpus_led_into_a_region_execute_its_instructions_and_too_often_end_the_jump",
        ids: &["JP04"],
        needs: Needs::Linux,
        run: led_into,
    },
];

const VCPUS: u32 = 4;
/// Repeated string instructions that clear a page. A vCPU that clears memory can be stopped in the middle of one.
const REPEATING: [&str; 2] = ["clear_page_rep", "clear_page_erms"];
/// `sti; hlt; jmp`. RIP of an idle vCPU is behind the `hlt`.
const HALTING: &str = "native_safe_halt";
/// Bytes of such functions.
const LENGTH: usize = 16;
/// The least number of times that the jump comes and goes.
const ROUNDS: u64 = 20;

/// Puts jumps one instruction before those, so that those are inside the regions, while vCPUs are at them.
fn parked(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let repeats = |it: &Instruction| it.has_rep_prefix() && it.is_string_instruction();
        let mut clearing = Vec::new();
        for function in REPEATING {
            clearing.push(before(&guest, function, repeats).await?);
        }
        let halts = |it: &Instruction| it.mnemonic() == Mnemonic::Hlt;
        let halting = vec![before(&guest, HALTING, halts).await?];
        let start = guest.symbol("_stext").await?;
        let length = (guest.symbol("_etext").await? - start) as usize;
        guest.work("pages count=2").await?;
        guest.work("pipes count=2").await?;
        let text = guest.memory(start, length).await?;

        let cleared = under(&mut guest, "pages count=12", &clearing).await?;
        let halted = under(&mut guest, "pipes count=1000", &halting).await?;
        check!(halted.trips > 0, "no vCPU stood in a region: {halted:?}");
        check!(
            guest.memory(start, length).await? == text,
            "the kernel's text isn't what it was"
        );
        guest.finish().await?;
        pass_with(format!("clearing memory: {cleared:?}; idle: {halted:?}"))
    })
}

/// Registers a probe at the instruction before the first one that `is` accepts.
async fn before(
    guest: &Guest,
    function: &str,
    is: impl Fn(&Instruction) -> bool,
) -> Result<String, Failure> {
    let start = guest.symbol(function).await?;
    let bytes = guest.memory(start, LENGTH).await?;
    let code = code::decode(start, &bytes);
    let before = code.windows(2).find(|pair| is(&pair[1]));
    let before = before.ok_or_else(|| wrong!("{function} isn't as expected: {code:x?}"))?;
    Ok(format!("p:{function} {:#x} count", before[0].ip()))
}

/// Has the guest work while these jumps come and go, until they have done so [`ROUNDS`] times.
async fn under(guest: &mut Guest, work: &str, texts: &[String]) -> Result<Seen, Failure> {
    let client = guest.client.clone();
    let mut seen = Seen::default();
    // If jumps are made slowly, the guest finishes its work first, and is given more.
    while seen.rounds < ROUNDS {
        guest.say(&format!("workload={work}")).await?;
        let done = AtomicBool::new(false);
        let toggle = toggle(&client, texts, &done, &mut seen);
        let work = async {
            let report = guest.console.report("done").await;
            done.store(true, Ordering::Relaxed);
            report
        };
        let (toggled, report) = tokio::join!(toggle, work);
        toggled?;
        report?;
    }
    Ok(seen)
}

/// The results of jumps that came and went.
#[derive(Debug, Default)]
struct Seen {
    rounds: u64,
    hits: u64,
    /// Arrivals in the middle of a region.
    trips: u64,
}

async fn toggle(
    client: &Client,
    texts: &[String],
    done: &AtomicBool,
    seen: &mut Seen,
) -> Result<(), Failure> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    while !done.load(Ordering::Relaxed) {
        // A guest that is paused has no hits of breakpoints before there are jumps: all exits are then arrivals inside
        // a region.
        let still = seen.rounds.is_multiple_of(2);
        if still {
            client.pause_vm(VM).await?;
        }
        let probes = client.register_probes(VM, specs(&texts)?).await?;
        let ids: Vec<u64> = probes.iter().map(|probe| probe.id).collect();
        let settled = client.wait_probes(VM, ids.clone(), Vec::new(), SETTLE);
        let settled = settled.await?.probes;
        for probe in &settled {
            check!(is_jump(probe), "no jump: {probe:?}");
            check!(
                !still || probe.exits == 0,
                "exits in a guest that stands still"
            );
        }
        if still {
            client.resume_vm(VM).await?;
            some_hits(client, &ids, done).await?;
        }
        let removed = client.unregister_probes(VM, ids, Vec::new()).await?;
        let sum = |of: fn(&Probe) -> u64| removed.iter().map(of).sum::<u64>();
        seen.hits += sum(|probe| probe.hits);
        if still {
            seen.trips += sum(|probe| probe.exits);
        }
        seen.rounds += 1;
    }
    Ok(())
}

/// Waits for hits of these probes.
async fn some_hits(client: &Client, ids: &[u64], done: &AtomicBool) -> Result<(), Failure> {
    const SOME: u64 = 20;
    while !done.load(Ordering::Relaxed) {
        let listed = client.list_probes(VM).await?;
        let ours = listed.iter().filter(|probe| ids.contains(&probe.id));
        if ours.map(|probe| probe.hits).sum::<u64>() >= SOME {
            break;
        }
    }
    Ok(())
}

/// Writes the FPU's registers to the stack of a signal handler. On a fault the kernel goes on at a fix-up two
/// instructions behind, to which no branch leads.
const FAULTS: &str = "copy_fpstate_to_sigframe";
/// Bytes of it that are searched.
const FAULTS_LEN: usize = 400;
/// Signals on each vCPU: first few, then more than the arrivals that the optimizer accepts of a jump.
const FEW: u64 = 100;
const MANY: u64 = 400;

fn led_into(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let start = guest.symbol(FAULTS).await?;
        let bytes = guest.memory(start, FAULTS_LEN).await?;
        let code = code::decode(start, &bytes);
        let saves = |it: &Instruction| it.mnemonic() == Mnemonic::Xsave64;
        let saves = code.iter().position(saves);
        let [behind, fix_up] = saves.map_or(&[][..], |at| &code[at + 1..at + 3]) else {
            return Err(wrong!("{FAULTS} isn't as expected"));
        };
        guest.probe(&format!("a={:#x}", behind.ip())).await?;
        let before = jump(&guest, "a").await?;
        let wire = guest.memory(fix_up.ip(), 1).await?[0];
        check_eq!(wire, BREAKPOINT, "the byte where the fix-up leads");

        let mut signals = 0;
        let mut work = async |guest: &mut Guest, count: u64| {
            let done = guest.work(&format!("altstack count={count}")).await?;
            signals += done["signals"].as_u64().unwrap_or_default();
            Ok::<_, Failure>((signals, done["faults"].as_u64().unwrap_or_default()))
        };
        let (hits, faults) = work(&mut guest, FEW).await?;
        check!(faults >= FEW * u64::from(VCPUS), "only {faults} faults");
        let after = guest.listed("a").await?;
        check_eq!((after.hits, after.missed), (hits, 0), "hits: one each signal");
        check_eq!(
            after.exits - before.exits,
            faults,
            "arrivals in the region: one each fault"
        );
        check!(is_jump(&after), "it is no jump any more: {after:?}");

        // A jump with so many exits isn't worthwhile, and is taken away.
        work(&mut guest, MANY).await?;
        let gone = timeout(SETTLE, async {
            while is_jump(&guest.listed("a").await?) {}
            Ok::<(), Failure>(())
        });
        gone.await.map_err(|_| wrong!("it is still a jump"))??;
        let slow = no_jump(&guest, "a").await?;
        let told = slow.optimization.clone().unwrap_or_default();
        check_eq!(words::no_jump(&told), "tripwire", "why it is no jump any more");
        check_eq!(first_byte(&guest, &slow).await?, BREAKPOINT, "code at a");
        let (hits, _) = work(&mut guest, FEW).await?;
        let last = guest.listed("a").await?;
        check_eq!((last.hits, last.missed), (hits, 0), "hits in all");
        let report = guest.work("log").await?;
        quiet(&report)?;
        guest.finish().await?;
        pass_with(format!(
            "{hits} signals; {} arrivals in the middle of `{}; {}` before it was a breakpoint again",
            slow.exits - before.exits,
            behind,
            fix_up
        ))
    })
}
