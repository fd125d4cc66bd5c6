//! Hits of a tiny guest that wait for a client's answer.

use std::time::{Duration, Instant};

use vmprobe_client::v1::{EndingKind, HeldHit, VmState};
use vmprobe_client::{ClientError, HeldHits, HitMessage, spec};

use super::actions::{CALLS, GIVEN, act, action, guest, kernel, result};
use super::image::DATA;
use super::vm::{Tiny, VM};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "tiny_a_client_that_is_asked_at_each_hit_decides_what_the_guest_gets",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: answering,
    },
    Test {
        name: "tiny_a_client_that_does_not_answer_is_dropped_and_the_guest_goes_on",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: silent,
    },
    Test {
        name: "tiny_a_client_that_leaves_or_asks_for_nonsense_lets_the_guest_go_on",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: leaving,
    },
    Test {
        name: "tiny_a_guest_is_stopped_paused_and_changed_while_a_hit_waits",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: meanwhile,
    },
    Test {
        name: "tiny_a_guest_is_killed_while_a_hit_waits",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: killed,
    },
];

/// The longest time for an answer: far more than a test takes.
const LONG: Duration = Duration::from_secs(60);
/// What the function returns without any change.
const UNCHANGED: u64 = CALLS * (GIVEN + 3);

async fn attend(guest: &Tiny, time: Duration) -> Result<HeldHits, Failure> {
    let names = vec!["func+0x0".to_owned()];
    Ok(guest.client.handle_hits(VM, vec![], names, time).await?)
}

async fn hit(hits: &mut HeldHits) -> Result<Box<HeldHit>, Failure> {
    match hits.next().await? {
        Some(HitMessage::Hit(hit)) => Ok(hit),
        other => Err(wrong!("a hit was expected, not {other:?}")),
    }
}

/// The first call isn't changed. The second gets another argument, the third a value to return. At the fourth something
/// is written, which the fifth call finds as well.
fn answering(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = guest(cx).await?;
        act(&guest, "func", vec![]).await?;
        let mut hits = attend(&guest, LONG).await?;
        guest.start().await?;
        for (call, text) in ["", "set rdi=0x10", "override 0x20", "", ""]
            .iter()
            .enumerate()
        {
            let hit = hit(&mut hits).await?;
            let registers = hit.registers.unwrap_or_default();
            check_eq!(registers.rdi, GIVEN, "the argument of call {call}");
            let event = hit.event.unwrap_or_default();
            check_eq!(event.registers.unwrap_or_default(), registers, "the event");
            // The return address is in the caller.
            let word = hits.read_memory(hit.number, registers.rsp, 8).await?;
            check!(word.ends_with(&[0xff; 4]), "the return address: {word:x?}");
            let unmapped = hits.read_memory(hit.number, 1 << 46, 8).await?;
            check_eq!(unmapped.len(), 0, "bytes where nothing is mapped");
            if call == 3 {
                let text = registers.rip;
                let refused = hits.write_memory(hit.number, text, vec![0x90]).await;
                check!(refused.is_err(), "our own int3 was overwritten");
                hits.write_memory(hit.number, DATA + 8, vec![0x30]).await?;
            }
            let actions = match *text {
                "" => vec![],
                text => vec![action(text)?],
            };
            hits.answer(hit.number, actions).await?;
        }
        let expected = (GIVEN + 3) + (0x10 + 3) + 0x20 + 0x30 + 0x30;
        check_eq!(result(&mut guest).await?, expected, "the sum");
        guest.power_off().await?;
        match hits.next().await? {
            Some(HitMessage::Ended(ending)) => {
                check_eq!(ending.kind(), EndingKind::PowerOff, "the ending");
            }
            other => return Err(wrong!("the stream goes on with {other:?}")),
        }
        let probes = guest.client.list_probes(VM).await?;
        check_eq!(
            (probes[0].hits, probes[0].actions_done),
            (CALLS, 2),
            "hits, actions"
        );
        pass()
    })
}

fn silent(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = guest(cx).await?;
        act(&guest, "func", vec![]).await?;
        let time = Duration::from_millis(200);
        let mut hits = attend(&guest, time).await?;
        let since = Instant::now();
        guest.start().await?;
        hit(&mut hits).await?;
        match hits.next().await {
            Err(ClientError::Timeout) => {}
            other => return Err(wrong!("without an answer the stream goes on: {other:?}")),
        }
        check!(
            since.elapsed() >= time,
            "the time for an answer was shorter"
        );
        check_eq!(result(&mut guest).await?, UNCHANGED, "the sum");
        guest.power_off().await?;
        let probes = guest.client.list_probes(VM).await?;
        check_eq!(probes[0].hits, CALLS, "hits");
        check!(!probes[0].attended, "the client is still asked");
        pass()
    })
}

fn leaving(cx: &Context) -> TestResult {
    cx.block_on(async {
        for nonsense in [false, true] {
            let mut guest = guest(cx).await?;
            act(&guest, "func", vec![]).await?;
            let mut hits = attend(&guest, LONG).await?;
            guest.start().await?;
            let hit = hit(&mut hits).await?;
            if nonsense {
                hits.answer(hit.number + 1, vec![]).await?;
                match hits.next().await {
                    Err(ClientError::InvalidArgument { .. }) => {}
                    other => return Err(wrong!("after nonsense the stream goes on: {other:?}")),
                }
            } else {
                drop(hits);
            }
            check_eq!(result(&mut guest).await?, UNCHANGED, "the sum");
            guest.power_off().await?;
        }
        pass()
    })
}

fn meanwhile(cx: &Context) -> TestResult {
    cx.block_on(async {
        // On a server that doesn't let clients change the guest.
        let mut guest = Tiny::new(cx, &kernel()?, 64).await?;
        act(&guest, "func", vec![]).await?;
        let mut hits = attend(&guest, LONG).await?;
        guest.start().await?;
        let first = hit(&mut hits).await?;
        let since = Instant::now();
        let at = first.registers.unwrap_or_default().rip;
        let registers = guest.client.read_registers(VM, 0).await?;
        check_eq!(registers.rip, at, "where the vCPU stands");
        let second = spec::parse("inside").map_err(|error| wrong!("{error}"))?;
        guest.client.register_probes(VM, vec![second]).await?;
        let vm = guest.client.pause_vm(VM).await?;
        check_eq!(vm.state(), VmState::Paused, "the state");
        // An answer that is given in a pause takes effect after it.
        hits.answer(first.number, vec![]).await?;
        let waits = hits.read_memory(first.number, at, 1).await;
        check!(waits.is_err(), "an answered hit is read by: {waits:?}");
        drop(hits);
        guest.client.resume_vm(VM).await?;
        check_eq!(result(&mut guest).await?, UNCHANGED, "the sum");
        check!(
            since.elapsed() < LONG / 2,
            "somebody has waited for the hit"
        );
        guest.power_off().await?;
        let probes = guest.client.list_probes(VM).await?;
        let hits: Vec<u64> = probes.iter().map(|probe| probe.hits).collect();
        check_eq!(hits, [CALLS, CALLS], "hits");
        pass()
    })
}

fn killed(cx: &Context) -> TestResult {
    cx.block_on(async {
        let guest = guest(cx).await?;
        act(&guest, "func", vec![]).await?;
        let mut hits = attend(&guest, LONG).await?;
        guest.start().await?;
        hit(&mut hits).await?;
        let since = Instant::now();
        guest.client.kill_vm(VM).await?;
        check!(
            since.elapsed() < LONG / 2,
            "the kill has waited for the hit"
        );
        match hits.next().await? {
            Some(HitMessage::Ended(ending)) => {
                check_eq!(ending.kind(), EndingKind::Killed, "the ending");
            }
            other => return Err(wrong!("the stream goes on with {other:?}")),
        }
        pass()
    })
}
