//! Detours that follow any value in registers as a pointer: nothing that they find there may fault.

use super::super::guest::{Guest, VM, files};
use super::super::jumps;
use super::modules::value;
use super::{by_event, text};
use crate::context::Context;
use crate::events;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "jumps_that_follow_every_register_of_hundreds_of_functions_never_fault",
        ids: &["TR02", "TR10"],
        needs: Needs::Linux,
        run: follow,
    },
    Test {
        name: "a_jump_follows_pointers_to_every_kind_of_memory_and_to_none_without_a_fault",
        ids: &["TR02"],
        needs: Needs::Linux,
        run: hostile,
    },
];

/// Functions of all kinds, called with numbers, bad pointers, and pointers into all kinds of memory.
const FUNCTIONS: &[&str] = &[
    "vfs_*", "do_sys_*", "ksys_*", "*_fault", "copy_*", "mm_*", "unmap_*", "signal_*",
];
/// The values that each takes from its registers.
const VALUES: &str = "a=+0(%di):x64 b=+8(+0(%si)):x32 c=+0(%dx):string d=+u0(%si):ustring \
                      e=+0(+0(+8(%di))):x64 f=-16(%cx):x8[40] g=+u0(%r8):x64 h=+0(%ax):x64";
const VCPUS: u32 = 2;

fn follow(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, VCPUS).await?;
        let texts = FUNCTIONS
            .iter()
            .enumerate()
            .map(|(index, function)| format!("p:g{index} {function} {VALUES}"));
        let texts: Vec<String> = texts.collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let probes = guest.probes(&texts).await?;
        let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        let settled = jumps::settle(&guest, &names).await?.probes;
        let jumping = settled.iter().filter(|probe| jumps::is_jump(probe)).count();
        check!(
            jumping * 10 >= probes.len() * 9,
            "only {jumping} of {} probes are jumps",
            probes.len()
        );
        for workload in [
            "sweep count=2",
            "fault count=20",
            "forks count=10",
            "pages count=20",
        ] {
            guest.work(workload).await?;
        }
        let removed = guest
            .client
            .unregister_probes(
                VM,
                Vec::new(),
                names.iter().map(|name| (*name).to_owned()).collect(),
            )
            .await?;
        let hit = removed.iter().filter(|probe| probe.hits > 0).count();
        let hits: u64 = removed.iter().map(|probe| probe.hits).sum();
        check!(hit >= 50, "only {hit} functions were called");
        check_eq!(removed.len(), probes.len(), "removed probes");
        guest.finish().await?;
        pass_with(format!(
            "{jumping} of {} probes as jumps; {hits} hits of {hit} functions",
            probes.len()
        ))
    })
}

/// The memory behind the pointer that `getpgid` gets: RDI is at offset 112 of the registers that a system call saves
/// (`struct pt_regs`, `arch/x86/include/asm/ptrace.h`).
const HOSTILE: &str = "p:hostile __x64_sys_getpgid word=+0(+112(%di)):x64 text=+0(+112(%di)):string \
                       name=+u0(+112(%di)):ustring further=+0(+8(+112(%di))):x64 bytes=+0(+112(%di)):x8[32]";
/// Calls while the memory is mapped and unmapped.
const UNMAPPED: u64 = 20_000;

fn hostile(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, VCPUS).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.probe(HOSTILE).await?;
        jumps::jump(&guest, "hostile").await?;
        let report = guest.work("hostile").await?;
        let hits = guest.listed("hostile").await?.hits;
        let (all, lost) = events::next(&mut stream, hits).await?;
        check_eq!(lost, 0, "lost events");

        let probes = guest.client.list_probes(VM).await?;
        let told = by_event(text(&probes, &all)?.lines());
        let mut lines = told.get("hostile").map_or(&[][..], Vec::as_slice).iter();
        let word = format!("{:#x}", report["word"].as_u64().unwrap_or_default());
        let given = report["given"].as_array();
        let given = given.ok_or_else(|| wrong!("no pointers in {report}"))?;
        let mut kinds = Vec::new();
        for kind in given {
            let name = kind[0].as_str().unwrap_or_default();
            let count = kind[1].as_u64().unwrap_or_default();
            check!(count > 0, "no pointer is {name}");
            kinds.push(format!("{count} {name}"));
            for line in lines.by_ref().take(count as usize) {
                let expected = match name {
                    "mapped" | "secret" => Some(&*word),
                    "fixed" => None,
                    _ => Some("(fault)"),
                };
                let found = value(line, "word");
                check!(
                    expected.is_none_or(|expected| found == expected),
                    "a pointer that is {name} has something else than {expected:?}: {line}"
                );
            }
        }
        check_eq!(lines.len(), 0, "further events");

        guest.work(&format!("unmapped count={UNMAPPED}")).await?;
        let removed = guest.remove(&["hostile"]).await?;
        check_eq!(
            (removed[0].hits, removed[0].missed),
            (hits + UNMAPPED, 0),
            "hits and missed ones"
        );
        guest.finish().await?;
        pass_with(kinds.join(", "))
    })
}
