//! Probes that are registered before the guest's first instruction, and the kernel's own int3s.

use std::collections::BTreeMap;

use vmprobe_client::v1::ProbeState;

use super::guest::{Config, Guest, VM, files, specs};
use super::text::Text;
use super::whole;
use crate::context::Context;
use crate::events;
use crate::server::Server;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "probes_planted_before_the_first_instruction_see_the_boot_in_order",
        ids: &["KP17"],
        needs: Needs::Linux,
        run: early,
    },
    Test {
        name: "the_kernel_patches_its_text_at_boot_under_many_probes_as_without",
        ids: &["KP17"],
        needs: Needs::Linux,
        run: patched,
    },
    Test {
        name: "the_boot_self_test_of_6_1_gets_its_int3_with_probes_armed",
        ids: &["KP12"],
        needs: Needs::Linux,
        run: |cx| self_test(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "the_boot_self_test_of_6_12_gets_its_int3_with_probes_armed",
        ids: &["KP12"],
        needs: Needs::Linux,
        run: |cx| self_test(cx, files::BZIMAGE_6_12),
    },
];

/// Functions of the boot in their order. The first runs identity-mapped or soon after. All but the
/// last are init text.
const TIMELINE: [&str; 5] = [
    "x86_64_start_kernel",
    "start_kernel",
    "trap_init",
    "rest_init",
    "run_init_process",
];

fn early(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        let config = Config {
            probes: specs(&TIMELINE)?,
            ..Config::new("workload=none")
        };
        let request = vmprobe_client::v1::CreateVmRequest {
            hold: true,
            ..config.request(cx)
        };
        let (_, probes) = client.create_vm(request).await?;
        let mut stream = client.events(VM, Vec::new()).await?;
        client.start_vm(VM).await?;
        let events = events::all(&mut stream).await?;
        let name_of = |id| {
            let probe = probes.iter().find(|probe| probe.id == id);
            probe.map_or("?", |probe| probe.symbol.as_str())
        };
        let order: Vec<&str> = events.iter().map(|event| name_of(event.probe_id)).collect();
        check_eq!(order, TIMELINE, "the events of the boot");
        // The hits are many microseconds apart: more than the counters of the lab's CPUs differ.
        check!(
            events.is_sorted_by_key(|event| event.tsc),
            "their times don't grow: {events:?}"
        );
        for (event, probe) in events.iter().zip(&probes) {
            let rip = event.registers.map_or(0, |registers| registers.rip);
            check_eq!(rip, probe.address, "RIP of the event of {}", probe.name);
        }
        let ending = client.wait_vm(VM).await?;
        check_eq!(ending.exit_code, 0, "exit code of the guest: {ending:?}");
        let start_kernel = client.list_probes(VM).await?;
        let start_kernel = start_kernel
            .iter()
            .find(|probe| probe.symbol == "start_kernel");
        let start_kernel = start_kernel.ok_or_else(|| wrong!("start_kernel isn't listed"))?;
        check_eq!(start_kernel.hits, 1, "hits of start_kernel");
        check_eq!(
            start_kernel.state(),
            ProbeState::Gone,
            "its state after init text was freed"
        );
        pass()
    })
}

/// Functions that are probed during the whole boot, some of them init text.
const MANY: [&str; 6] = [
    "vfs_*",
    "sched_*",
    "kmem_*",
    "tcp_*",
    "__x64_sys_*",
    "init_*",
];

/// Boots once without and once with many probes, and compares the text after the kernel has patched
/// it: alternatives, paravirtual calls, static keys and calls, return thunks.
fn patched(cx: &Context) -> TestResult {
    cx.block_on(async {
        let without = Guest::ready(cx, files::BZIMAGE_6_1, 2).await?;
        let expected = Text::of(&without).await?;
        without.finish().await?;

        let config = Config {
            vcpus: 2,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::hold(cx, &config).await?;
        let mut names = BTreeMap::new();
        for pattern in MANY {
            let (symbols, _) = guest.client.lookup_symbols(VM, pattern, 0).await?;
            for symbol in symbols
                .into_iter()
                .filter(|it| it.kind.eq_ignore_ascii_case("t"))
            {
                *names.entry(symbol.name).or_insert(0) += 1;
            }
        }
        let names = names.into_iter().filter(|(_, count)| *count == 1);
        let names: Vec<String> = names.map(|(name, _)| name).collect();
        let names = whole::accepted(&guest, &names).await?;
        let texts: Vec<&str> = names.iter().map(String::as_str).collect();
        guest.probes(&texts).await?;
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        let probes = guest.client.list_probes(VM).await?;
        let ids = probes.iter().map(|probe| probe.id).collect();
        let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
        let by_kernel = expected.unchanged(&guest).await?;
        guest.finish().await?;
        let hit = removed.iter().filter(|probe| probe.hits > 0).count();
        let gone = probes
            .iter()
            .filter(|probe| probe.state() == ProbeState::Gone)
            .count();
        check!(hit > 50 && gone > 10, "{hit} hit, {gone} gone");
        pass_with(format!(
            "{} probes, {hit} hit, {gone} gone with init text; sites that are patched at any time and differ: \
             {by_kernel:?}",
            removed.len()
        ))
    })
}

/// `int3_selftest` (arch/x86/kernel/alternative.c) executes an int3 and BUGs unless its notifier
/// saw it at the right address. The notifier is called once, by the guest's own #BP handler, while
/// our breakpoints are armed.
fn self_test(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let probes = specs(&["int3_exception_notify", "start_kernel"])?;
        let config = Config {
            kernel,
            probes,
            ..Config::new("workload=files count=1")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("done").await?;
        // Lists the probes while the guest's kernel exists; the server keeps the counts in any
        // case.
        let name = guest
            .probes
            .first()
            .map(|probe| probe.name.clone())
            .unwrap_or_default();
        let notify = guest.listed(&name).await?;
        check_eq!(notify.hits, 1, "calls of the self-test's notifier");
        guest.power_off().await?;
        pass_with("the notifier ran once")
    })
}
