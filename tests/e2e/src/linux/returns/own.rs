//! Return probes at the function's own returns.

use vmprobe_client::v1::{Event, EventKind, Return, event};

use crate::context::Context;
use crate::events::next;
use crate::linux::guest::{Guest, VM, files};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_return_told_at_the_functions_own_rets_leaves_the_return_address_alone",
        ids: &["KP16"],
        needs: Needs::Linux,
        run: |cx| values(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "a_return_told_at_the_functions_own_rets_leaves_the_return_address_alone_on_6_12",
        ids: &["KP16"],
        needs: Needs::Linux,
        run: |cx| values(cx, files::BZIMAGE_6_12),
    },
];

const READERS: u64 = 8;
/// Longer than any function of the kernel that calls the probed ones.
const LONGEST: u64 = 0x1000;
/// A pattern of many functions.
const MANY: &str = "vfs_*";

fn values(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 2).await?;
        let caller = guest.symbol("vfs_read").await?;
        let probes = guest
            .probes(&["entry=pipe_read", "r64:own pipe_read rets"])
            .await?;
        check_eq!(probes[0].address, probes[1].address, "the listed address");
        let mut stream = guest.client.events(VM, Vec::new()).await?;

        // The calls are under way. Their return addresses are the guest's own, so the guest's live patching wouldn't
        // wait for them.
        let readers = format!("workload=readers count={READERS}");
        guest.say(&readers).await?;
        guest.console.report("blocked").await?;
        let (entries, _) = next(&mut stream, READERS).await?;
        let mut words = Vec::new();
        for entry in &entries {
            check_eq!(entry.kind(), EventKind::Pre, "kind of {entry:?}");
            let at = entry.registers.unwrap_or_default().rsp;
            let word = word(&guest, at).await?;
            check!(
                word.wrapping_sub(caller) < LONGEST,
                "the return address of a call under way is {word:#x}"
            );
            words.push((at, word));
        }
        let calls = guest.client.calls(VM).await?;
        check!(calls.is_empty(), "calls that hold patches up: {calls:?}");
        guest.say("go").await?;
        guest.console.report("done").await?;
        let (returns, _) = next(&mut stream, READERS).await?;
        for one in &returns {
            let call = Returned::new(one)?;
            let place = (call.entry_rsp(), call.detail.caller);
            check!(words.contains(&place), "it returned by {place:x?}: {one:?}");
        }

        // And the other kind on the same calls.
        guest.probe("r64:led pipe_read").await?;
        guest.remove(&["entry"]).await?;
        guest.say(&readers).await?;
        guest.console.report("blocked").await?;
        guest.say("go").await?;
        guest.console.report("done").await?;
        let (own, led) = (guest.listed("own").await?, guest.listed("led").await?);
        check_eq!((own.hits, own.missed), (2 * READERS, 0), "returns at rets");
        check_eq!((led.hits, led.missed), (READERS, 0), "returns by address");
        check_eq!(own.exits, 4 * READERS, "exits");
        let (both, _) = next(&mut stream, 2 * READERS).await?;
        let of = |id| both.iter().filter(move |event| event.probe_id == id);
        check_eq!(of(own.id).count() as u64, READERS, "events at rets");
        for one in of(own.id) {
            let one = Returned::new(one)?;
            let same = |other: &Returned<'_>| other.entry_rsp() == one.entry_rsp();
            let others: Result<Vec<_>, _> = of(led.id).map(Returned::new).collect();
            let other = others?.into_iter().find(same);
            let other = other.ok_or_else(|| wrong!("only one has {:?}", one.event))?;
            check_eq!(one.event.registers, other.event.registers, "registers");
            check_eq!(one.detail.entry, other.detail.entry, "registers at entry");
            check_eq!(one.detail.caller, other.detail.caller, "caller");
            // Both times are of the same two moments. The entries differ by one exit, and the returns are one exit
            // after the other.
            check!(
                one.detail.entry_tsc.abs_diff(other.detail.entry_tsc) < duration(&one) / 2
                    && one.event.tsc < other.event.tsc
                    && duration(&one).abs_diff(duration(&other)) < duration(&one) / 2,
                "one call took {} and {}",
                duration(&one),
                duration(&other)
            );
        }
        guest.remove(&["own", "led"]).await?;

        let (taken, refused) = many(&guest).await?;
        guest.work("files count=10").await?;
        let all = guest.client.list_probes(VM).await?;
        let (hits, ids): (Vec<u64>, Vec<u64>) = all.iter().map(|it| (it.hits, it.id)).unzip();
        let hits: u64 = hits.iter().sum();
        check!(hits > 0, "no return of {taken} functions");
        let missed = all.iter().filter(|probe| probe.missed != 0);
        let missed: Vec<_> = missed.map(|it| (&*it.symbol, it.missed)).collect();
        check!(missed.is_empty(), "calls whose end was not seen: {missed:?}");
        guest.client.unregister_probes(VM, ids, Vec::new()).await?;
        guest.finish().await?;
        pass_with(format!(
            "{READERS} calls by both; of {MANY} {taken} accepted, {hits} returns, refused: {refused:?}"
        ))
    })
}

/// Puts a probe on each of many functions. Returns how many take one, and why the others don't.
async fn many(guest: &Guest) -> Result<(usize, Vec<String>), Failure> {
    let (symbols, _) = guest.client.lookup_symbols(VM, MANY, 0).await?;
    let (mut taken, mut refused) = (0, Vec::new());
    for symbol in &symbols {
        match guest.probe(&format!("r {:#x} rets", symbol.address)).await {
            Ok(_) => taken += 1,
            Err(Failure::Client(error)) => refused.push(format!("{}: {error}", symbol.name)),
            Err(other) => return Err(other),
        }
    }
    check!(
        taken > 0,
        "none of {} is accepted: {refused:?}",
        symbols.len()
    );
    Ok((taken, refused))
}

async fn word(guest: &Guest, at: u64) -> Result<u64, Failure> {
    let bytes = guest.memory(at, 8).await?;
    let bytes = bytes.try_into().map_err(|_| wrong!("no word at {at:#x}"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// A return's event.
struct Returned<'a> {
    event: &'a Event,
    detail: Return,
}

impl<'a> Returned<'a> {
    fn new(event: &'a Event) -> Result<Self, Failure> {
        let Some(event::Detail::Return(detail)) = event.detail else {
            return Err(wrong!("no return: {event:?}"));
        };
        check!(!detail.tail_call, "a tail call: {event:?}");
        Ok(Self { event, detail })
    }

    fn entry_rsp(&self) -> u64 {
        self.detail.entry.unwrap_or_default().rsp
    }
}

/// The length of a call, by the guest's clock.
fn duration(call: &Returned<'_>) -> u64 {
    call.event.tsc.saturating_sub(call.detail.entry_tsc)
}
