//! What probes do to a tiny guest. The guest's own result shows it.

use iced_x86::code_asm::{ptr, qword_ptr, r8, rax, rbx, rcx, rdi, rsi};
use vmprobe_client::spec::{self, actions};
use vmprobe_client::v1::{Action, Probe, VmState};

use super::image::{self, DATA};
use super::vm::{Tiny, VM, number};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "tiny_an_overridden_function_returns_the_value_each_time",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: |cx| changed(cx, "override 0x7", 7),
    },
    Test {
        name: "tiny_a_register_that_a_probe_sets_is_what_the_instruction_sees",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: |cx| changed(cx, "set rdi=0x64", 100 + ADDED),
    },
    Test {
        name: "tiny_memory_that_a_probe_writes_is_what_the_guest_reads",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: |cx| changed(cx, "write rsi+0x8=2a00000000000000", 0x2a),
    },
    Test {
        name: "tiny_a_register_that_a_probe_sets_is_what_a_locked_instruction_adds",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: |cx| prefixed(cx, "locked", "set rdi=0x64", [CALLS * 100, 0x0101]),
    },
    Test {
        name: "tiny_a_count_that_a_probe_sets_is_how_often_a_repeated_instruction_is_done",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: |cx| prefixed(cx, "repeated", "set rcx=5", [CALLS * GIVEN, 0x01_0101_0101]),
    },
    Test {
        name: "tiny_an_action_that_fails_is_counted_and_the_guest_goes_on",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: failing,
    },
    Test {
        name: "tiny_a_probe_pauses_the_vm_at_each_hit",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: pausing,
    },
    Test {
        name: "tiny_a_server_that_only_watches_changes_nothing",
        ids: &["KP20"],
        needs: Needs::Tiny,
        run: watching,
    },
];

/// Calls of the function.
pub const CALLS: u64 = 5;
/// What the function is called with.
pub const GIVEN: u64 = 2;
/// The number that it adds.
const ADDED: u64 = 3;

/// Builds a kernel that calls `func` some times and sends the sum of what it returned. `func` returns [`GIVEN`] plus
/// [`ADDED`], or the value in memory behind [`DATA`] once one has been written there.
pub fn kernel() -> Result<Vec<u8>, Failure> {
    let kernel = image::build(|a, names| {
        let mut func = a.create_label();
        let mut again = a.create_label();
        a.mov(rsi, DATA)?;
        a.xor(rbx, rbx)?;
        a.mov(r8, CALLS)?;
        a.set_label(&mut again)?;
        a.mov(rdi, GIVEN)?;
        a.call(func)?;
        a.add(rbx, rax)?;
        a.dec(r8)?;
        a.jnz(again)?;
        a.mov(rax, rbx)?;
        image::send_rax(a)?;
        image::power_off(a)?;
        a.set_label(&mut func)?;
        // An instruction can have only one label.
        a.nop()?;
        names.here(a, "func")?;
        a.lea(rax, ptr(rdi + ADDED as i32))?;
        names.here(a, "inside")?;
        // If a value has been written there, that is the result.
        let mut done = a.create_label();
        a.cmp(qword_ptr(rsi + 8), 0)?;
        a.je(done)?;
        a.mov(rax, ptr(rsi + 8))?;
        a.set_label(&mut done)?;
        a.ret()
    })?;
    Ok(kernel)
}

/// A guest of [`kernel`] on a server that lets clients change it.
pub async fn guest(cx: &Context) -> Result<Tiny, Failure> {
    changeable(cx, &kernel()?).await
}

async fn changeable(cx: &Context, kernel: &[u8]) -> Result<Tiny, Failure> {
    Tiny::new_with(cx, kernel, 64, |command| {
        command.arg("--allow-changes");
    })
    .await
}

/// Registers a probe at a place with these actions.
pub async fn act(guest: &Tiny, place: &str, actions: Vec<Action>) -> Result<Probe, Failure> {
    let mut spec = spec::parse(place).map_err(|error| wrong!("{error}"))?;
    spec.actions = actions;
    let mut probes = guest.client.register_probes(VM, vec![spec]).await?;
    Ok(probes.remove(0))
}

/// An action in the words of the command line.
pub fn action(text: &str) -> Result<Action, Failure> {
    let read = match text.split_once(' ') {
        Some(("set", rest)) => actions::set(rest),
        Some(("write", rest)) => actions::write(rest),
        Some(("override", rest)) => actions::override_return(rest),
        _ => Ok(actions::pause()),
    };
    read.map_err(|why| wrong!("{why}"))
}

/// Returns the sum that the guest sends.
pub async fn result(guest: &mut Tiny) -> Result<u64, Failure> {
    Ok(number(&guest.console.bytes(8).await?))
}

async fn only_probe(guest: &Tiny) -> Result<Probe, Failure> {
    let mut probes = guest.client.list_probes(VM).await?;
    check_eq!(probes.len(), 1, "probes");
    Ok(probes.remove(0))
}

/// Checks that with one action at the function, each call returns `expected`.
fn changed(cx: &Context, text: &str, expected: u64) -> TestResult {
    cx.block_on(async {
        let mut guest = guest(cx).await?;
        act(&guest, "func", vec![action(text)?]).await?;
        guest.start().await?;
        check_eq!(result(&mut guest).await?, CALLS * expected, "the sum");
        guest.power_off().await?;
        acted(&only_probe(&guest).await?)
    })
}

/// Checks that the probe has been hit, and has acted, at each call.
fn acted(probe: &Probe) -> TestResult {
    check_eq!(
        (probe.hits, probe.actions_done, probe.actions_failed),
        (CALLS, CALLS, 0),
        "hits, actions done and failed ({})",
        probe.action_failure
    );
    pass()
}

/// Builds a kernel that, a few times, adds [`GIVEN`] in memory by an instruction with `lock`, and sets some bytes to 1
/// by one with `rep`. It sends what is in memory.
fn prefixed_kernel() -> Result<Vec<u8>, Failure> {
    let kernel = image::build(|a, names| {
        let mut again = a.create_label();
        a.mov(rsi, DATA)?;
        a.mov(r8, CALLS)?;
        a.set_label(&mut again)?;
        a.mov(rax, 1_u64)?;
        a.lea(rdi, ptr(rsi + 64))?;
        a.mov(rcx, GIVEN)?;
        names.here(a, "repeated")?;
        a.rep().stosb()?;
        a.mov(rdi, GIVEN)?;
        names.here(a, "locked")?;
        a.lock().add(qword_ptr(rsi), rdi)?;
        a.dec(r8)?;
        a.jnz(again)?;
        a.mov(rax, qword_ptr(rsi))?;
        image::send_rax(a)?;
        a.mov(rax, qword_ptr(rsi + 64))?;
        image::send_rax(a)?;
        image::power_off(a)
    })?;
    Ok(kernel)
}

/// Checks that with one action at that instruction, memory has `expected`.
fn prefixed(cx: &Context, place: &str, text: &str, expected: [u64; 2]) -> TestResult {
    cx.block_on(async {
        let mut guest = changeable(cx, &prefixed_kernel()?).await?;
        act(&guest, place, vec![action(text)?]).await?;
        guest.start().await?;
        let found = [result(&mut guest).await?, result(&mut guest).await?];
        check_eq!(found, expected, "the sum, and the bytes that were set");
        guest.power_off().await?;
        acted(&only_probe(&guest).await?)
    })
}

fn failing(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = guest(cx).await?;
        let actions = ["write 0xffff800000000000=00", "set rip=0x8000000000000000"];
        let actions = actions.map(action).into_iter();
        act(&guest, "func", actions.collect::<Result<_, _>>()?).await?;
        guest.start().await?;
        check_eq!(
            result(&mut guest).await?,
            CALLS * (GIVEN + ADDED),
            "the sum of a guest that nothing was done to"
        );
        guest.power_off().await?;
        let probe = only_probe(&guest).await?;
        check_eq!(
            (probe.actions_done, probe.actions_failed),
            (0, 2 * CALLS),
            "actions done and failed"
        );
        let why = &probe.action_failure;
        check!(
            why.contains("0x8000000000000000"),
            "the last failure: {why}"
        );
        pass()
    })
}

fn pausing(cx: &Context) -> TestResult {
    cx.block_on(async {
        let kernel = kernel()?;
        // A pause needs no permission to change the guest.
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        act(&guest, "func", vec![action("pause")?]).await?;
        guest.start().await?;
        for hit in 1..=CALLS {
            while guest.client.get_vm(VM).await?.state() != VmState::Paused {
                tokio::task::yield_now().await;
            }
            check_eq!(only_probe(&guest).await?.hits, hit, "hits until this pause");
            guest.client.resume_vm(VM).await?;
        }
        check_eq!(
            result(&mut guest).await?,
            CALLS * (GIVEN + ADDED),
            "the sum of a guest that was only paused"
        );
        guest.power_off().await?;
        pass()
    })
}

fn watching(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel()?, 64).await?;
        for text in ["override 1", "set rdi=1", "write rsi=00"] {
            match act(&guest, "func", vec![action(text)?]).await {
                Err(error) if error.to_string().contains("--allow-changes") => {}
                other => return Err(wrong!("`{text}` on a server that only watches: {other:?}")),
            }
        }
        guest.start().await?;
        check_eq!(
            result(&mut guest).await?,
            CALLS * (GIVEN + ADDED),
            "the sum of a guest that nothing was done to"
        );
        guest.power_off().await?;
        pass()
    })
}
