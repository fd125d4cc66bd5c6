//! Probes in modules, and in text that the kernel frees.

use vmprobe_client::v1::ProbeState;

use super::guest::{Config, Guest, VM, files, specs};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_probe_in_a_module_comes_and_goes_with_the_module_on_6_1",
        ids: &["KP19"],
        needs: Needs::Linux,
        run: |cx| module(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "a_probe_in_a_module_comes_and_goes_with_the_module_on_6_12",
        ids: &["KP19"],
        needs: Needs::Linux,
        run: |cx| module(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "probes_of_init_text_are_gone_when_it_is_freed_and_write_nothing_afterwards",
        ids: &["KP15"],
        needs: Needs::Linux,
        run: init_text,
    },
];

const OPENS: u64 = 5;
const ROUNDS: u64 = 2;

/// Checks state and hits of probes.
async fn are(guest: &Guest, expected: &[(&str, ProbeState, u64)]) -> Result<(), Failure> {
    for (name, state, hits) in expected {
        let probe = guest.listed(name).await?;
        check_eq!(probe.state(), *state, "state of {name}");
        check_eq!(probe.hits, *hits, "hits of {name}");
    }
    Ok(())
}

fn module(cx: &Context, kernel: &'static str) -> TestResult {
    use ProbeState::{Armed, Gone, Pending};

    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, kernel, 2).await?;
        // `tun_init` is the module's init text: hit only if armed before the module's code runs.
        let texts = [
            "open=tun:tun_chr_open",
            "r:closed tun:tun_chr_close",
            "init=tun:tun_init",
            "p:never no_such_module:function",
        ];
        let probes = guest.probes(&texts).await?;
        check!(
            probes.iter().all(|probe| probe.address == 0),
            "addresses before the module is loaded: {probes:?}"
        );
        are(
            &guest,
            &[
                ("open", Pending, 0),
                ("closed", Pending, 0),
                ("init", Pending, 0),
            ],
        )
        .await?;
        guest
            .say(&format!(
                "workload=module count={OPENS} rounds={ROUNDS} hold=yes"
            ))
            .await?;
        for round in 1..=ROUNDS {
            guest.console.report("loaded").await?;
            let before = (round - 1) * OPENS;
            are(
                &guest,
                &[
                    ("open", Armed, before),
                    ("closed", Armed, before),
                    ("init", Gone, round),
                ],
            )
            .await?;
            let open = guest.listed("open").await?;
            check_eq!(open.module, "tun", "module of the probe");
            guest.say("").await?;
            guest.console.report("used").await?;
            let after = round * OPENS;
            are(&guest, &[("open", Armed, after), ("closed", Armed, after)]).await?;
            guest.say("").await?;
            guest.console.report("unloaded").await?;
            are(
                &guest,
                &[
                    ("open", Gone, after),
                    ("closed", Gone, after),
                    ("init", Gone, round),
                ],
            )
            .await?;
            guest.say("").await?;
        }
        guest.console.report("done").await?;
        are(&guest, &[("never", Pending, 0)]).await?;
        guest.remove(&["open", "closed", "init", "never"]).await?;
        // Without probes it is loaded and unloaded as ever.
        guest.work("module count=1").await?;
        guest.finish().await?;
        pass()
    })
}

fn init_text(cx: &Context) -> TestResult {
    const INIT: [&str; 3] = ["start_kernel", "trap_init", "do_initcalls"];
    cx.block_on(async {
        let config = Config {
            vcpus: 2,
            probes: specs(&["start_kernel", "trap_init", "r:init trap_init", "vfs_read"])?,
            ..Config::new("workload=echo")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        let names: Vec<String> = guest
            .probes
            .iter()
            .map(|probe| probe.name.clone())
            .collect();
        let states: Vec<(ProbeState, u64)> = guest
            .client
            .list_probes(VM)
            .await?
            .iter()
            .take(3)
            .map(|probe| (probe.state(), probe.hits))
            .collect();
        // `start_kernel` never returns; it has no return probe here.
        check_eq!(
            states,
            [
                (ProbeState::Gone, 1),
                (ProbeState::Gone, 1),
                (ProbeState::Gone, 1)
            ],
            "state and hits of the probes of init text ({INIT:?})"
        );
        // What was freed is used by now: it must not change with probes that were there.
        guest.work("sweep count=1").await?;
        guest.client.disarm_probes(VM).await?;
        guest.client.arm_probes(VM).await?;
        let _may_be_refused = guest
            .client
            .disable_probes(VM, Vec::new(), names.clone())
            .await;
        let _may_be_refused = guest
            .client
            .enable_probes(VM, Vec::new(), names.clone())
            .await;
        guest.work("sweep count=1").await?;
        guest
            .client
            .unregister_probes(VM, Vec::new(), names)
            .await?;
        guest.work("sweep count=1").await?;
        guest.finish().await?;
        pass()
    })
}
