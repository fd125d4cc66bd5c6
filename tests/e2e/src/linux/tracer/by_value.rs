//! Arguments and results that are structures in registers, not pointers to structures.

use super::super::guest::{Guest, VM, files};
use super::super::jumps;
use super::modules::value;
use super::{by_event, text};
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "members_of_structures_that_registers_hold_are_what_a_process_passes_to_6_12",
        ids: &["TR02"],
        needs: Needs::Linux,
        run: |cx| by_value(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "members_of_structures_that_registers_hold_are_what_a_process_passes_to_6_1",
        ids: &["TR02"],
        needs: Needs::Linux,
        run: |cx| by_value(cx, files::BZIMAGE_6_1),
    },
];

const CALLS: usize = 5;
/// Other callers ask for users too, but only this process asks for one from 1000 on. `kuid_t` has one word; `sockptr_t`
/// has two, of which the second is a bit-field.
const PROBES: [&str; 3] = [
    "p:asked from_kuid_munged uid=kuid.val if uid >= 1000",
    "r:made make_kuid uid=$retval.val if uid >= 1000",
    "p:option sock_setsockopt user=optval.user kernel=optval.is_kernel",
];

fn by_value(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 1).await?;
        for jump in [false, true] {
            compare(&mut guest, jump).await?;
        }
        guest.finish().await?;
        pass_with(format!(
            "{CALLS} calls of {} functions as breakpoints and as jumps",
            PROBES.len()
        ))
    })
}

async fn compare(guest: &mut Guest, jump: bool) -> Result<(), Failure> {
    guest.client.set_optimization(VM, jump).await?;
    let mut stream = guest.client.events(VM, Vec::new()).await?;
    let probes = guest.probes(&PROBES).await?;
    let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
    if jump {
        for name in &names {
            jumps::jump(guest, name).await?;
        }
    }
    let told = guest.work(&format!("owned count={CALLS}")).await?;
    let removed = guest.remove(&names).await?;
    let hits = removed.iter().map(|probe| probe.hits).sum();
    let (all, lost) = events::next(&mut stream, hits).await?;
    check_eq!(lost, 0, "lost events");
    let ours = by_event(text(&removed, &all)?.lines());
    let values = |event: &str, name: &str| -> Vec<String> {
        let lines = ours.get(event).into_iter().flatten();
        lines.map(|line| value(line, name).to_owned()).collect()
    };
    let users = told["users"].as_array().cloned().unwrap_or_default();
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    check_eq!(users.len(), CALLS, "users of the file");
    check_eq!(values("asked", "uid"), users, "users asked for");
    check_eq!(
        values("made", "uid"),
        users,
        "users that the file was given to"
    );
    let option = told["option"].as_str().unwrap_or_default();
    check_eq!(
        values("option", "user"),
        [option; CALLS],
        "where the option is"
    );
    check_eq!(
        values("option", "kernel"),
        ["0"; CALLS],
        "whether the option is the kernel's"
    );
    Ok(())
}
