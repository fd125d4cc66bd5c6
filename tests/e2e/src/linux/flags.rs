//! Instructions that change the interrupt flag, stop the processor or repeat, in a running kernel.

use std::collections::BTreeMap;

use iced_x86::{FlowControl, Instruction, Mnemonic};
use vmprobe_client::Message;
use vmprobe_client::v1::{EventKind, Probe, Symbol};

use super::code::decode;
use super::guest::{Guest, VM, files};
use super::whole::accepted;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "instructions_of_every_kind_run_under_probes_in_6_1",
        ids: &["KP11"],
        needs: Needs::Linux,
        run: |cx| kinds(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "instructions_of_every_kind_run_under_probes_in_6_12",
        ids: &["KP11"],
        needs: Needs::Linux,
        run: |cx| kinds(cx, files::BZIMAGE_6_12),
    },
];

/// Probes of one kind of instruction at a time.
const EACH: usize = 60;
/// Kinds that the kernel executes all the time. popf is rare: `local_irq_restore` is `sti`
/// (arch/x86/include/asm/irqflags.h).
const FREQUENT: [&str; 5] = ["pushf", "cli", "sti", "rep", "jcc"];
const IF: u64 = 1 << 9;
const TF: u64 = 1 << 8;

fn kinds(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, kernel, 2).await?;
        let mut places = by_kind(&guest).await?;
        let mut remark = Vec::new();
        let mut missing = Vec::new();
        for (kind, places) in &mut places {
            // Every `step`th place, so that they are spread over the whole kernel. If none of those
            // is executed, the places next to them are tried.
            let step = places.len().div_ceil(EACH);
            let (mut probes, mut hit) = (0, 0);
            for first in 0..step {
                let some: Vec<String> = places.iter().skip(first).step_by(step).cloned().collect();
                let some = accepted(&guest, &some).await?;
                let texts: Vec<String> =
                    some.iter().map(|place| format!("p {place} post")).collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                // First the cheapest form, then with the registers after each instruction.
                let plain: Vec<&str> = some.iter().map(String::as_str).collect();
                hit += hits(&mut guest, &plain, kind).await?;
                hit += hits(&mut guest, &texts, kind).await?;
                probes += some.len();
                if hit > 0 || !FREQUENT.contains(kind) {
                    break;
                }
            }
            remark.push(format!("{kind} {probes}/{hit}"));
            if hit == 0 {
                missing.push(*kind);
            }
        }
        guest.finish().await?;
        for kind in FREQUENT {
            let listed = places.contains_key(kind);
            check!(
                listed && !missing.contains(&kind),
                "no {kind} was hit: {remark:?}"
            );
        }
        pass_with(format!("probes/hits: {}", remark.join(", ")))
    })
}

/// Probes these places during a round of work. Returns how often they were hit. The registers in
/// the post events have the flags that the instruction leaves.
async fn hits(guest: &mut Guest, texts: &[&str], kind: &str) -> Result<u64, Failure> {
    if texts.is_empty() {
        return Ok(0);
    }
    // Opened before the probes, so that no hit is missing in it.
    let mut stream = guest.client.events(VM, Vec::new()).await?;
    let probes = guest.probes(texts).await?;
    let ids: Vec<u64> = probes.iter().map(|probe| probe.id).collect();
    guest.work("sweep count=1").await?;
    let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    let hits: u64 = removed.iter().map(|probe: &Probe| probe.hits).sum();
    // Reads the events that are there by now; the others are like these.
    let mut seen = 0;
    while seen < hits.min(100) {
        let Some(Message::Batch { lost, events }) = stream.next().await? else {
            break;
        };
        seen += lost + events.len() as u64;
        for event in &events {
            let flags = event.registers.map_or(0, |registers| registers.rflags);
            check_eq!(flags & TF, 0, "trap flag in {event:?}");
            let expected = match (event.kind(), kind) {
                (EventKind::Post, "cli") => 0,
                (EventKind::Post, "sti") => IF,
                _ => flags & IF,
            };
            check_eq!(flags & IF, expected, "interrupt flag after {kind}");
        }
    }
    Ok(hits)
}

/// Places of the instructions of each kind in the kernel's text as it is now.
async fn by_kind(guest: &Guest) -> Result<BTreeMap<&'static str, Vec<String>>, Failure> {
    let start = guest.symbol("_stext").await?;
    let end = guest.symbol("_etext").await?;
    let text = guest.memory(start, (end - start) as usize).await?;
    let (symbols, _) = guest.client.lookup_symbols(VM, "*", 1_000_000).await?;
    let is_function = |symbol: &&Symbol| {
        symbol.kind.eq_ignore_ascii_case("t") && (start..end).contains(&symbol.address)
    };
    let mut functions: Vec<(u64, bool)> = symbols
        .iter()
        .filter(is_function)
        // In a kernel with mitigations, every function returns through these.
        .map(|symbol| {
            let returns = symbol.name.contains("return_thunk") || symbol.name.ends_with("_ret");
            (symbol.address, !returns)
        })
        .collect();
    functions.sort_unstable();
    functions.dedup_by_key(|(address, _)| *address);
    let mut found: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for pair in functions.windows(2) {
        let [(first, wanted), (next, _)] = [pair[0], pair[1]];
        let range = (first - start) as usize..(next - start) as usize;
        let Some(bytes) = text.get(range).filter(|_| wanted) else {
            continue;
        };
        for instruction in decode(first, bytes) {
            if let Some(kind) = kind(&instruction) {
                let place = format!("{:#x}", instruction.ip());
                found.entry(kind).or_default().push(place);
            }
        }
    }
    Ok(found)
}

/// Returns the kind of an instruction that is worth trying.
fn kind(instruction: &Instruction) -> Option<&'static str> {
    match instruction.mnemonic() {
        Mnemonic::Pushfq => Some("pushf"),
        Mnemonic::Popfq => Some("popf"),
        Mnemonic::Cli => Some("cli"),
        Mnemonic::Sti => Some("sti"),
        Mnemonic::Hlt => Some("hlt"),
        Mnemonic::Iretq => Some("iret"),
        Mnemonic::Loop | Mnemonic::Jrcxz => Some("loop"),
        Mnemonic::Rdtsc => Some("rdtsc"),
        Mnemonic::Pause => Some("pause"),
        Mnemonic::Rdmsr | Mnemonic::Wrmsr => Some("msr"),
        Mnemonic::Div | Mnemonic::Idiv => Some("div"),
        Mnemonic::Bsf | Mnemonic::Bsr | Mnemonic::Tzcnt | Mnemonic::Popcnt => Some("bits"),
        Mnemonic::Leave => Some("leave"),
        _ if instruction.has_rep_prefix() && instruction.is_string_instruction() => Some("rep"),
        _ if instruction.has_lock_prefix() => Some("lock"),
        _ if instruction.is_ip_rel_memory_operand() => Some("rip-relative"),
        _ => match instruction.flow_control() {
            FlowControl::Call => Some("call"),
            FlowControl::IndirectCall => Some("indirect call"),
            FlowControl::ConditionalBranch => Some("jcc"),
            FlowControl::UnconditionalBranch => Some("jmp"),
            FlowControl::Return => Some("ret"),
            _ => None,
        },
    }
}
