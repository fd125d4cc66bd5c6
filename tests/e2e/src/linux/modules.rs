//! Probes in modules, and in text that the kernel frees.

use vmprobe_client::v1::{Event, Probe, ProbeState};

use super::guest::{Config, Guest, VM, files, specs};
use super::jumps;
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with};

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
        name: "probes_in_a_module_of_6_12_are_jumps_that_come_and_go_with_it",
        ids: &["KP19", "JP01"],
        needs: Needs::Linux,
        run: |cx| jumping(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "probes_in_a_module_of_6_1_are_jumps_that_come_and_go_with_it",
        ids: &["KP19", "JP01"],
        needs: Needs::Linux,
        run: |cx| jumping(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "a_module_with_jumps_is_unloaded_and_loaded_again_while_it_is_used",
        ids: &["KP19", "JP01"],
        needs: Needs::Linux,
        run: churn,
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

/// Checks states and hits of probes.
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
        // Without probes the module is loaded and unloaded as before.
        guest.work("module count=1").await?;
        guest.finish().await?;
        pass()
    })
}

/// The texts of probes in the module. Each of their places is passed once when the module's device is opened and
/// closed.
const IN_MODULE: [&str; 4] = [
    "open=tun:tun_chr_open",
    "r:opened tun:tun_chr_open",
    "close=tun:tun_chr_close",
    "r:closed tun:tun_chr_close",
];
const NAMES: [&str; 4] = ["open", "opened", "close", "closed"];

fn jumping(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 2).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let probes = guest.probes(&IN_MODULE).await?;
        guest
            .say(&format!(
                "workload=module count={OPENS} rounds={ROUNDS} hold=yes"
            ))
            .await?;
        let mut opened_files = 0;
        for round in 1..=ROUNDS {
            guest.console.report("loaded").await?;
            let mut before = Vec::new();
            for name in NAMES {
                let probe = jumps::jump(&guest, name).await?;
                let first = jumps::first_byte(&guest, &probe).await?;
                check_eq!(first, jumps::JUMP, "code at {name}");
                before.push(probe);
            }
            let exits = jumps::breakpoint_exits(&guest).await?;
            guest.say("").await?;
            guest.console.report("used").await?;
            let exits = jumps::breakpoint_exits(&guest).await? - exits;
            check!(
                exits < OPENS,
                "{exits} breakpoint exits of {OPENS} rounds of hits"
            );
            for (name, before) in NAMES.iter().zip(&before) {
                let now = guest.listed(name).await?;
                check!(jumps::is_jump(&now), "{name} is no jump any more: {now:?}");
                check_eq!(now.hits, round * OPENS, "hits of {name}");
                check_eq!(
                    (now.missed, now.exits),
                    (0, before.exits),
                    "missed hits and exits of {name}"
                );
            }
            let all = OPENS * NAMES.len() as u64;
            let (events, lost) = events::next(&mut stream, all).await?;
            check_eq!(lost, 0, "lost events");
            opened_files += same_files(&events, &probes)?;
            guest.say("").await?;
            guest.console.report("unloaded").await?;
            for name in NAMES {
                are(&guest, &[(name, ProbeState::Gone, round * OPENS)]).await?;
            }
            guest.say("").await?;
        }
        guest.console.report("done").await?;
        guest.remove(&NAMES).await?;
        guest.work("module count=1").await?;
        guest.finish().await?;
        pass_with(format!("{opened_files} files opened and closed, no exit"))
    })
}

/// Checks that each file that was opened was closed, and that each call succeeded. Returns how many there were.
fn same_files(events: &[Event], probes: &[Probe]) -> Result<usize, Failure> {
    let of = |index: usize| {
        let id = probes[index].id;
        let of_probe = events.iter().filter(move |event| event.probe_id == id);
        of_probe.map(|event| event.registers.unwrap_or_default())
    };
    // `tun_chr_open(struct inode *, struct file *)`, and the same of `tun_chr_close`.
    let [opened, closed] = [0, 2].map(|index| of(index).map(|it| it.rsi).collect::<Vec<_>>());
    check_eq!(opened.len() as u64, OPENS, "events of open");
    check_eq!(closed, opened, "files that were closed");
    check!(
        opened.iter().all(|file| *file > 1 << 63),
        "no files: {opened:x?}"
    );
    for index in [1, 3] {
        let values: Vec<u32> = of(index).map(|it| it.rax as u32).collect();
        check_eq!(
            values,
            vec![0; OPENS as usize],
            "values of {}",
            NAMES[index]
        );
    }
    Ok(opened.len())
}

/// How often the module comes and goes, and how long it stays, in milliseconds.
const TIMES: u64 = 20;
const STAYS_MS: u64 = 150;

fn churn(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 2).await?;
        let mut texts = IN_MODULE.map(|text| format!("{text} count"));
        // The return probe is lossless, so that it reports each call.
        texts[1] = format!("{} lossless", IN_MODULE[1]);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        guest.probes(&texts).await?;
        let done = guest
            .work(&format!("churn rounds={TIMES} ms={STAYS_MS}"))
            .await?;
        let opens = done["opens"].as_u64().unwrap_or(0);
        let mut exits = 0;
        for name in NAMES {
            let probe = guest.listed(name).await?;
            check_eq!(probe.state(), ProbeState::Gone, "state of {name}");
            check_eq!(
                (probe.hits, probe.missed),
                (opens, 0),
                "hits of {name}, and missed ones"
            );
            exits += probe.exits - probe.trips;
        }
        let hits = opens * NAMES.len() as u64;
        check!(
            opens > TIMES && exits < hits / 2,
            "{exits} of {hits} hits cost an exit: there were hardly any jumps"
        );
        guest.remove(&NAMES).await?;
        guest.work("module count=1").await?;
        guest.finish().await?;
        pass_with(format!(
            "{TIMES} times, opened {opens} times, {exits} of {hits} hits cost an exit"
        ))
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
        // The freed memory is reused by now. It must not change although it had probes.
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
