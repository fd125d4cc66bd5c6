//! Metrics in the formats of OpenMetrics 1.0 and of Prometheus.

mod server;
mod vms;

use std::fmt;

use http::HeaderMap;
use http::header::ACCEPT;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use vmprobe_proto::v1;

use super::Watch;
use super::look::{SeenVm, Wanted};
use super::usage::Usage;
use crate::access::Caller;
use crate::blocking::blocking;

pub use vms::STATES;

/// The type of what is told in the format of OpenMetrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What whoever takes that says.
const OPENMETRICS_NAME: &str = "application/openmetrics-text";

/// What a metric is called and means.
#[derive(Clone, Copy, Debug)]
struct Metric {
    /// Without the suffixes of its unit and type.
    name: &'static str,
    help: &'static str,
    unit: Option<MetricUnit>,
}

/// The units that there are.
#[derive(Clone, Copy, Debug)]
enum MetricUnit {
    Seconds,
    Bytes,
}

/// The labels of a sample.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Lengths that were counted by ranges.
#[derive(Debug)]
struct Lengths {
    seconds: f64,
    count: u64,
    /// The end of each range, and how many are in it.
    ranges: Vec<(f64, u64)>,
}

/// What is told of a look.
#[derive(Debug)]
struct Told {
    vms: Vec<SeenVm>,
    this: Option<Usage>,
}

impl Collector for Told {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Encoder(encoder);
        server::encode(&mut to, self)?;
        vms::encode(&mut to, &self.vms)
    }
}

/// The metrics of a caller's VMs and of the server, and the type of their format, which is one that the caller takes.
///
/// # Errors
/// Never in practice.
pub async fn tell(
    watch: &Watch,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<(&'static str, String), fmt::Error> {
    let wanted = Wanted {
        probes: watch.probes,
        order: v1::ProbeOrder::Registered,
        ..Wanted::NONE
    };
    let vms = watch.look(caller, |_| wanted).await;
    let this = blocking(|| Ok(Usage::of_this())).await.ok().flatten();
    let mut registry = Registry::default();
    watch.counters.register(&mut registry);
    registry.register_collector(Box::new(Told { vms, this }));
    let mut told = String::new();
    if takes_openmetrics(headers) {
        text::encode(&mut told, &registry)?;
        return Ok((OPENMETRICS, told));
    }
    prometheus_text::encode(&mut told, &registry)?;
    Ok((prometheus_text::CONTENT_TYPE, told))
}

fn takes_openmetrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let accepted = accepted.filter_map(|value| value.to_str().ok());
    let mut types = accepted.flat_map(|value| value.split(','));
    types.any(|kind| kind.trim().starts_with(OPENMETRICS_NAME))
}

/// Writes samples.
struct Encoder<'a>(DescriptorEncoder<'a>);

impl Encoder<'_> {
    /// A metric that goes up and down.
    fn gauge<'s>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (Labels<'s>, f64)>,
    ) -> fmt::Result {
        self.samples(metric, MetricType::Gauge, samples, |encoder, value| {
            encoder.encode_gauge(&value)
        })
    }

    /// A metric that only goes up.
    fn counter<'s>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (Labels<'s>, u64)>,
    ) -> fmt::Result {
        self.samples(metric, MetricType::Counter, samples, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// Seconds that only go up.
    fn seconds<'s>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (Labels<'s>, f64)>,
    ) -> fmt::Result {
        self.samples(metric, MetricType::Counter, samples, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// Lengths by ranges.
    fn histogram<'s>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (Labels<'s>, Lengths)>,
    ) -> fmt::Result {
        self.samples(metric, MetricType::Histogram, samples, |encoder, value| {
            encoder.encode_histogram::<NoLabelSet>(value.seconds, value.count, &value.ranges, None)
        })
    }

    fn samples<'s, T>(
        &mut self,
        metric: Metric,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels<'s>, T)>,
        encode: impl Fn(&mut prometheus_client::encoding::MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let Metric { name, help, unit } = metric;
        let unit = unit.map(|unit| match unit {
            MetricUnit::Seconds => Unit::Seconds,
            MetricUnit::Bytes => Unit::Bytes,
        });
        // As those that are registered have it.
        let help = format!("{help}.");
        let mut family = self.0.encode_descriptor(name, &help, unit.as_ref(), kind)?;
        for (labels, value) in samples {
            match labels.is_empty() {
                true => encode(&mut family, value)?,
                false => encode(&mut family.encode_family(&labels)?, value)?,
            }
        }
        Ok(())
    }
}

/// A metric without a unit.
const fn plain(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        help,
        unit: None,
    }
}

/// A metric in seconds.
const fn in_seconds(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        help,
        unit: Some(MetricUnit::Seconds),
    }
}

/// A metric in bytes.
const fn in_bytes(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        help,
        unit: Some(MetricUnit::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// As a Prometheus 2.42 asks.
    const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0,\
        application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

    #[test]
    fn openmetrics_is_for_those_who_name_it() {
        let takes = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            takes_openmetrics(&headers)
        };
        assert!(takes(PROMETHEUS));
        assert!(!takes("text/plain;version=0.0.4"));
        assert!(!takes("*/*"));
        assert!(!takes_openmetrics(&HeaderMap::new()));
    }

    pub(super) fn text_of(told: Vec<SeenVm>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Told {
            vms: told,
            this: Usage::of_this(),
        }));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_vm_s_metrics_are_its_own_and_guests_texts_are_escaped() {
        let vm = |name: &str| v1::Vm {
            name: name.into(),
            state: v1::VmState::Running.into(),
            kernel_version: "6.1 \"quoted\"\nline".into(),
            memory_mib: 64,
            exits: Some(v1::Exits {
                port_io: 7,
                ..Default::default()
            }),
            stops: Some(v1::Stops {
                count: 3,
                ns: 5_000,
                ..Default::default()
            }),
            ..Default::default()
        };
        let stats = v1::GetVmStatsResponse {
            stop_lengths: vec![1, 0, 2],
            probes: vec![v1::ProbeStats {
                id: 4,
                name: "a\\b".into(),
                hits: 9,
                ..Default::default()
            }],
            ..Default::default()
        };
        let seen = |vm, stats| SeenVm {
            vm,
            stats,
            usage: None,
        };
        let text = text_of(vec![seen(vm("a"), Some(stats)), seen(vm("b"), None)]);
        for line in [
            "# UNIT vmprobe_stop_seconds seconds\n",
            "# TYPE vmprobe_stop_seconds histogram\n",
            "vmprobe_vm_up{vm=\"a\"} 1.0\n",
            "vmprobe_vm_up{vm=\"b\"} 0.0\n",
            "vmprobe_exits_total{vm=\"a\",reason=\"port-io\"} 7\n",
            "vmprobe_stop_seconds_bucket{le=\"0.000001\",vm=\"a\"} 1\n",
            "vmprobe_stop_seconds_bucket{le=\"+Inf\",vm=\"a\"} 3\n",
            "vmprobe_stop_seconds_count{vm=\"a\"} 3\n",
            "vmprobe_probe_hits_total{vm=\"a\",probe=\"a\\\\b\",id=\"4\"} 9\n",
            "version=\"6.1 \\\"quoted\\\"\\nline\"",
            "vmprobe_vm_memory_bytes{vm=\"a\"} 67108864.0\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("vmprobe_stop_seconds_count{vm=\"b\"}"));
        assert!(text.ends_with("# EOF\n"));
    }
}
