//! Kprobes of the guest's own that were there before our probes.

use std::time::{Duration, Instant};

use vmprobe_client::v1::Probe;
use vmprobe_client::words;

use super::code::straight;
use super::guest::{Guest, files};
use super::jumps::{SETTLE, is_jump, no_jump, settle};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_kprobe_of_the_guest_s_that_is_not_armed_yet_keeps_its_bytes_on_6_1",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| not_armed(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "a_kprobe_of_the_guest_s_that_is_not_armed_yet_keeps_its_bytes_on_6_12",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| not_armed(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "our_jump_stays_while_a_kprobe_of_the_guest_s_that_is_not_armed_has_its_byte",
        ids: &["KP22", "JP04"],
        needs: Needs::Linux,
        run: on_our_jump,
    },
    Test {
        name: "a_jump_of_the_guest_s_own_is_told_from_the_function_s",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: guest_jump,
    },
];

const FUNCTION: &str = "__x64_sys_umask";
const CALLS: u64 = 50;
const JUMP_LEN: u64 = 5;
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A function as it is without kprobes: its bytes, and the offsets of its instructions from the first short one on. The
/// guest's kprobe is on one of the first two.
struct Place {
    start: u64,
    text: Vec<u8>,
    starts: Vec<u64>,
}

impl Place {
    async fn find(guest: &Guest) -> Result<Self, Failure> {
        let start = guest.symbol(FUNCTION).await?;
        let text = guest.memory(start, 64).await?;
        let entry = guest.probe(&format!("look={FUNCTION}")).await?.offset;
        guest.remove(&["look"]).await?;
        let code = straight(guest, FUNCTION).await?;
        let starts = code.iter().map(|it| it.ip() - start);
        let starts: Vec<u64> = starts.filter(|offset| *offset >= entry).collect();
        // From the first instruction on that is shorter than a jump.
        let short = starts.windows(2).position(|two| two[1] - two[0] < JUMP_LEN);
        let short =
            short.ok_or_else(|| wrong!("{FUNCTION} has no short instruction: {starts:?}"))?;
        let starts = starts[short..].to_vec();
        Ok(Self {
            start,
            text,
            starts,
        })
    }

    /// Fails if the text doesn't become what it was: a worker of the guest's kernel restores the bytes under its jump.
    async fn unchanged(&self, guest: &Guest, when: &str) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let now = guest.memory(self.start, self.text.len()).await?;
            if now == self.text {
                return Ok(());
            }
            check!(
                begun.elapsed() < SETTLE,
                "{when}: {now:02x?} instead of {:02x?}",
                self.text
            );
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Waits until a probe is a jump that couldn't be one before because of the guest's kprobe.
async fn becomes_jump(guest: &Guest, name: &str) -> Result<Probe, Failure> {
    let begun = Instant::now();
    loop {
        let probe = guest.listed(name).await?;
        if is_jump(&probe) {
            return Ok(probe);
        }
        check!(
            begun.elapsed() < SETTLE,
            "{name} stays a breakpoint: {probe:?}"
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// Probes the function as soon as the guest's worker has removed its kprobe from the kernel's table.
async fn probe(guest: &Guest, offset: u64) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        match guest.probe(&format!("ours={FUNCTION}+{offset:#x}")).await {
            Ok(_) => return Ok(()),
            Err(Failure::Client(error))
                if error.to_string().contains("kprobe of its own") && begun.elapsed() < SETTLE => {}
            Err(other) => return Err(other),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Begins the workload. When this returns, the kprobe is registered but not armed.
async fn begin(guest: &mut Guest, workload: &str, offset: u64) -> Result<(), Failure> {
    let at = format!("{FUNCTION}+{offset:#x}");
    let request = format!("workload={workload} syscall=umask count={CALLS} at={at} hold=yes");
    guest.say(&request).await?;
    guest.console.report("registered").await?;
    Ok(())
}

/// Lets the workload continue to this step.
async fn on(guest: &mut Guest, step: &str) -> Result<(), Failure> {
    guest.say("").await?;
    guest.console.report(step).await?;
    Ok(())
}

/// Lets the workload continue to its end. The guest's kprobe must have counted its calls.
async fn end(guest: &mut Guest) -> Result<(), Failure> {
    guest.say("").await?;
    let done = guest.console.report("done").await?;
    check_eq!(done["hits"], CALLS, "hits of the guest's kprobe: {done}");
    Ok(())
}

async fn hits(guest: &Guest, name: &str, calls: u64) -> Result<Probe, Failure> {
    let probe = guest.listed(name).await?;
    check_eq!(
        (probe.hits, probe.missed),
        (calls, 0),
        "hits and missed of {name}"
    );
    Ok(probe)
}

fn not_armed(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 2).await?;
        let place = Place::find(&guest).await?;
        let (first, second) = (place.starts[0], place.starts[1]);
        // The guest's kprobe is on the instruction that ours would be on.
        begin(&mut guest, "kprobe-switched", first).await?;
        let refused = guest
            .refusal(&format!("ours={FUNCTION}+{first:#x}"))
            .await?;
        check!(
            refused
                .to_string()
                .contains("kprobe of its own on the same instruction"),
            "another refusal: {refused}"
        );
        for step in ["armed", "called", "disarmed", "called again"] {
            on(&mut guest, step).await?;
        }
        end(&mut guest).await?;
        place.unchanged(&guest, "after the guest's kprobe").await?;

        // The guest's kprobe is on the next instruction, which our jump would overwrite.
        begin(&mut guest, "kprobe-switched", second).await?;
        probe(&guest, first).await?;
        let told = no_jump(&guest, "ours").await?.optimization;
        let kind = words::no_jump(&told.unwrap_or_default());
        check_eq!(kind, "guest kprobe", "why ours is no jump");
        on(&mut guest, "armed").await?;
        on(&mut guest, "called").await?;
        hits(&guest, "ours", CALLS).await?;
        on(&mut guest, "disarmed").await?;
        on(&mut guest, "called again").await?;
        hits(&guest, "ours", 2 * CALLS).await?;
        end(&mut guest).await?;
        // Our probe becomes a jump when the guest's kprobe is gone.
        becomes_jump(&guest, "ours").await?;
        guest
            .work(&format!("threads syscall=umask count={CALLS}"))
            .await?;
        hits(&guest, "ours", 4 * CALLS).await?;
        guest.remove(&["ours"]).await?;
        place.unchanged(&guest, "after both").await?;
        guest.finish().await?;
        pass_with(format!("{FUNCTION}+{first:#x} and +{second:#x}"))
    })
}

/// The guest's kprobe saves the first byte of our jump. Our jump goes before the kprobe is armed.
fn on_our_jump(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, 2).await?;
        let place = Place::find(&guest).await?;
        let first = place.starts[0];
        probe(&guest, first).await?;
        becomes_jump(&guest, "ours").await?;
        begin(&mut guest, "kprobe-switched", first).await?;
        guest.remove(&["ours"]).await?;
        let refused = guest
            .refusal(&format!("ours={FUNCTION}+{first:#x}"))
            .await?;
        check!(
            refused.to_string().contains("kprobe of its own"),
            "another refusal: {refused}"
        );
        for step in ["armed", "called", "disarmed", "called again"] {
            on(&mut guest, step).await?;
        }
        end(&mut guest).await?;
        guest
            .work(&format!("threads syscall=umask count={CALLS}"))
            .await?;
        probe(&guest, first).await?;
        becomes_jump(&guest, "ours").await?;
        guest
            .work(&format!("threads syscall=umask count={CALLS}"))
            .await?;
        hits(&guest, "ours", 2 * CALLS).await?;
        guest.remove(&["ours"]).await?;
        place.unchanged(&guest, "after both").await?;
        guest.finish().await?;
        pass_with(format!("{FUNCTION}+{first:#x}"))
    })
}

fn guest_jump(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 2).await?;
        let place = Place::find(&guest).await?;
        let first = place.starts[0];
        begin(&mut guest, "kprobe-jump", first).await?;
        on(&mut guest, "armed").await?;
        // The guest's kernel calls a kprobe optimized as soon as it is queued for that; the text changes later.
        let jumped = async {
            while guest.memory(place.start + first, 1).await? != [0xe9] {
                tokio::time::sleep(LOOK).await;
            }
            Ok::<(), Failure>(())
        };
        let in_time = tokio::time::timeout(SETTLE, jumped).await;
        in_time.map_err(|_| wrong!("the guest makes no jump at {FUNCTION}+{first:#x}"))??;
        // Places under the guest's jump are refused to our probes; those behind it can be probed as before.
        let mut ours = None;
        for offset in &place.starts {
            let text = format!("ours={FUNCTION}+{offset:#x}");
            if *offset < first + JUMP_LEN {
                let refused = guest.refusal(&text).await?;
                check!(
                    refused.to_string().contains("kprobe of its own"),
                    "another refusal of {text}: {refused}"
                );
            } else if guest.probe(&text).await.is_ok() {
                ours = Some(*offset);
                break;
            }
        }
        let ours = ours.ok_or_else(|| wrong!("nothing can be probed behind the guest's jump"))?;
        settle(&guest, &["ours"]).await?;
        on(&mut guest, "called").await?;
        hits(&guest, "ours", CALLS).await?;
        on(&mut guest, "disarmed").await?;
        on(&mut guest, "called again").await?;
        hits(&guest, "ours", 2 * CALLS).await?;
        end(&mut guest).await?;
        guest.remove(&["ours"]).await?;
        place.unchanged(&guest, "after both").await?;
        guest.finish().await?;
        pass_with(format!(
            "the guest's jump at +{first:#x}, ours at +{ours:#x}"
        ))
    })
}
