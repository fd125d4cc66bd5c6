//! Metrics in a scrape, compared with what the API reports of the same things.

use vmprobe_client::v1::ProbeOrder;

use super::{CALLED, VM, Watched, request};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const COUNTS: Test = Test {
    name: "metrics_tell_hits_exits_and_stops_as_the_api_does",
    ids: &["SV06"],
    needs: Needs::Tiny,
    run: counts,
};

pub const HANGS: Test = Test {
    name: "a_vm_whose_process_hangs_is_told_as_down_and_others_as_they_are",
    ids: &["SV06"],
    needs: Needs::Tiny,
    run: hangs,
};

/// The value of a sample, by all before it.
pub fn value(metrics: &str, sample: &str) -> Result<f64, Failure> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(sample));
    let value = line.and_then(|rest| rest.trim().parse().ok());
    value.ok_or_else(|| wrong!("there is no {sample} in\n{metrics}"))
}

fn counts(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut watched = Watched::held(cx).await?;
        let mut events = watched.client.events(VM, Vec::new()).await?;
        watched.client.start_vm(VM).await?;
        watched.call(37).await?;
        let hits =
            format!("vmprobe_probe_hits_total{{vm=\"{VM}\",probe=\"<b/id=\\\"x\\\">&\\\\\",id=");
        let of_probe = |metrics: &str| {
            let line = metrics.lines().find(|line| line.starts_with(&hits));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        };
        let metrics = watched.get("/metrics").await?;
        check_eq!(
            of_probe(&metrics),
            Some(37),
            "hits of the probe on {CALLED}"
        );
        // The VM is paused, so that both report the same.
        watched.client.pause_vm(VM).await?;
        let metrics = watched.get("/metrics").await?;
        let stats = watched.client.vm_stats(VM, 9, ProbeOrder::Rate, 9).await?;
        let vm = stats.vm.ok_or_else(|| wrong!("there is no VM"))?;
        let sums = stats.probe_sums.unwrap_or_default();
        check!(
            sums.hits > 37,
            "the busy function was called {} times",
            sums.hits
        );
        let exits = vm.exits.unwrap_or_default();
        let stops = vm.stops.unwrap_or_default();
        let labels = format!("{{vm=\"{VM}\"}} ");
        for (name, expected) in [
            ("vmprobe_hits_total", sums.hits as f64),
            ("vmprobe_probes", 2.0),
            ("vmprobe_vm_up", 1.0),
            ("vmprobe_stop_seconds_count", stops.count as f64),
            ("vmprobe_stop_seconds_sum", stops.ns as f64 * 1e-9),
            ("vmprobe_event_streams", 1.0),
            ("vmprobe_vm_memory_bytes", f64::from(64 << 20)),
        ] {
            let found = value(&metrics, &format!("{name}{labels}"))?;
            let is_same = (found - expected).abs() <= 1e-12;
            check!(is_same, "{name} is {found}, not {expected}");
        }
        for (reason, expected) in [("port-io", exits.port_io), ("breakpoint", exits.breakpoint)] {
            let sample = format!("vmprobe_exits_total{{vm=\"{VM}\",reason=\"{reason}\"}}");
            check_eq!(value(&metrics, &sample)?, expected as f64, "{sample}");
        }
        let paused = format!("vmprobe_vm_state{{vm=\"{VM}\",state=\"paused\"}}");
        check_eq!(value(&metrics, &paused)?, 1.0, "{paused}");
        // Each event was delivered, lost, or waits.
        let told = |name: &str| value(&metrics, &format!("{name}{labels}"));
        let all = told("vmprobe_events_delivered_total")?
            + told("vmprobe_events_lost_total")?
            + told("vmprobe_event_queue_length")?;
        check_eq!(all, sums.hits as f64, "events of the stream");
        let resident = told("vmprobe_vm_process_resident_memory_bytes")?;
        let is_more = resident > 1e6;
        check!(is_more, "the VM's process has {resident} bytes of memory");
        watched.client.kill_vm(VM).await?;
        while events.next().await?.is_some() {}
        let ended = format!("vmprobe_vm_state{{vm=\"{VM}\",state=\"ended\"}}");
        check_eq!(
            value(&watched.get("/metrics").await?, &ended)?,
            1.0,
            "{ended}"
        );
        pass()
    })
}

fn hangs(cx: &Context) -> TestResult {
    cx.block_on(async {
        let watched = Watched::start(cx).await?;
        watched.client.create_vm(request("other")?).await?;
        let up = async |vm: &str| {
            let metrics = watched.get("/metrics").await?;
            value(&metrics, &format!("vmprobe_vm_up{{vm=\"{vm}\"}}"))
        };
        check_eq!((up(VM).await?, up("other").await?), (1.0, 1.0), "up before");
        let process = watched.server.vm_process(VM)?;
        process.stop()?;
        let metrics = watched.get("/metrics").await?;
        let status = watched.get(&format!("/api/status?vm={VM}")).await?;
        process.signal(libc::SIGCONT)?;
        for (vm, expected) in [(VM, 0.0), ("other", 1.0)] {
            let sample = format!("vmprobe_vm_up{{vm=\"{vm}\"}}");
            check_eq!(value(&metrics, &sample)?, expected, "{sample} meanwhile");
        }
        check!(
            status.contains(&format!("\"name\":\"{VM}\",\"up\":false")),
            "{status}"
        );
        check_eq!(up(VM).await?, 1.0, "up afterwards");
        process.signal(libc::SIGKILL)?;
        // The end of the process is noticed as soon as its connection is closed.
        while up(VM).await? != 0.0 {}
        check_eq!(up("other").await?, 1.0, "the other VM");
        pass()
    })
}
