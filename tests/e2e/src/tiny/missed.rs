//! A probe that is removed in the middle of its hits.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, qword_ptr, r9, rsi};
use vmprobe_client::spec;
use vmprobe_client::v1::{Probe, Strategy};

use super::image::{self, DATA, Names};
use super::vm::{Tiny, VM, number};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TAKEN_AWAY: Test = Test {
    name: "tiny_a_probe_taken_away_while_its_vcpu_has_trapped_has_counted_each_execution",
    ids: &["KP06"],
    needs: Needs::Tiny,
    run: taken_away,
};

/// An instruction that adds 1 to the number at RSI, and the strategy for it.
struct Way {
    strategy: Strategy,
    body: fn(&mut CodeAssembler) -> Result<(), IcedError>,
}

const WAYS: [Way; 2] = [
    Way {
        strategy: Strategy::Emulate,
        body: |a| a.add(qword_ptr(rsi), 1),
    },
    Way {
        strategy: Strategy::Step,
        body: |a| a.lock().xadd(qword_ptr(rsi), r9),
    },
];
/// How often the probe comes and goes.
const TIMES: u64 = 30;

/// The guest executes little besides the probed instruction, so nearly each stop finds its vCPU trapped.
fn taken_away(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut remarks = Vec::new();
        for way in &WAYS {
            let kernel = image::build(|a, names| looped(a, names, way.body))?;
            let guest = Tiny::new(cx, &kernel, 64).await?;
            guest.start().await?;
            guest.client.pause_vm(VM).await?;
            let (mut hits, mut waits) = (0, false);
            for time in 0..TIMES {
                let gone = comes_and_goes(&guest, way.strategy, waits).await?;
                hits += gone.hits;
                // Every other time the next probe comes while the last probe's step may still wait.
                let runs_between = time % 2 == 0;
                if runs_between {
                    runs_without(&guest).await?;
                }
                waits = gone.waits && !runs_between;
            }
            guest.client.kill_vm(VM).await?;
            remarks.push(format!("{hits} hits by {:?}", way.strategy));
        }
        pass_with(format!("{TIMES} times: {}", remarks.join(", ")))
    })
}

/// A loop without end around an instruction at `body`.
fn looped(
    a: &mut CodeAssembler,
    names: &mut Names,
    body: fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let mut again = a.create_label();
    a.mov(rsi, DATA)?;
    a.set_label(&mut again)?;
    a.mov(r9, 1_u64)?;
    names.here(a, "body")?;
    body(a)?;
    names.here(a, "after")?;
    a.jmp(again)
}

/// The counts of a removed probe.
struct Gone {
    hits: u64,
    /// True if its last hit waits for its step, which will execute the instruction.
    waits: bool,
}

/// Registers a probe and removes it after some hits, each of which must be an execution. The VM is paused before and
/// after. A last hit of the probe before may be waiting for its step.
async fn comes_and_goes(
    guest: &Tiny,
    strategy: Strategy,
    other_waits: bool,
) -> Result<Gone, Failure> {
    let client = &guest.client;
    let executed_before = executed(guest).await?;
    let spec = spec::parse("probe=body").map_err(|error| wrong!("{error}"))?;
    let probe = client.register_probes(VM, vec![spec]).await?.remove(0);
    check_eq!(
        probe.strategy(),
        strategy,
        "the way past `{}`",
        probe.instruction
    );
    client.resume_vm(VM).await?;
    while listed(guest).await?.hits == 0 {}
    client.pause_vm(VM).await?;
    let name = vec!["probe".to_owned()];
    let removed = client.unregister_probes(VM, Vec::new(), name).await?;
    let (hits, missed) = (removed[0].hits, removed[0].missed);
    let own = executed(guest).await? - executed_before - u64::from(other_waits);
    let rip = client.read_registers(VM, 0).await?.rip;
    check_eq!(missed, 0, "missed hits");
    // A hit that waits for its step counts already. The instruction is executed after the probe's removal.
    let waits = strategy == Strategy::Step && rip == probe.address && hits == own + 1;
    check!(
        hits == own || waits,
        "{hits} hits of {own} executions, RIP is {rip:#x}"
    );
    Ok(Gone { hits, waits })
}

/// Lets the paused guest execute the instruction without a probe, which ends a waiting step.
async fn runs_without(guest: &Tiny) -> Result<(), Failure> {
    let before = executed(guest).await?;
    guest.client.resume_vm(VM).await?;
    while executed(guest).await? == before {}
    guest.client.pause_vm(VM).await?;
    Ok(())
}

async fn listed(guest: &Tiny) -> Result<Probe, Failure> {
    let mut probes = guest.client.list_probes(VM).await?;
    probes.pop().ok_or_else(|| wrong!("the probe isn't listed"))
}

/// Returns how often the guest has executed the instruction.
async fn executed(guest: &Tiny) -> Result<u64, Failure> {
    Ok(number(&guest.client.read_memory(VM, 0, DATA, 8).await?))
}
