//! Stacks, compared with those that the guest's own trigger writes for the same hits.

use std::collections::{BTreeMap, BTreeSet};

use vmprobe_client::v1::{Event, Probe};

use super::super::guest::{Guest, VM, files};
use super::super::jumps;
use crate::context::Context;
use crate::events;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "the_stack_at_a_breakpoint_is_the_one_that_the_guest_s_own_trigger_writes",
        ids: &["TR07"],
        needs: Needs::Linux,
        run: |cx| stacks(cx, files::BZIMAGE_6_12, false),
    },
    Test {
        name: "the_stack_of_a_jump_is_the_one_that_the_guest_s_own_trigger_writes_in_6_12",
        ids: &["TR07"],
        needs: Needs::Linux,
        run: |cx| stacks(cx, files::BZIMAGE_6_12, true),
    },
    Test {
        name: "the_stack_of_a_jump_is_the_one_that_the_guest_s_own_trigger_writes_in_6_1",
        ids: &["TR07"],
        needs: Needs::Linux,
        run: |cx| stacks(cx, files::BZIMAGE_6_1, true),
    },
    Test {
        name: "the_stack_at_a_breakpoint_s_return_is_that_of_the_callers_of_its_entry",
        ids: &["TR07"],
        needs: Needs::Linux,
        run: |cx| at_returns(cx, false),
    },
    Test {
        name: "the_stack_at_a_jump_s_return_is_that_of_the_callers_of_its_entry",
        ids: &["TR07"],
        needs: Needs::Linux,
        run: |cx| at_returns(cx, true),
    },
    Test {
        name: "the_stack_in_an_interrupt_of_user_mode_ends_at_the_interrupt_s_entry",
        ids: &["TR07"],
        needs: Needs::Linux,
        run: in_user_mode,
    },
    Test {
        name: "an_interrupt_in_a_detour_has_the_stack_of_the_probed_instruction",
        ids: &["TR07"],
        needs: Needs::Linux,
        run: |cx| in_generated_code(cx, false),
    },
    Test {
        name: "an_interrupt_in_a_return_s_detour_has_the_stack_of_the_caller",
        ids: &["TR07"],
        needs: Needs::Linux,
        run: |cx| in_generated_code(cx, true),
    },
];

/// How often the guest opens and reads a file.
const CALLS: usize = 3;
/// Where both stacks are taken: deep in a system call, near its top, and in interrupts.
const PLACES: &[&str] = &[
    "vfs_open",
    "do_sys_openat2",
    "vfs_read",
    "update_process_times",
];
/// Places in a module and behind it: calls lead from the kernel through the module into the kernel.
const MODULE: &str = "tun";
const IN_MODULE: &[&str] = &["tun:tun_chr_open", "sk_alloc"];
/// The entry of the timer's interrupt: the functions behind it in a stack were interrupted.
const INTERRUPT: &str = "asm_sysvec_apic_timer_interrupt";
/// The least functions of a stack that is cut off.
const LEAST: usize = 5;
/// The most compared events of an interrupt, of those into the kernel and of those into user mode: there are many.
const MOST: usize = 5;
/// Stacks of interrupts that the guest writes: only a few in a row are of user mode.
const WRITTEN: usize = 30;
/// The most rounds of the guest's work until an interrupt has come into the kernel.
const ROUNDS: usize = 50;

/// The functions of a stack, the innermost first.
type Stack = Vec<String>;

fn stacks(cx: &Context, kernel: &'static str, jump: bool) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 1).await?;
        guest.client.set_optimization(VM, jump).await?;
        guest.work(&format!("load module={MODULE}")).await?;
        let places = [PLACES, IN_MODULE].concat();
        let ours = places.iter().enumerate();
        let ours = ours.map(|(index, place)| format!("p:s{index} {place} stack=40"));
        let ours: Vec<String> = ours.collect();
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let probes = guest
            .probes(&ours.iter().map(String::as_str).collect::<Vec<_>>())
            .await?;
        let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        if jump {
            for name in &names {
                jumps::jump(&guest, name).await?;
            }
        }
        let theirs = places.iter().enumerate();
        let theirs = theirs.map(|(index, place)| format!("p:mine/s{index},{place}"));
        let theirs: Vec<String> = theirs.collect();
        let triggers = places.iter().enumerate().map(|(index, place)| {
            let written = match *place {
                "update_process_times" => WRITTEN,
                _ => MOST,
            };
            format!("events/mine/s{index}/trigger=stacktrace:{written}")
        });
        let triggers: Vec<String> = triggers.collect();
        guest
            .work(&format!("define at={}", theirs.join(";")))
            .await?;
        guest
            .work(&format!("tracing at={}", triggers.join(";")))
            .await?;
        guest
            .work(&format!("threads syscall=tun count={CALLS}"))
            .await?;
        let mut symbols = Symbols::default();
        // The guest has written no stacks of hits before its triggers.
        let before = guest.client.list_probes(VM).await?;
        let before = before.iter().map(|probe| probe.hits).sum();
        let (mut all, lost) = events::next(&mut stream, before).await?;
        check_eq!(lost, 0, "lost events");
        for round in 0.. {
            check!(round < ROUNDS, "no interrupt has come into the kernel");
            guest.work(&format!("files count={CALLS}")).await?;
            let (events, lost) = events::next(&mut stream, 1).await?;
            check_eq!(lost, 0, "lost events");
            let mut leads_on = false;
            for event in &events {
                let (functions, _) = symbols.functions(&guest, &event.stack).await;
                leads_on |= into_kernel(&functions);
            }
            all.extend(events);
            if leads_on {
                break;
            }
        }
        let report = guest.work("trace").await?;
        let removed = guest.remove(&names).await?;
        let hits: u64 = removed.iter().map(|probe| probe.hits).sum();
        let left = hits - all.len() as u64;
        if left > 0 {
            let (events, lost) = events::next(&mut stream, left).await?;
            check_eq!(lost, 0, "lost events");
            all.extend(events);
        }

        let lines = report["lines"].as_array();
        let lines = lines.ok_or_else(|| wrong!("no lines in {report}"))?;
        let is_probed = |function: &String| places.iter().any(|place| function_of(place) == function);
        let theirs = written(lines.iter().filter_map(|line| line.as_str()), is_probed);
        let mut compared = 0;
        let mut deepest = 0;
        let mut through_module = 0;
        let mut through_interrupt = 0;
        for (probe, place) in probes.iter().zip(&places) {
            let in_module = IN_MODULE.contains(place);
            let place = function_of(place);
            let theirs = theirs.get(place).cloned().unwrap_or_default();
            check!(!theirs.is_empty(), "the guest wrote no stack of {place}");
            let of_probe = all.iter().filter(|event| event.probe_id == probe.id);
            let mut ours = Vec::new();
            for event in of_probe {
                let (functions, of_module) = symbols.functions(&guest, &event.stack).await;
                ours.push((functions, event.stack_incomplete));
                if in_module {
                    check!(of_module > 0, "no function of {MODULE}: {:?}", ours.last());
                    through_module += 1;
                }
            }
            let (of_kernel, others): (Vec<_>, Vec<_>) = theirs.iter().partition(|it| into_kernel(it));
            let compared_ones = of_kernel.iter().take(MOST).chain(others.iter().take(MOST));
            for theirs in compared_ones {
                // The guest's stack begins with its own tracing.
                let start = theirs.iter().position(|function| function == place);
                let start = start.ok_or_else(|| wrong!("{place} isn't in {theirs:?}"))?;
                let theirs = &theirs[start..];
                // A jump has copied a piece of the stack; in an interrupt, one of the interrupt's own stack and one of
                // the interrupted one. The length of a system call's stack is random for each call
                // (`add_random_kstack_offset`).
                let entry = theirs.iter().position(|function| function == INTERRUPT);
                let least = entry.map_or(LEAST, |entry| entry + 2);
                // If an interrupt came into a detour, the guest's own stack ends there.
                let is_in_detour = |ours: &Stack| {
                    entry == Some(theirs.len() - 1)
                        && ours.starts_with(theirs)
                        && ours.get(theirs.len()).is_some_and(is_probed)
                };
                let is_same = |(ours, is_cut): &(Stack, bool)| {
                    *ours == theirs && !is_cut
                        || jump && ours.len() >= least && (theirs.starts_with(ours) && *is_cut || is_in_detour(ours))
                };
                through_interrupt += usize::from(into_kernel(theirs));
                let is_one = ours.iter().any(is_same);
                let alike = ours.iter().filter(|(ours, _)| ours.get(..least) == theirs.get(..least));
                check!(is_one, "none of ours of {place} is {theirs:?}: {:?}", alike.collect::<BTreeSet<_>>());
                compared += 1;
                deepest = deepest.max(theirs.len());
            }
        }
        guest.finish().await?;
        check!(through_interrupt > 0, "no interrupt of the kernel");
        pass_with(format!(
            "{compared} stacks of up to {deepest} functions; {through_module} led through a module, \
             {through_interrupt} from an interrupt into the kernel"
        ))
    })
}

/// Returns true if a stack leads through an interrupt that came into the kernel.
fn into_kernel(functions: &[String]) -> bool {
    let entry = functions.iter().position(|function| function == INTERRUPT);
    entry.is_some_and(|entry| entry + 1 < functions.len())
}

/// Returns the function of a place, without its module.
fn function_of(place: &str) -> &str {
    place.rsplit(':').next().unwrap_or_default()
}

/// Compares stacks of a breakpoint and of a jump in the timer's interrupt, while the guest counts in user mode.
fn in_user_mode(cx: &Context) -> TestResult {
    const INTERRUPTS: usize = 20;
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 1).await?;
        let mut compared = 0;
        for jump in [false, true] {
            guest.client.set_optimization(VM, jump).await?;
            guest.say("workload=spin").await?;
            let mut stream = guest.client.events(VM, Vec::new()).await?;
            guest.probe("p:tick update_process_times stack=40").await?;
            if jump {
                jumps::jump(&guest, "tick").await?;
            }
            let mut symbols = Symbols::default();
            let mut of_user_mode = 0;
            while of_user_mode < INTERRUPTS {
                let (events, lost) = events::next(&mut stream, 1).await?;
                check_eq!(lost, 0, "lost events");
                for event in events {
                    let (functions, _) = symbols.functions(&guest, &event.stack).await;
                    if functions.last().is_some_and(|last| last == INTERRUPT) {
                        check!(
                            !event.stack_incomplete,
                            "callers are missing behind {functions:?}, jump: {jump}"
                        );
                        of_user_mode += 1;
                    }
                }
            }
            compared += of_user_mode;
            guest.say("").await?;
            guest.console.report("done").await?;
            guest.remove(&["tick"]).await?;
        }
        guest.finish().await?;
        pass_with(format!("{compared} stacks"))
    })
}

/// Checks the stacks of a jump in the timer's interrupt, while the guest spends most of its time in the generated code
/// of another jump. That code copies memory, and its filter then lets nothing be recorded.
fn in_generated_code(cx: &Context, at_return: bool) -> TestResult {
    const FUNCTION: &str = "__x64_sys_getppid";
    const VALUES: &str = "a=+0($stack):x64[16] b=+8($stack):u64 if b == 1";
    const INTERRUPTS: usize = 10;
    const ROUNDS: usize = 100;
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 1).await?;
        guest.client.set_optimization(VM, true).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.probe(&format!("p:where {FUNCTION} stack=40")).await?;
        jumps::jump(&guest, "where").await?;
        guest.work("threads syscall=getppid count=1").await?;
        let (events, _) = events::next(&mut stream, 1).await?;
        guest.remove(&["where"]).await?;
        check!(!events[0].stack_incomplete, "callers are missing");
        let expected = &events[0].stack[usize::from(at_return)..];

        let kind = if at_return { "r" } else { "p" };
        let texts = [
            &*format!("{kind}:inside {FUNCTION} {VALUES}"),
            "p:tick update_process_times stack=40",
        ];
        guest.probes(&texts).await?;
        for name in ["inside", "tick"] {
            jumps::jump(&guest, name).await?;
        }
        let mut symbols = Symbols::default();
        let (mut inside, mut whole, mut read) = (0, 0, 0);
        for _ in 0..ROUNDS {
            guest.work("threads syscall=getppid count=20000").await?;
            let ticks = guest.listed("tick").await?.hits;
            let (events, lost) = events::next(&mut stream, ticks - read).await?;
            check_eq!(lost, 0, "lost events");
            read = ticks;
            for event in events {
                let (functions, _) = symbols.functions(&guest, &event.stack).await;
                let entry = functions.iter().position(|function| function == INTERRUPT);
                let behind = entry.map_or(0, |entry| entry + 1);
                check!(
                    !event.stack_incomplete || behind < functions.len(),
                    "callers are missing behind {functions:?}"
                );
                let came = &event.stack[behind..];
                if came.first() == expected.first() {
                    // The copied piece may end in the random gap with which a system call's stack begins.
                    let is_cut = event.stack_incomplete && expected.starts_with(came);
                    check!(
                        is_cut || came == expected,
                        "behind the interrupt is {came:x?}, not {expected:x?}"
                    );
                    inside += 1;
                    whole += usize::from(!is_cut);
                }
            }
            if whole >= INTERRUPTS {
                break;
            }
        }
        check!(
            whole >= INTERRUPTS,
            "{whole} whole stacks of {inside} interrupts in generated code"
        );
        guest.finish().await?;
        pass_with(format!(
            "{inside} of {read} interrupts came into generated code; {whole} of their stacks are whole"
        ))
    })
}

/// Checks that a return's stack begins with the first caller, whose own callers have not changed since the entry.
fn at_returns(cx: &Context, jump: bool) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 1).await?;
        guest.client.set_optimization(VM, jump).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let texts = ["p:in vfs_open stack=40", "r:out vfs_open stack=40"];
        let probes = guest.probes(&texts).await?;
        let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        if jump {
            for name in &names {
                jumps::jump(&guest, name).await?;
            }
        }
        guest.work(&format!("files count={CALLS}")).await?;
        let removed = guest.remove(&names).await?;
        let hits = removed.iter().map(|probe| probe.hits).sum();
        let (all, lost) = events::next(&mut stream, hits).await?;
        check_eq!(lost, 0, "lost events");
        let of = |probe: &Probe| -> Vec<&Event> {
            let mine = all.iter().filter(|event| event.probe_id == probe.id);
            mine.collect()
        };
        let (entries, returns) = (of(&probes[0]), of(&probes[1]));
        check!(returns.len() >= CALLS, "returns: {}", returns.len());
        check_eq!(entries.len(), returns.len(), "entries and returns");
        let mut deepest = 0;
        for (entry, back) in entries.into_iter().zip(returns) {
            let callers = entry.stack.get(1..).unwrap_or_default();
            check!(
                back.stack.len() >= LEAST,
                "a return's stack: {:x?}",
                back.stack
            );
            // A jump has copied a piece of each.
            let as_deep = back.stack.len().min(callers.len());
            let is_whole = !entry.stack_incomplete && !back.stack_incomplete;
            check!(
                back.stack[..as_deep] == callers[..as_deep]
                    && (!is_whole || back.stack.len() == callers.len()),
                "the callers at the entry are {callers:x?}, at the return {:x?}",
                back.stack
            );
            check!(jump || is_whole, "a breakpoint's stack is incomplete");
            deepest = deepest.max(back.stack.len());
        }
        guest.finish().await?;
        pass_with(format!("stacks of up to {deepest} callers"))
    })
}

/// Finds the functions that addresses are in. Each address is asked for once, as an interrupt has the same ones again
/// and again.
#[derive(Default)]
pub(super) struct Symbols {
    known: BTreeMap<u64, Symbol>,
}

/// The function that an address is in.
#[derive(Clone)]
struct Symbol {
    name: String,
    in_module: bool,
}

impl Symbols {
    /// Returns the functions of the addresses themselves, as the guest's trace does (`seq_print_ip_sym` in
    /// `kernel/trace/trace_output.c`): an address behind an interrupt's entry may be a function's first. Also returns
    /// how many of them are in [`MODULE`].
    pub(super) async fn functions(&mut self, guest: &Guest, stack: &[u64]) -> (Stack, usize) {
        let mut functions = Vec::new();
        let mut of_module = 0;
        for address in stack {
            let symbol = match self.known.get(address) {
                Some(symbol) => symbol.clone(),
                None => {
                    let symbol = symbol(guest, *address).await;
                    self.known.insert(*address, symbol.clone());
                    symbol
                }
            };
            of_module += usize::from(symbol.in_module);
            functions.push(symbol.name);
        }
        (functions, of_module)
    }
}

/// The trampolines of the guest's own tracing have no symbol.
async fn symbol(guest: &Guest, address: u64) -> Symbol {
    let found = guest.client.locate(VM, address).await.ok();
    Symbol {
        in_module: found.as_ref().is_some_and(|found| found.module == MODULE),
        name: found
            .and_then(|found| Some(found.symbol?.name))
            .unwrap_or_else(|| format!("{address:#x}")),
    }
}

/// Returns the stacks in the lines of a trace, by the innermost function of each that has an event. An interrupt may
/// come between an event and its stack, so the line before a stack doesn't tell whose it is.
fn written<'a>(
    lines: impl Iterator<Item = &'a str>,
    is_probed: impl Fn(&String) -> bool,
) -> BTreeMap<String, Vec<Stack>> {
    let mut stacks: Vec<Stack> = Vec::new();
    for line in lines {
        if let Some(frame) = line.trim_start().strip_prefix("=> ") {
            let name = frame.split(['+', ' ']).next().unwrap_or_default();
            stacks
                .last_mut()
                .into_iter()
                .for_each(|stack| stack.push(name.to_owned()));
        } else if line.contains("<stack trace>") {
            stacks.push(Stack::new());
        }
    }
    let mut found: BTreeMap<String, Vec<Stack>> = BTreeMap::new();
    for stack in stacks {
        if let Some(place) = stack.iter().find(|function| is_probed(function)) {
            found.entry(place.clone()).or_default().push(stack);
        }
    }
    found
}
