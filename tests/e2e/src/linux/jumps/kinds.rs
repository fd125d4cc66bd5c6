//! Jumps over calls, jumps and the like count and do what breakpoints on the same instructions do.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{FlowControl, Instruction};
use vmprobe_client::v1::Probe;

use super::{is_jump, settle};
use crate::context::Context;
use crate::linux::code;
use crate::linux::guest::{Guest, VM, files, specs};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "calls_jumps_relative_operands_and_ends_of_functions_are_executed_in_detours",
        ids: &["JP10"],
        needs: Needs::Linux,
        run: |cx| kinds(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "the_same_in_6_12",
        ids: &["JP10"],
        needs: Needs::Linux,
        run: |cx| kinds(cx, files::BZIMAGE_6_12),
    },
];

const VCPUS: u32 = 2;
/// System calls, and calls of each on each vCPU at a time.
const SYSTEM_CALLS: [&str; 4] = ["umask", "getpgid", "getuid", "getppid"];
const CALLS: u64 = 50;
/// The functions that these call. Otherwise the guest calls them only in ways that are the same each time.
const FUNCTIONS: [&str; 7] = [
    "__x64_sys_umask",
    "__x64_sys_getpgid",
    "do_getpgid",
    "__x64_sys_getuid",
    "from_kuid_munged",
    "__x64_sys_getppid",
    "__task_pid_nr_ns",
];
/// Bytes of a jump.
const JUMP_LEN: usize = 5;
/// A distance longer than the region of a jump.
const APART: u64 = 20;

/// What a region may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Call,
    Jump,
    ConditionalJump,
    RelativeOperand,
    EndOfFunction,
}

const KINDS: [Kind; 5] = [
    Kind::Call,
    Kind::Jump,
    Kind::ConditionalJump,
    Kind::RelativeOperand,
    Kind::EndOfFunction,
];

fn kinds(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, VCPUS).await?;
        let places = places(&guest).await?;
        // Work of the first call only is over then.
        call(&mut guest).await?;
        let mut jumps: BTreeMap<Kind, usize> = BTreeMap::new();
        let (mut all, mut hit, mut hits) = (0, 0, 0);
        for group in groups(places.keys().copied()) {
            let texts: Vec<String> = group.iter().map(|at| format!("{at:#x} count")).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let probes = guest.client.register_probes(VM, specs(&texts)?).await?;
            let settled = settle(&guest, &[]).await?.probes;
            call(&mut guest).await?;
            let fast = guest.client.list_probes(VM).await?;
            guest.client.set_optimization(VM, false).await?;
            call(&mut guest).await?;
            let slow = guest.client.list_probes(VM).await?;
            guest.client.set_optimization(VM, true).await?;
            let ids = probes.iter().map(|probe| probe.id).collect();
            guest.client.unregister_probes(VM, ids, Vec::new()).await?;
            for before in settled.iter().filter(|probe| is_jump(probe)) {
                let (fast, slow) = (same(&fast, before)?, same(&slow, before)?);
                let hits_fast = fast.hits - before.hits;
                let what = format!("`{}` at {:#x}", before.instruction, before.address);
                check_eq!(fast.exits, before.exits, "exits of the jump on {what}");
                check_eq!(fast.missed + slow.missed, 0, "missed hits of {what}");
                check_eq!(
                    hits_fast,
                    slow.hits - fast.hits,
                    "hits of a jump and then of a breakpoint on {what}"
                );
                all += 1;
                hits += hits_fast;
                if hits_fast > 0 {
                    hit += 1;
                    let kinds = places.get(&before.address).into_iter().flatten();
                    kinds.for_each(|kind| *jumps.entry(*kind).or_default() += 1);
                }
            }
        }
        for kind in KINDS {
            check!(
                jumps.contains_key(&kind),
                "no jump over a {kind:?} was hit, only {jumps:?}"
            );
        }
        guest.finish().await?;
        pass_with(format!(
            "{hit} of {all} jumps were hit, {hits} times, as breakpoints in their places; over: {jumps:?}"
        ))
    })
}

/// Returns the probe as it is in another list.
fn same<'a>(list: &'a [Probe], probe: &Probe) -> Result<&'a Probe, Failure> {
    let found = list.iter().find(|other| other.id == probe.id);
    found.ok_or_else(|| wrong!("probe {} isn't listed", probe.name))
}

/// Has the guest make all the calls.
async fn call(guest: &mut Guest) -> Result<(), Failure> {
    for call in SYSTEM_CALLS {
        let request = format!("threads syscall={call} count={CALLS}");
        guest.work(&request).await?;
    }
    Ok(())
}

/// Returns the addresses of instructions of the functions that can be probed, and what the region of a jump at each
/// contains.
async fn places(guest: &Guest) -> Result<BTreeMap<u64, BTreeSet<Kind>>, Failure> {
    let mut found = BTreeMap::new();
    let (symbols, _) = guest.client.lookup_symbols(VM, "*", 1_000_000).await?;
    let addresses: BTreeSet<u64> = symbols.iter().map(|symbol| symbol.address).collect();
    for function in FUNCTIONS {
        let start = guest.symbol(function).await?;
        let end = addresses
            .range(start + 1..)
            .next()
            .copied()
            .unwrap_or(start);
        let bytes = guest.memory(start, (end - start) as usize).await?;
        let code = code::decode(start, &bytes);
        for (index, first) in code.iter().enumerate() {
            found.insert(first.ip(), overwritten(&code[index..]));
        }
    }
    let all: Vec<String> = found.keys().map(|at| format!("{at:#x}")).collect();
    let accepted: BTreeSet<String> = crate::linux::whole::accepted(guest, &all)
        .await?
        .into_iter()
        .collect();
    found.retain(|at, _| accepted.contains(&format!("{at:#x}")));
    Ok(found)
}

fn overwritten(code: &[Instruction]) -> BTreeSet<Kind> {
    let mut kinds = BTreeSet::new();
    let mut len = 0;
    for instruction in code {
        let flow = instruction.flow_control();
        match flow {
            FlowControl::Call | FlowControl::IndirectCall => kinds.insert(Kind::Call),
            FlowControl::UnconditionalBranch => kinds.insert(Kind::Jump),
            FlowControl::ConditionalBranch => kinds.insert(Kind::ConditionalJump),
            _ => false,
        };
        if instruction.is_ip_rel_memory_operand() {
            kinds.insert(Kind::RelativeOperand);
        }
        if matches!(flow, FlowControl::UnconditionalBranch | FlowControl::Return) {
            kinds.insert(Kind::EndOfFunction);
            break;
        }
        len += instruction.len();
        if len >= JUMP_LEN {
            break;
        }
    }
    kinds
}

/// Puts addresses into groups in which none is in the region of a jump at another.
fn groups(places: impl Iterator<Item = u64>) -> Vec<Vec<u64>> {
    let mut groups: Vec<Vec<u64>> = Vec::new();
    for at in places {
        let fits = |group: &&mut Vec<u64>| group.last().is_none_or(|last| last + APART <= at);
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}
