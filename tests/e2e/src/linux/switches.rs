//! Several probes at one place, switched on and off, in batches.

use vmprobe_client::v1::ProbeState;

use super::guest::{Guest, VM, files, specs};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "probes_at_one_place_count_by_themselves_and_outlive_each_other",
        ids: &["KP05"],
        needs: Needs::Linux,
        run: same_place,
    },
    Test {
        name: "switched_off_probes_count_nothing_and_others_everything",
        ids: &["KP07"],
        needs: Needs::Linux,
        run: switches,
    },
    Test {
        name: "a_batch_of_1000_goes_in_whole_in_one_stop_or_not_at_all",
        ids: &["KP08", "BN09"],
        needs: Needs::Linux,
        run: batches,
    },
];

const FUNCTION: &str = "__x64_sys_umask";
/// Calls on each vCPU at a time.
const CALLS: u64 = 50;
const VCPUS: u32 = 2;
/// Calls on all vCPUs at a time.
const ALL: u64 = CALLS * VCPUS as u64;

async fn call(guest: &mut Guest) -> Result<(), Failure> {
    let done = guest
        .work(&format!("threads syscall=umask count={CALLS}"))
        .await?;
    check_eq!(done["calls"], ALL, "calls that the guest made");
    Ok(())
}

/// Checks the hits of probes, in units of [`ALL`].
async fn hits(guest: &Guest, expected: &[(&str, u64)]) -> Result<(), Failure> {
    for (name, times) in expected {
        let probe = guest.listed(name).await?;
        check_eq!(probe.hits, times * ALL, "hits of {name}");
        check_eq!(probe.missed, 0, "missed hits of {name}");
    }
    Ok(())
}

fn same_place(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let texts = [
            format!("one={FUNCTION}"),
            format!("two={FUNCTION}"),
            format!("p:post {FUNCTION} post"),
            format!("r:ret {FUNCTION}"),
        ];
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let probes = guest.probes(&texts).await?;
        check!(
            probes
                .iter()
                .all(|probe| probe.address == probes[0].address),
            "they are at several addresses: {probes:?}"
        );
        call(&mut guest).await?;
        hits(&guest, &[("one", 1), ("two", 1), ("post", 1), ("ret", 1)]).await?;
        guest.remove(&["one"]).await?;
        call(&mut guest).await?;
        hits(&guest, &[("two", 2), ("post", 2), ("ret", 2)]).await?;
        guest.remove(&["post"]).await?;
        guest.probe(&format!("late={FUNCTION}")).await?;
        call(&mut guest).await?;
        hits(&guest, &[("two", 3), ("ret", 3), ("late", 1)]).await?;
        guest.remove(&["ret", "two"]).await?;
        call(&mut guest).await?;
        hits(&guest, &[("late", 2)]).await?;
        let removed = guest.remove(&["late"]).await?;
        call(&mut guest).await?;
        check_eq!(removed[0].hits, 2 * ALL, "final hits of the last");
        guest.finish().await?;
        pass()
    })
}

fn switches(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let states = [ProbeState::Armed, ProbeState::Disabled];
        let state = async |guest: &Guest, expected: [ProbeState; 2]| {
            let list = guest.client.probe_list(VM).await?;
            for (name, expected) in ["a", "b"].into_iter().zip(expected) {
                let probe = list.probes.iter().find(|probe| probe.name == name);
                let state = probe.map(vmprobe_client::v1::Probe::state);
                check_eq!(state, Some(expected), "state of {name}");
            }
            Ok::<bool, Failure>(!list.armed)
        };
        let (a, b) = (format!("a={FUNCTION}"), format!("p:b {FUNCTION} disabled"));
        guest.probes(&[&a, &b]).await?;
        call(&mut guest).await?;
        hits(&guest, &[("a", 1), ("b", 0)]).await?;
        check!(!state(&guest, states).await?, "disarmed at first");

        guest
            .client
            .enable_probes(VM, Vec::new(), names(&["b"]))
            .await?;
        call(&mut guest).await?;
        hits(&guest, &[("a", 2), ("b", 1)]).await?;
        guest
            .client
            .disable_probes(VM, Vec::new(), names(&["a"]))
            .await?;
        call(&mut guest).await?;
        hits(&guest, &[("a", 2), ("b", 2)]).await?;
        let unknown = names(&["b", "no-such-probe"]);
        let refused = guest.client.disable_probes(VM, Vec::new(), unknown).await;
        check!(refused.is_err(), "an unknown probe was disabled");

        // Disarming leaves the states as they are, and they can be changed meanwhile.
        guest.client.disarm_probes(VM).await?;
        call(&mut guest).await?;
        hits(&guest, &[("a", 2), ("b", 2)]).await?;
        let changed = [ProbeState::Disabled, ProbeState::Armed];
        check!(state(&guest, changed).await?, "not disarmed");
        guest
            .client
            .enable_probes(VM, Vec::new(), names(&["a"]))
            .await?;
        guest.probe(&format!("c={FUNCTION}")).await?;
        call(&mut guest).await?;
        hits(&guest, &[("a", 2), ("b", 2), ("c", 0)]).await?;
        guest
            .client
            .disable_probes(VM, Vec::new(), names(&["b"]))
            .await?;
        guest.client.arm_probes(VM).await?;
        check!(!state(&guest, states).await?, "still disarmed");
        call(&mut guest).await?;
        hits(&guest, &[("a", 3), ("b", 2), ("c", 1)]).await?;
        // Doing it twice changes nothing.
        guest.client.arm_probes(VM).await?;
        guest
            .client
            .enable_probes(VM, Vec::new(), names(&["a", "c"]))
            .await?;
        call(&mut guest).await?;
        hits(&guest, &[("a", 4), ("b", 2), ("c", 2)]).await?;
        guest.finish().await?;
        pass()
    })
}

fn batches(cx: &Context) -> TestResult {
    const SIZE: usize = 1000;
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let (symbols, _) = guest.client.lookup_symbols(VM, "__x64_sys_*", 0).await?;
        let (others, _) = guest.client.lookup_symbols(VM, "__ia32_sys_*", 0).await?;
        let (vfs, _) = guest.client.lookup_symbols(VM, "vfs_*", 0).await?;
        let (tcp, _) = guest.client.lookup_symbols(VM, "tcp_*", 0).await?;
        let mut names: Vec<String> = [symbols, others, vfs, tcp]
            .into_iter()
            .flatten()
            .filter(|symbol| symbol.kind.eq_ignore_ascii_case("t"))
            .map(|symbol| symbol.name)
            .collect();
        names.sort_unstable();
        // A name that several functions have is refused, together with its whole batch.
        names = names
            .chunk_by(|a, b| a == b)
            .filter(|same| same.len() == 1)
            .flatten()
            .cloned()
            .collect();
        let mut good = super::whole::accepted(&guest, &names).await?;
        check!(
            good.len() >= SIZE,
            "only {} functions can be probed",
            good.len()
        );
        // One place of the batch is left for a bad probe.
        good.retain(|name| name != FUNCTION);
        good.truncate(SIZE - 2);
        good.push(FUNCTION.to_owned());

        let start = guest.symbol("_stext").await?;
        let length = (guest.symbol("_etext").await? - start) as usize;
        let before = guest.memory(start, length).await?;
        for bad in ["no_such_symbol_at_all", "0x1000"] {
            let mut texts: Vec<&str> = good.iter().map(String::as_str).collect();
            texts.insert(SIZE / 2, bad);
            let refused = guest.client.register_probes(VM, specs(&texts)?).await;
            let error = refused
                .err()
                .ok_or_else(|| wrong!("a batch with {bad} was accepted"))?;
            check!(
                error.to_string().contains(bad),
                "{bad} isn't named: {error}"
            );
            check_eq!(guest.client.list_probes(VM).await?.len(), 0, "probes left");
            check!(
                guest.memory(start, length).await? == before,
                "the refused batch changed the kernel's text"
            );
        }

        good.push("ksys_read".to_owned());
        let texts: Vec<&str> = good.iter().map(String::as_str).collect();
        // Otherwise jumps would follow, in a stop of their own.
        guest.client.set_optimization(VM, false).await?;
        let client = guest.client.clone();
        let told = async || {
            let vm = client.get_vm(VM).await?;
            let kicks = vm.exits.map_or(0, |exits| exits.interrupted);
            let stops = vm.stops.map_or(0, |stops| stops.count);
            Ok::<_, Failure>((stops, kicks))
        };
        let (stops_before, kicks_before) = told().await?;
        let batch = guest.client.register_batch(VM, specs(&texts)?).await?;
        let (stops_registered, kicks) = told().await?;
        check_eq!(stops_registered - stops_before, 1, "stops for one batch");
        let kicks = kicks - kicks_before;
        check_eq!(batch.probes.len(), good.len(), "probes registered");
        // Besides the stop itself, the two readings may have stopped the vCPUs.
        check!(
            kicks <= 4 * u64::from(VCPUS),
            "{kicks} kicks of {VCPUS} vCPUs for one batch"
        );
        call(&mut guest).await?;
        let listed = guest.client.list_probes(VM).await?;
        let umask = listed.iter().find(|probe| probe.symbol == FUNCTION);
        check_eq!(
            umask.map(|probe| probe.hits),
            Some(ALL),
            "hits of {FUNCTION}"
        );

        let mut ids: Vec<u64> = listed.iter().map(|probe| probe.id).collect();
        ids.push(u64::MAX);
        let refused = guest
            .client
            .unregister_probes(VM, ids.clone(), Vec::new())
            .await;
        check!(refused.is_err(), "an unknown probe was removed");
        check_eq!(
            guest.client.list_probes(VM).await?.len(),
            good.len(),
            "probes after a removal that was refused"
        );
        ids.pop();
        let (stops_before, _) = told().await?;
        let removed = guest.client.unregister_batch(VM, ids, Vec::new()).await?;
        let (stops_removed, _) = told().await?;
        check_eq!(stops_removed - stops_before, 1, "stops for one removal");
        check_eq!(removed.probes.len(), good.len(), "probes removed");
        check!(
            guest.memory(start, length).await? == before,
            "the kernel's text isn't what it was"
        );
        guest.finish().await?;
        pass_with(format!(
            "{} probes in {:?}, out in {:?}",
            good.len(),
            batch.stopped,
            removed.stopped
        ))
    })
}
