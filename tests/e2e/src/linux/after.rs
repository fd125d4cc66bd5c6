//! Events after an instruction, and instead of one that faults.

use std::collections::BTreeMap;

use serde_json::Value;
use vmprobe_client::Message;
use vmprobe_client::v1::{Event, EventKind, Probe, Registers, event};

use super::code::straight;
use super::guest::{Guest, VM, files};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_post_event_has_the_registers_that_the_next_instruction_finds",
        ids: &["KP03", "VM13"],
        needs: Needs::Linux,
        run: post,
    },
    Test {
        name: "an_instruction_that_faults_under_a_probe_faults_in_the_guest_and_is_told",
        ids: &["KP04"],
        needs: Needs::Linux,
        run: fault,
    },
];

/// System calls whose functions begin in different ways, and that nothing else makes.
const CALLS: [&str; 4] = ["getppid", "getuid", "getpgid", "umask"];
const COUNT: u64 = 20;
/// Trap flag and resume flag: neither belongs to the guest.
const TF: u64 = 1 << 8;
const RF: u64 = 1 << 16;

fn post(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, 1).await?;
        let mut strategies: BTreeMap<String, u64> = BTreeMap::new();
        for call in CALLS {
            let code = straight(&guest, &format!("__x64_sys_{call}")).await?;
            let places: Vec<String> = code.iter().map(|one| format!("{:#x}", one.ip())).collect();
            let places = super::whole::accepted(&guest, &places).await?;
            let texts: Vec<String> = places
                .iter()
                .map(|place| format!("p {place} post"))
                .collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let probes = guest.probes(&texts).await?;
            let mut stream = guest.client.events(VM, Vec::new()).await?;
            guest
                .work(&format!("threads syscall={call} count={COUNT}"))
                .await?;
            let ids: Vec<u64> = probes.iter().map(|probe| probe.id).collect();
            guest.client.unregister_probes(VM, ids, Vec::new()).await?;
            let mut events: Vec<Event> = Vec::new();
            while (events.len() as u64) < 2 * COUNT * probes.len() as u64 {
                match stream.next().await? {
                    Some(Message::Batch {
                        lost: 0,
                        events: batch,
                    }) => events.extend(batch),
                    other => return Err(crate::test::wrong!("instead of events: {other:?}")),
                }
            }
            in_turn(&events, &probes)?;
            for probe in &probes {
                *strategies
                    .entry(format!("{:?}", probe.strategy()))
                    .or_default() += 1;
            }
        }
        guest.finish().await?;
        pass_with(format!(
            "{COUNT} calls of {CALLS:?}; instructions: {strategies:?}"
        ))
    })
}

/// Checks that each call has, for each probe in turn, one event before and one after its
/// instruction. If the next instruction is probed too, the registers after one instruction are
/// those before the next.
fn in_turn(events: &[Event], probes: &[Probe]) -> Result<(), Failure> {
    for call in events.chunks(2 * probes.len()) {
        for (index, (pair, probe)) in call.chunks(2).zip(probes).enumerate() {
            let [pre, post] = pair else {
                return Err(crate::test::wrong!("an odd number of events"));
            };
            let what = format!("{} at {:#x}", probe.instruction, probe.address);
            let kinds = [pre.kind(), post.kind()];
            check_eq!(kinds, [EventKind::Pre, EventKind::Post], "events of {what}");
            check_eq!(pre.probe_id, probe.id, "probe of the event before {what}");
            check_eq!(post.probe_id, probe.id, "probe of the event after {what}");
            check!(post.tsc >= pre.tsc, "{what}: time goes back");
            let before = pre.registers.unwrap_or_default();
            let after = post.registers.unwrap_or_default();
            check_eq!(before.rip, probe.address, "RIP before {what}");
            check_eq!(
                (before.rflags | after.rflags) & TF,
                0,
                "trap flag at {what}"
            );
            let next = call.get(2 * index + 2).and_then(|event| event.registers);
            if let Some(next) = next.filter(|next| next.rip == after.rip) {
                check_eq!(plain(after), plain(next), "registers after {what}");
            } else {
                check!(
                    index + 1 == probes.len() || after.rip != probes[index + 1].address,
                    "{what} leads to {:#x}, but not into the next probe",
                    after.rip
                );
            }
        }
    }
    Ok(())
}

fn plain(registers: Registers) -> Registers {
    Registers {
        rflags: registers.rflags & !RF,
        ..registers
    }
}

/// Functions whose instructions fault at bad pointers; each kernel has some of them.
pub const COPIES: [&str; 22] = [
    "__get_user_1",
    "__get_user_2",
    "__get_user_4",
    "__get_user_8",
    "__get_user_nocheck_4",
    "__get_user_nocheck_8",
    "__put_user_1",
    "__put_user_2",
    "__put_user_4",
    "__put_user_8",
    "__put_user_nocheck_4",
    "__put_user_nocheck_8",
    "copy_user_generic_unrolled",
    "copy_user_generic_string",
    "copy_user_enhanced_fast_string",
    "rep_movs_alternative",
    "__clear_user",
    "clear_user_original",
    "clear_user_rep_good",
    "strncpy_from_user",
    "strnlen_user",
    "__copy_user_nocache",
];
/// Page fault and general protection: the exceptions of a bad pointer.
const VECTORS: [u32; 2] = [14, 13];

/// Checks that calls failed with probes as they had without: two reports of the workload `fault`.
pub fn failed_alike(probed: &Value, unprobed: &Value) -> Result<(), Failure> {
    for field in ["faulted", "copied", "calls"] {
        check_eq!(
            probed[field],
            unprobed[field],
            "{field}, unlike without probes"
        );
    }
    Ok(())
}

fn fault(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, 1).await?;
        let unprobed = guest.work("fault count=2").await?;
        let mut places = Vec::new();
        for function in COPIES {
            let Ok(start) = guest.symbol(function).await else {
                continue;
            };
            // As many bytes as any of them has. Instructions of the next function are left out.
            for instruction in super::code::decode(start, &guest.memory(start, 0x180).await?) {
                let (owner, _) = guest.client.resolve_address(VM, instruction.ip()).await?;
                if owner.address != start {
                    break;
                }
                places.push(format!("{:#x}", instruction.ip()));
            }
        }
        let places = super::whole::accepted(&guest, &places).await?;
        let texts: Vec<String> = places
            .iter()
            .map(|place| format!("p {place} fault"))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let probes = guest.probes(&texts).await?;
        let by_id: BTreeMap<u64, &Probe> = probes.iter().map(|probe| (probe.id, probe)).collect();
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let probed = guest.work("fault count=2").await?;
        failed_alike(&probed, &unprobed)?;
        guest.quit().await?;

        let (mut faults, mut lost_events, mut placed) = (0, 0, BTreeMap::new());
        while let Some(message) = stream.next().await? {
            let Message::Batch { lost, events } = message else {
                continue;
            };
            lost_events += lost;
            for event in events
                .iter()
                .filter(|event| event.kind() == EventKind::Fault)
            {
                let Some(event::Detail::Fault(fault)) = &event.detail else {
                    return Err(crate::test::wrong!("a fault without detail: {event:?}"));
                };
                let probe = by_id.get(&event.probe_id).map_or(0, |probe| probe.address);
                let rip = event.registers.map_or(0, |registers| registers.rip);
                check_eq!(rip, probe, "RIP of {event:?}");
                check!(VECTORS.contains(&fault.vector), "vector of {event:?}");
                check!(fault.error_code.is_some(), "error code of {event:?}");
                check_eq!(
                    fault.address.is_some(),
                    fault.vector == 14,
                    "CR2 of {event:?}"
                );
                faults += 1;
                *placed.entry(event.probe_id).or_insert(0) += 1;
            }
        }
        guest.power_off().await?;
        check!(
            faults > 50,
            "only {faults} faults were told ({lost_events} events lost)"
        );
        check!(
            placed.len() > 4,
            "faults of {} instructions only",
            placed.len()
        );
        pass_with(format!(
            "{} calls failed as without probes; {faults} faults of {} instructions of {} probed",
            probed["faulted"],
            placed.len(),
            probes.len()
        ))
    })
}
