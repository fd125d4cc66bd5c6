//! What turns a jump into a breakpoint, and that the jump comes back when that is gone.

use vmprobe_client::v1::Probe;
use vmprobe_client::words;

use super::{BREAKPOINT, JUMP, first_byte, is_jump, jump, no_jump};
use crate::context::Context;
use crate::linux::code;
use crate::linux::guest::{Guest, VM, files};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_wish_that_a_jump_can_t_meet_makes_it_a_breakpoint_until_it_goes_away",
        ids: &["JP03"],
        needs: Needs::Linux,
        run: causes,
    },
    Test {
        name: "a_jump_that_is_switched_off_leaves_the_text_as_it_was_and_comes_back",
        ids: &["JP03"],
        needs: Needs::Linux,
        run: switches,
    },
];

const VCPUS: u32 = 2;
/// Calls on each vCPU at a time, and on all.
const CALLS: u64 = 50;
const ALL: u64 = CALLS * VCPUS as u64;
/// Bytes of a jump.
const JUMP_LEN: u64 = 5;

/// A system call, the function that it calls, and the address of an instruction inside the region
/// of a jump at the function's first instruction.
struct Subject {
    call: &'static str,
    function: String,
    inside: u64,
}

/// Returns the first of the system calls that has such an instruction.
async fn subject(guest: &Guest) -> Result<Subject, Failure> {
    for call in ["umask", "getpgid", "getuid", "getppid"] {
        let function = format!("__x64_sys_{call}");
        let probe = guest.probe(&format!("look={function}")).await?;
        let behind = probe.address + 1..probe.address + JUMP_LEN;
        guest.remove(&["look"]).await?;
        let instructions = code::straight(guest, &function).await?;
        let mut starts = instructions.iter().map(iced_x86::Instruction::ip);
        if let Some(inside) = starts.find(|ip| behind.contains(ip)) {
            return Ok(Subject {
                call,
                function,
                inside,
            });
        }
    }
    Err(wrong!("no system call begins with a short instruction"))
}

/// Has the guest make the calls, and checks that the probe has counted them all.
async fn call(guest: &mut Guest, call: &str, name: &str, hits: &mut u64) -> Result<(), Failure> {
    guest
        .work(&format!("threads syscall={call} count={CALLS}"))
        .await?;
    *hits += ALL;
    let probe = guest.listed(name).await?;
    check_eq!(
        (probe.hits, probe.missed),
        (*hits, 0),
        "hits and missed of {name}"
    );
    Ok(())
}

fn causes(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let Subject {
            call: system_call,
            function,
            inside,
        } = subject(&guest).await?;
        guest.probe(&format!("a={function}")).await?;
        let mut hits = 0;
        let mut reasons = Vec::new();
        for cause in [
            format!("p:x {function} post"),
            format!("p:x {function} fault"),
            format!("p:x {function} nojump"),
            format!("p:x {function} if=rdi==0"),
            format!("x={inside:#x}"),
        ] {
            let fast = jump(&guest, "a").await?;
            call(&mut guest, system_call, "a", &mut hits).await?;
            let now = guest.listed("a").await?;
            check_eq!(now.exits, fast.exits, "exits of a jump before {cause}");

            guest.probe(&cause).await?;
            let slow = no_jump(&guest, "a").await?;
            check_eq!(
                first_byte(&guest, &slow).await?,
                BREAKPOINT,
                "code with {cause}"
            );
            call(&mut guest, system_call, "a", &mut hits).await?;
            let told = slow.optimization.unwrap_or_default();
            reasons.push(words::no_jump(&told));
            guest.remove(&["x"]).await?;
        }
        let last = jump(&guest, "a").await?;
        call(&mut guest, system_call, "a", &mut hits).await?;
        check_eq!(guest.listed("a").await?.exits, last.exits, "exits at last");
        guest.finish().await?;
        pass_with(format!("{function}: {}", reasons.join(", ")))
    })
}

fn switches(cx: &Context) -> TestResult {
    const CALL: &str = "umask";
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let function = format!("__x64_sys_{CALL}");
        let start = guest.symbol(&function).await?;
        let text = guest.memory(start, 64).await?;
        let names = || vec!["a".to_owned()];
        let mut hits = 0;
        guest.probe(&format!("a={function}")).await?;

        let off = async |guest: &mut Guest, what: &str| -> Result<(), Failure> {
            let probe = guest.listed("a").await?;
            check!(!is_jump(&probe), "it is a jump though {what}");
            check!(
                guest.memory(start, 64).await? == text,
                "the text isn't as it was though the probe is {what}"
            );
            guest
                .work(&format!("threads syscall={CALL} count={CALLS}"))
                .await?;
            check_eq!(
                guest.listed("a").await?.hits,
                probe.hits,
                "hits when {what}"
            );
            Ok(())
        };
        let on = async |guest: &mut Guest, hits: &mut u64| -> Result<Probe, Failure> {
            let probe = jump(guest, "a").await?;
            check_eq!(first_byte(guest, &probe).await?, JUMP, "code of a jump");
            call(guest, CALL, "a", hits).await?;
            let now = guest.listed("a").await?;
            check_eq!(now.exits, probe.exits, "exits of a jump");
            Ok(now)
        };

        on(&mut guest, &mut hits).await?;
        guest.client.disable_probes(VM, Vec::new(), names()).await?;
        off(&mut guest, "disabled").await?;
        guest.client.enable_probes(VM, Vec::new(), names()).await?;
        on(&mut guest, &mut hits).await?;
        guest.client.disarm_probes(VM).await?;
        off(&mut guest, "disarmed").await?;
        guest.client.arm_probes(VM).await?;
        on(&mut guest, &mut hits).await?;

        let removed = guest.remove(&["a"]).await?;
        check_eq!(removed[0].hits, hits, "final hits");
        check!(
            guest.memory(start, 64).await? == text,
            "the text isn't as it was after the removal"
        );
        // The next probe there uses the same detour.
        guest.probe(&format!("a={function}")).await?;
        let mut again = 0;
        on(&mut guest, &mut again).await?;
        guest.finish().await?;
        pass_with(format!("{} hits", hits + again))
    })
}
