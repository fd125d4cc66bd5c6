//! A static key that flips inside a function whose instructions are probed.

use super::guest::{Guest, VM, files};
use super::jumps::{is_jump, settle};
use super::text::Text;
use super::whole::accepted;
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_static_key_flips_in_a_function_of_6_1_whose_instructions_are_all_probed",
        ids: &["KP12"],
        needs: Needs::Linux,
        run: |cx| flips(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "a_static_key_flips_in_a_function_of_6_12_whose_instructions_are_all_probed",
        ids: &["KP12"],
        needs: Needs::Linux,
        run: |cx| flips(cx, files::BZIMAGE_6_12),
    },
];

/// Its tracepoint is a static key in the function. Only this system call uses it in the guest.
const EVENT: &str = "timer/itimer_state";
const CALL: &str = "alarm";
const FUNCTION: &str = "do_setitimer";
const LONGEST: usize = 0x400;
const VCPUS: u32 = 4;

fn flips(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, VCPUS).await?;
        let start = guest.symbol(FUNCTION).await?;
        let once = format!("statickeys at={EVENT} syscall={CALL} count=5 rounds=1");
        guest.work(&once).await?;
        let text = Text::of(&guest).await?;

        // Finds the bytes of the function that the key changes.
        guest.say(&format!("workload={once} hold=yes")).await?;
        guest.console.report("on").await?;
        let on = guest.memory(text.start, text.bytes.len()).await?;
        let changed = text.changed(&on)?;
        let (mut flipped, mut labels) = (Vec::new(), 0);
        for (site, kind) in changed {
            let (owner, _) = guest.client.resolve_address(VM, site.start).await?;
            if owner.address == start {
                // The tracepoint is also a static call, behind the jump.
                labels += usize::from(kind == "jump-label");
                flipped.push(site.start);
            }
        }
        check!(labels > 0, "the key is in no text of {FUNCTION}");
        guest.say("").await?;
        guest.console.report("off").await?;
        guest.say("").await?;
        guest.console.report("done").await?;
        text.unchanged(&guest).await?;

        // Registers a probe on each instruction of the function that takes one.
        let code = super::code::decode(start, text.at(start, LONGEST));
        let mut places = Vec::new();
        for instruction in code {
            let (owner, _) = guest.client.resolve_address(VM, instruction.ip()).await?;
            if owner.address != start {
                break;
            }
            places.push(format!("{:#x}", instruction.ip()));
        }
        let places = accepted(&guest, &places).await?;
        let mut remarks = Vec::new();
        for jumps in [false, true] {
            guest.client.set_optimization(VM, jumps).await?;
            // As jumps, every third one, so that regions don't exclude each other.
            let some = places.iter().step_by(if jumps { 3 } else { 1 });
            let texts: Vec<String> = some.map(|place| format!("p {place} count")).collect();
            let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let entry = format!("entry={FUNCTION}");
            let ret = format!("r64:returns {FUNCTION}");
            texts.extend([&*entry, &*ret]);
            let probes = guest.probes(&texts).await?;
            let settled = settle(&guest, &[]).await?.probes;
            let made = settled.iter().filter(|probe| is_jump(probe)).count();
            check_eq!(made > 0, jumps, "whether there are jumps ({made})");
            let done = guest
                .work(&format!(
                    "statickeys at={EVENT} syscall={CALL} count=20 rounds=10"
                ))
                .await?;
            let calls = done["calls"].as_u64().unwrap_or_default();
            check!(calls > 0, "no calls: {done}");
            for name in ["entry", "returns"] {
                let probe = guest.listed(name).await?;
                check_eq!(
                    (probe.hits, probe.missed),
                    (calls, 0),
                    "hits and missed hits of {name} while the key flips"
                );
            }
            let ids = probes.iter().map(|probe| probe.id).collect();
            let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
            let behind = removed.iter().find(|probe| {
                let after = flipped.iter().any(|site| probe.address > *site);
                after && probe.hits > 0 && probe.symbol == FUNCTION
            });
            let behind = behind.ok_or_else(|| wrong!("no probe behind the key was hit"))?;
            remarks.push(format!(
                "{calls} calls with {} probes, {made} of them jumps, `{}` behind the key hit {} times",
                removed.len(),
                behind.instruction,
                behind.hits
            ));
            let changes = text.unchanged(&guest).await?;
            check!(changes.is_empty(), "the key was left on: {changes:?}");
        }
        guest.finish().await?;
        pass_with(format!(
            "{} sites of {FUNCTION} flip; {}",
            flipped.len(),
            remarks.join("; ")
        ))
    })
}
