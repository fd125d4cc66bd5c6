//! Detours that follow whatever is in registers: nothing that they find there may fault.

use super::super::guest::{Guest, VM, files};
use super::super::jumps;
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[Test {
    name: "jumps_that_follow_every_register_of_hundreds_of_functions_never_fault",
    ids: &["TR02", "TR10"],
    needs: Needs::Linux,
    run: follow,
}];

/// Functions of all kinds, called with numbers, bad pointers, and pointers into all kinds of memory.
const FUNCTIONS: &[&str] = &[
    "vfs_*", "do_sys_*", "ksys_*", "*_fault", "copy_*", "mm_*", "unmap_*", "signal_*",
];
/// What each takes of its registers.
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
