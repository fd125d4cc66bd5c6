//! Many jumps at once, and more records than fit.

use super::{is_jump, jump, settle};
use crate::context::Context;
use crate::events;
use crate::held_thread::HeldThread;
use crate::linux::guest::{Guest, VM, files, specs};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "1000_probes_become_jumps_in_one_stop",
        ids: &["JP05", "BN09"],
        needs: Needs::Linux,
        run: one_stop,
    },
    Test {
        name: "records_that_find_a_full_ring_are_counted_to_the_last",
        ids: &["JP07", "KP06"],
        needs: Needs::Linux,
        run: overflow,
    },
    Test {
        name: "a_lossless_jump_waits_where_the_ring_is_full_and_loses_nothing",
        ids: &["JP07"],
        needs: Needs::Linux,
        run: lossless,
    },
];

const VCPUS: u32 = 2;
/// The server's thread that reads the rings of this VM.
const READER: &str = "guest-rings";
/// Calls on each vCPU: one and a half times as many as a ring of 4 MiB has room for, at 160 bytes a record.
const TOO_MANY: u64 = 40_000;

fn one_stop(cx: &Context) -> TestResult {
    const SIZE: usize = 1000;
    const CALLS: u64 = 50;
    const FUNCTION: &str = "__x64_sys_umask";
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        guest.work("sweep count=1").await?;
        let mut names = Vec::new();
        for pattern in ["__x64_sys_*", "vfs_*", "tcp_*", "ext4_*", "__ia32_sys_*"] {
            let (symbols, _) = guest.client.lookup_symbols(VM, pattern, 0).await?;
            let text = symbols
                .into_iter()
                .filter(|symbol| symbol.kind.eq_ignore_ascii_case("t"));
            names.extend(text.map(|symbol| symbol.name));
        }
        names.sort_unstable();
        // A name that several functions have is refused.
        let single = names.chunk_by(|a, b| a == b).filter(|same| same.len() == 1);
        let names: Vec<String> = single.flatten().cloned().collect();
        // The probes of this search don't count below: without jumps they cause no stops later.
        guest.client.set_optimization(VM, false).await?;
        let mut good = crate::linux::whole::accepted(&guest, &names).await?;
        guest.client.set_optimization(VM, true).await?;
        check!(good.len() >= SIZE, "only {} functions can be probed", good.len());
        good.retain(|name| name != FUNCTION);
        good.truncate(SIZE - 1);
        good.push(FUNCTION.to_owned());
        let start = guest.symbol("_stext").await?;
        let length = (guest.symbol("_etext").await? - start) as usize;
        let text = guest.memory(start, length).await?;

        let told = async || {
            let vm = guest.client.get_vm(VM).await?;
            let kicks = vm.exits.map_or(0, |exits| exits.interrupted);
            let stops = vm.stops.map_or(0, |stops| stops.count);
            Ok::<_, Failure>((vm.optimizer.unwrap_or_default(), stops, kicks))
        };
        let (before, stops_before, kicks_before) = told().await?;
        let texts: Vec<&str> = good.iter().map(String::as_str).collect();
        let registered = guest.client.register_batch(VM, specs(&texts)?).await?;
        let settled = settle(&guest, &[]).await?;
        let (after, stops, kicks) = told().await?;
        let jumps = settled.probes.iter().filter(|probe| is_jump(probe)).count();
        check_eq!(after.batches - before.batches, 1, "batches");
        check_eq!(after.last_probes, jumps as u64, "probes of the batch");
        let stops = stops - stops_before;
        check_eq!(stops, 2, "stops: one for the registration, one for the jumps");
        // Leaves some room for repeated kicks.
        let kicks = kicks - kicks_before;
        check!(
            kicks <= 8 * u64::from(VCPUS),
            "{kicks} kicks of {VCPUS} vCPUs for two stops"
        );
        check!(after.last_stopped_ns > 0, "the stop has no length");
        check!(jumps * 100 >= SIZE * 95, "only {jumps} of {SIZE} probes are jumps");

        guest
            .work(&format!("threads syscall=umask count={CALLS}"))
            .await?;
        let listed = guest.client.list_probes(VM).await?;
        let umask = listed.iter().find(|probe| probe.symbol == FUNCTION);
        let hits = umask.map(|probe| probe.hits);
        check_eq!(hits, Some(CALLS * u64::from(VCPUS)), "hits of {FUNCTION}");
        guest.work("sweep count=1").await?;

        let ids = listed.iter().map(|probe| probe.id).collect();
        let removed = guest.client.unregister_batch(VM, ids, Vec::new()).await?;
        check!(
            guest.memory(start, length).await? == text,
            "the kernel's text isn't what it was"
        );
        guest.finish().await?;
        pass_with(format!(
            "{jumps} of {SIZE} probes became jumps in a stop of {} us; registered in {:?}, removed in \
             {:?}",
            after.last_stopped_ns / 1000,
            registered.stopped,
            removed.stopped
        ))
    })
}

fn overflow(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.probe("a=__x64_sys_umask").await?;
        jump(&guest, "a").await?;
        let request = format!("threads syscall=umask count={TOO_MANY}");
        let calls = TOO_MANY * u64::from(VCPUS);

        let held = HeldThread::asleep(guest.process()?.0, READER)?;
        guest.work(&request).await?;
        drop(held);
        let full = guest.listed("a").await?;
        check!(full.missed > 0, "nothing was missed: the rings weren't full");
        check_eq!(full.hits + full.missed, calls, "hits and missed hits");

        // The same with a client that reads events.
        guest.work(&request).await?;
        let last = guest.listed("a").await?;
        check_eq!(last.hits + last.missed, 2 * calls, "hits and missed hits in all");
        let (events, lost) = events::next(&mut stream, last.hits).await?;
        check_eq!(
            events.len() as u64 + lost,
            last.hits,
            "events, and those that this client lost"
        );
        guest.finish().await?;
        pass_with(format!(
            "{} of {calls} records were lost while nobody read the rings, {} of as many afterwards; \
             this client lost {lost}",
            full.missed,
            last.missed - full.missed
        ))
    })
}

fn lossless(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_1, VCPUS).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.probe("a=__x64_sys_umask lossless").await?;
        let before = jump(&guest, "a").await?;
        let calls = TOO_MANY * u64::from(VCPUS);

        let held = HeldThread::asleep(guest.process()?.0, READER)?;
        guest
            .work(&format!("threads syscall=umask count={TOO_MANY}"))
            .await?;
        drop(held);
        let after = guest.listed("a").await?;
        check_eq!(
            (after.hits, after.missed),
            (calls, 0),
            "hits and missed hits"
        );
        let waits = after.exits - before.exits;
        check!(
            waits > 0 && waits < calls / 100,
            "{waits} exits for rings that were full"
        );
        let (events, lost) = events::next(&mut stream, calls).await?;
        check_eq!(events.len() as u64 + lost, calls, "events");
        guest.finish().await?;
        pass_with(format!("{calls} records, {waits} waits for room"))
    })
}
