//! Probes on a running guest: exact counts, every kind of place, refusals.

use vmprobe_client::v1::{Probe, ProbeState, Strategy};
use vmprobe_client::{ClientError, Message};

use super::guest::{Config, Guest, VM};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "every_call_on_1_vcpu_is_a_hit_of_every_kind_of_probe",
        ids: &["KP01"],
        needs: Needs::Linux,
        run: |cx| exact(cx, 1),
    },
    Test {
        name: "every_call_on_4_vcpus_is_a_hit_of_every_kind_of_probe",
        ids: &["KP01", "VM13"],
        needs: Needs::Linux,
        run: |cx| exact(cx, 4),
    },
    Test {
        name: "probes_that_make_no_sense_are_refused_with_their_reason",
        ids: &["KP01"],
        needs: Needs::Linux,
        run: refusals,
    },
];

/// Calls on each vCPU.
const CALLS: u64 = 500;
/// A function without branches: each probed instruction in it is executed once a call.
const FUNCTION: &str = "__x64_sys_umask";

fn exact(cx: &Context, vcpus: u32) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::boot(
            cx,
            &Config {
                vcpus,
                ..Config::new("workload=echo")
            },
        )
        .await?;
        guest.console.report("ready").await?;

        let entry = guest.probe(&format!("entry={FUNCTION}")).await?;
        let inside = instructions_inside(&guest, &entry).await?;
        let emulated = with_strategy(&inside, Strategy::Emulate)?;
        let boosted = with_strategy(&inside, Strategy::Boost)?;
        check!(
            emulated.offset > entry.offset,
            "{emulated:?} isn't inside the function"
        );
        // All are removed again, so that only the probes registered below are counted.
        let ids = inside.iter().map(|probe| probe.id).collect();
        guest.client.unregister_probes(VM, ids, Vec::new()).await?;
        let names = ["mid", "boost", "post", "address"];
        guest
            .probe(&format!("mid={FUNCTION}+{:#x}", emulated.offset))
            .await?;
        guest
            .probe(&format!("boost={FUNCTION}+{:#x}", boosted.offset))
            .await?;
        guest
            .probe(&format!("p:post {FUNCTION}+{:#x} post", boosted.offset))
            .await?;
        guest
            .probe(&format!("address={:#x}", emulated.address))
            .await?;

        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let request = format!("workload=threads syscall=umask count={CALLS}\n");
        guest.console.send(request.as_bytes()).await?;
        let done = guest.console.report("done").await?;
        let expected = CALLS * u64::from(vcpus);
        check_eq!(done["calls"], expected, "calls that the guest made");
        for name in names.into_iter().chain(["entry"]) {
            let probe = guest.listed(name).await?;
            check_eq!(
                probe.hits,
                expected,
                "hits of {name} ({})",
                probe.instruction
            );
            check_eq!(probe.missed, 0, "missed hits of {name}");
            check_eq!(probe.state(), ProbeState::Armed, "state of {name}");
        }

        let all: Vec<String> = names
            .into_iter()
            .chain(["entry"])
            .map(str::to_owned)
            .collect();
        let removed = guest.client.unregister_probes(VM, Vec::new(), all).await?;
        check!(
            removed.iter().all(|probe| probe.hits == expected),
            "final counts: {removed:?}"
        );
        guest.console.send(request.as_bytes()).await?;
        guest.console.report("done").await?;
        guest.console.send(b"quit\n").await?;
        let (mut events, mut lost) = (0, 0);
        while let Some(message) = stream.next().await? {
            if let Message::Batch {
                lost: some,
                events: batch,
            } = message
            {
                lost += some;
                events += batch.len() as u64;
            }
        }
        // The probe with a post event has two events for each hit.
        check_eq!(events + lost, 6 * expected, "events, lost ones included");
        guest.power_off().await?;
        pass_with(format!(
            "{expected} calls, 5 probes, boosted `{}`",
            boosted.instruction
        ))
    })
}

/// A probe on each instruction of the function's straight start, after the entry.
async fn instructions_inside(guest: &Guest, entry: &Probe) -> Result<Vec<Probe>, Failure> {
    let mut found = Vec::new();
    for offset in entry.offset + 1..entry.offset + 0x40 {
        match guest
            .probe(&format!("i{offset}={FUNCTION}+{offset:#x}"))
            .await
        {
            Ok(probe) => {
                let leaves = ["ret", "jmp", "call"];
                let end = leaves
                    .iter()
                    .any(|name| probe.instruction.starts_with(name));
                found.push(probe);
                if end {
                    break;
                }
            }
            Err(Failure::Client(ClientError::InvalidArgument { message, .. }))
                if message.contains("inside the instruction") => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}

fn with_strategy(probes: &[Probe], strategy: Strategy) -> Result<Probe, Failure> {
    let found = probes.iter().find(|probe| probe.strategy() == strategy);
    found.cloned().ok_or_else(|| {
        let all: Vec<_> = probes
            .iter()
            .map(|p| (&p.instruction, p.strategy()))
            .collect();
        wrong!("no instruction of {FUNCTION} is passed by {strategy:?}: {all:?}")
    })
}

/// Checks code and message of each refusal, and that nothing of a refused request stays.
fn refusals(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::boot(cx, &Config::new("workload=echo")).await?;
        guest.console.report("ready").await?;
        guest.probe("first=vfs_read").await?;
        let data = guest.client.lookup_symbols(VM, "jiffies_64", 1).await?.0;
        let data = data.first().map_or(0, |symbol| symbol.address);
        let in_data = format!("{data:#x}");
        let cases = [
            (
                "first=vfs_read",
                "AlreadyExists",
                "there already is a probe \"first\"",
            ),
            (
                "no_such_symbol_at_all",
                "NotFound",
                "has no symbol \"no_such_symbol_at_all\"",
            ),
            (
                "vfs_read+0x100000",
                "InvalidArgument",
                "is outside vfs_read",
            ),
            ("0x1000", "InvalidArgument", "is not in the kernel's text"),
            (&in_data, "InvalidArgument", "is not in the kernel's text"),
            (
                "vfs_read+1",
                "InvalidArgument",
                "which has to stay as it is",
            ),
            (
                "start_kernel",
                "FailedPrecondition",
                "is in init text, which the kernel has freed",
            ),
        ];
        for (text, code, message) in cases {
            let error = match guest.probe(text).await {
                Ok(probe) => return Err(wrong!("{text} was accepted: {probe:?}")),
                Err(Failure::Client(error)) => error,
                Err(other) => return Err(other),
            };
            let kind = format!("{error:?}");
            check!(kind.starts_with(code), "{text}: {kind} instead of {code}");
            check!(error.to_string().contains(message), "{text}: {error}");
        }
        // All or nothing: a good one beside a bad one isn't there afterwards.
        let batch = super::guest::specs(&["good=vfs_write", "no_such_symbol_at_all"])?;
        let refused = guest.client.register_probes(VM, batch).await;
        check!(refused.is_err(), "a batch with a bad probe was accepted");
        let names: Vec<String> = guest
            .client
            .list_probes(VM)
            .await?
            .into_iter()
            .map(|probe| probe.name)
            .collect();
        check_eq!(names, ["first"], "the probes afterwards");
        guest.console.send(b"quit\n").await?;
        guest.power_off().await?;
        pass()
    })
}
