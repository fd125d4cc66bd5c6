//! Metrics in the formats of `OpenMetrics` 1.0 and of Prometheus.

mod encoder;
mod sending;
mod server;
mod vms;

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::ACCEPT;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::MetricFamily;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_protobuf, prometheus_text, text};
use prometheus_client::registry::Registry;
use vmprobe_proto::v1;

use super::Watch;
use super::look::{SeenVm, Wanted};
use super::usage::Usage;
use crate::access::{Account, Caller};
use crate::blocking::blocking;
use crate::front::sent::Counts;

use encoder::Encoder;
pub use vms::STATES;

/// The media type of the `OpenMetrics` format.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The name by which a client's `Accept` header asks for it.
const OPENMETRICS_NAME: &str = "application/openmetrics-text";

/// The state that metrics are made of.
#[derive(Debug)]
struct Told {
    vms: Vec<SeenVm>,
    this: Option<Usage>,
    sent: Arc<Counts>,
}

impl Collector for Told {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Encoder(encoder);
        server::encode(&mut to, self.vms.len(), self.this)?;
        sending::encode(&mut to, &self.sent)?;
        vms::encode(&mut to, &self.vms)
    }
}

/// Returns the metrics of a caller's VMs and of the server, and their media type, which is one that the caller accepts.
///
/// # Errors
/// Never in practice.
pub async fn tell(
    watch: &Watch,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<(&'static str, String), fmt::Error> {
    let registry = registry(watch, caller).await;
    let mut told = String::new();
    if takes_openmetrics(headers) {
        text::encode(&mut told, &registry)?;
        return Ok((OPENMETRICS, told));
    }
    prometheus_text::encode(&mut told, &registry)?;
    Ok((prometheus_text::CONTENT_TYPE, told))
}

impl Watch {
    /// Returns all samples of all VMs, as a caller that may see all VMs gets them.
    ///
    /// # Errors
    /// Never in practice.
    pub async fn samples(&self) -> Result<Vec<MetricFamily>, fmt::Error> {
        let this = Caller::unlisted("the server", Account::Anonymous);
        prometheus_protobuf::encode(&registry(self, &this).await)
    }
}

/// Makes a registry with the metrics of a caller's VMs and of the server.
async fn registry(watch: &Watch, caller: &Caller) -> Registry {
    let wanted = Wanted {
        probes: watch.probes,
        order: v1::ProbeOrder::Registered,
        ..Wanted::NONE
    };
    let vms = watch.look(caller, |_| wanted).await;
    let this = blocking(|| Ok(Usage::of_this())).await.ok().flatten();
    let mut registry = Registry::default();
    watch.counters.register(&mut registry);
    let sent = Arc::clone(&watch.sent);
    registry.register_collector(Box::new(Told { vms, this, sent }));
    registry
}

fn takes_openmetrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let accepted = accepted.filter_map(|value| value.to_str().ok());
    let mut types = accepted.flat_map(|value| value.split(','));
    types.any(|kind| kind.trim().starts_with(OPENMETRICS_NAME))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// The `Accept` header of Prometheus 2.42.
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
            sent: Counts::new(true, None),
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
