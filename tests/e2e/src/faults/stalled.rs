//! A client that reads nothing, beside one that reads 100,000 events a second.

use tempfile::TempDir;
use vmprobe_client::v1::ProbeOrder;

use super::load::{self, Follower};
use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const STALLED: Test = Test {
    name: "tiny_a_client_that_reads_nothing_loses_its_own_events_counted_and_no_other_s",
    ids: &["SV03"],
    needs: Needs::Tiny,
    run: stalled,
};

/// The VM.
const VM: &str = "loaded";
/// More events than the queue of a stream and all windows on the way to its client hold.
const EVENTS: u64 = 400_000;
/// What a full queue takes at most, in KiB, with what is on its way.
const QUEUE_KIB: u64 = 64 << 10;

fn stalled(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        let request = load::request(folder.path(), VM, &load::kernel()?)?;
        client.create_vm(request).await?;
        let (mut reads, rate) = Follower::under_load(&client, VM).await?;
        let process = server.vm_process(VM)?;
        let before = process.status("VmRSS")?;
        let sleeper = server.client().await?;
        client.pause_vm(VM).await?;
        let stream = sleeper.events(VM, Vec::new()).await?;
        let earlier: u64 = client.list_probes(VM).await?.iter().map(|it| it.hits).sum();
        let mut stalls = Follower::new(stream, reads.probes().to_vec());
        client.resume_vm(VM).await?;
        let until = reads.total() + EVENTS;
        while reads.total() < until {
            reads.next().await?;
        }
        let stats = client.vm_stats(VM, 0, ProbeOrder::Registered, 0).await?;
        let streams = stats.streams.unwrap_or_default().streams;
        check_eq!(streams.len(), 2, "streams");
        let lost = streams.iter().map(|stream| stream.lost).max().unwrap_or(0);
        check!(
            lost > 0,
            "whoever reads nothing has lost nothing: {streams:?}"
        );
        let after = process.status("VmRSS")?;
        check!(
            after < before + QUEUE_KIB,
            "{before} KiB of memory have become {after}"
        );
        // Reads all events up to the last one before the probes were removed.
        let ids: Vec<u64> = reads.probes().iter().map(|probe| probe.id).collect();
        let removed = client.unregister_probes(VM, ids, Vec::new()).await?;
        let hits: u64 = removed.iter().map(|probe| probe.hits).sum();
        while reads.total() < hits {
            reads.next().await?;
        }
        check_eq!(reads.total(), hits, "events and losses of whoever reads");
        // Each loss is reported at its place in the stream.
        while stalls.total() < hits - earlier {
            stalls.next().await?;
        }
        check_eq!(
            stalls.total(),
            hits - earlier,
            "events and losses of whoever doesn't"
        );
        check!(
            stalls.lost >= lost,
            "{} lost, {lost} told before",
            stalls.lost
        );
        stalls.is_whole()?;
        pass_with(format!(
            "{rate:.0} events a second; {} lost by whoever reads, {} by whoever doesn't",
            reads.lost, stalls.lost
        ))
    })
}
