//! Sending metrics.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{MissedTickBehavior, interval, timeout};
use vmprobe_otlp::proto::collector::metrics::v1::ExportMetricsServiceRequest;
use vmprobe_otlp::proto::common::v1::InstrumentationScope;
use vmprobe_otlp::proto::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use vmprobe_otlp::proto::resource::v1::Resource;
use vmprobe_otlp::{SendError, unix_nanos};

use super::convert::{self, Batch};
use super::receiver::Receiver;
use super::starts::Starts;
use super::task::{FLUSH, Stop};
use crate::front::watch::Watch;

/// Sends the metrics each time that `every` has passed, and a last time at the end.
pub async fn run(
    receiver: Receiver,
    resource: Resource,
    watch: Arc<Watch>,
    every: Duration,
    mut stop: Stop,
) {
    let mut metrics = Metrics {
        receiver,
        resource,
        watch,
        starts: Starts::new(unix_nanos(SystemTime::now())),
    };
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = &mut stop.stop => break,
            _ = ticks.tick() => {}
        }
        tokio::select! {
            _ = &mut stop.stop => break,
            () = metrics.send() => {}
        }
    }
    let _the_receiver_has_those_before = timeout(FLUSH, metrics.send()).await;
}

struct Metrics {
    receiver: Receiver,
    resource: Resource,
    watch: Arc<Watch>,
    starts: Starts,
}

impl Metrics {
    /// Sends the present metrics. If they aren't taken, they aren't sent again, as the next ones
    /// contain their sums.
    async fn send(&mut self) {
        let now = unix_nanos(SystemTime::now());
        // Writing to a string doesn't fail.
        let Ok(families) = self.watch.samples().await else {
            return;
        };
        for Batch { metrics, points } in convert::batches(&families, now, &mut self.starts) {
            let request = request(&self.resource, metrics);
            let sent = self.receiver.send(request, points, 0).await;
            if let Err(SendError::Away { .. }) = sent {
                self.receiver.give_up(points);
            }
        }
    }
}

fn request(resource: &Resource, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource.clone()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(InstrumentationScope {
                    name: "vmprobed".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    ..InstrumentationScope::default()
                }),
                metrics,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}
