//! The server's counts of calls and connections.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::Code;
use vmprobe_proto::v1;

use crate::described;

/// How long calls take, in seconds.
const SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// The name under which calls are counted that the server doesn't know.
const UNKNOWN: &str = "unknown";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: Arc<str>,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    method: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectionLabels {
    protocol: &'static str,
    transport: &'static str,
}

/// The counters. All clones share them.
#[derive(Debug)]
pub struct Counters {
    /// The names of calls by their paths.
    methods: HashMap<String, Arc<str>>,
    unknown: Arc<str>,
    calls: Family<CallLabels, Counter>,
    seconds: Family<MethodLabels, Histogram, fn() -> Histogram>,
    under_way: Family<KindLabels, Gauge>,
    connections: Family<ConnectionLabels, Gauge>,
    accepted: Family<ConnectionLabels, Counter>,
}

impl Counters {
    /// Makes counters that are zero.
    pub fn new() -> Arc<Self> {
        let sets = [
            v1::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        Arc::new(Self {
            methods: sets.into_iter().flat_map(methods).collect(),
            unknown: UNKNOWN.into(),
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            under_way: Family::default(),
            connections: Family::default(),
            accepted: Family::default(),
        })
    }

    /// Adds the counters to the metrics of a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "vmprobe_calls",
            "Calls of clients that are over, by how they ended",
            self.calls.clone(),
        );
        registry.register_with_unit(
            "vmprobe_call_duration",
            "How long calls took; streams and calls that wait for something aren't in it",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register(
            "vmprobe_calls_in_progress",
            "Calls under way; a stream is one that lasts until something happens or its client goes",
            self.under_way.clone(),
        );
        registry.register(
            "vmprobe_connections",
            "Connections of clients that there are",
            self.connections.clone(),
        );
        registry.register(
            "vmprobe_connections_accepted",
            "Connections of clients that there were so far",
            self.accepted.clone(),
        );
    }

    /// Returns a counter for connections of this protocol.
    pub fn connections(self: &Arc<Self>, protocol: &'static str) -> ConnectionCount {
        ConnectionCount {
            counters: Arc::clone(self),
            protocol,
        }
    }

    /// Counts that a call of this path begins.
    pub fn begin(&self, path: &str, lasts: bool) -> CountedCall {
        let method = self.methods.get(path).unwrap_or(&self.unknown);
        let kind = if lasts { "stream" } else { "call" };
        let under_way = self.under_way.get_or_create(&KindLabels { kind }).clone();
        under_way.inc();
        CountedCall {
            method: Arc::clone(method),
            under_way,
        }
    }

    /// Counts that a call has ended with this code, and how long it took if it isn't one that lasts.
    pub fn end(&self, call: &CountedCall, code: Code, time: Option<Duration>) {
        let method = &call.method;
        let labels = CallLabels {
            method: Arc::clone(method),
            code: name(code),
        };
        self.calls.get_or_create(&labels).inc();
        if let Some(time) = time {
            let labels = MethodLabels {
                method: Arc::clone(method),
            };
            let seconds = self.seconds.get_or_create(&labels);
            seconds.observe(time.as_secs_f64());
        }
    }
}

/// A call under way.
#[derive(Debug)]
pub struct CountedCall {
    method: Arc<str>,
    under_way: Gauge,
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.under_way.dec();
    }
}

/// Counts connections of one protocol.
#[derive(Clone, Debug)]
pub struct ConnectionCount {
    counters: Arc<Counters>,
    protocol: &'static str,
}

impl ConnectionCount {
    /// Counts a connection that has come by this transport.
    pub fn count(&self, transport: &'static str) -> CountedConnection {
        let labels = ConnectionLabels {
            protocol: self.protocol,
            transport,
        };
        self.counters.accepted.get_or_create(&labels).inc();
        let open = self.counters.connections.get_or_create(&labels).clone();
        open.inc();
        CountedConnection(open)
    }
}

/// An open connection.
#[derive(Debug)]
pub struct CountedConnection(Gauge);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Returns the paths and names of the calls in a descriptor set. The package `vmprobe.v1` is left out of the names.
fn methods(set: &[u8]) -> Vec<(String, Arc<str>)> {
    // The set is made by this program's build.
    let set = FileDescriptorSet::decode(set).unwrap_or_default();
    let named = described::calls(&set).map(|(path, _)| {
        let name = path.strip_prefix("/vmprobe.v1.").unwrap_or(&path[1..]);
        let name = name.into();
        (path, name)
    });
    named.collect()
}

/// Returns a code's name (google/rpc/code.proto).
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn told(counters: &Counters) -> String {
        let mut registry = Registry::default();
        counters.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn calls_are_counted_by_method_and_code_and_one_nobody_knows_makes_no_method_of_its_own() {
        let counters = Counters::new();
        let second = Some(Duration::from_secs(1));
        for (path, lasts, code, time) in [
            ("/vmprobe.v1.VmService/GetVm", false, Code::NotFound, second),
            ("/vmprobe.v1.VmService/WaitVm", true, Code::Ok, None),
            ("/grpc.health.v1.Health/Check", false, Code::Ok, second),
            ("/a.client/Invents/This", false, Code::Unimplemented, second),
        ] {
            let call = counters.begin(path, lasts);
            let kind = if lasts { "stream" } else { "call" };
            let under_way = format!("vmprobe_calls_in_progress{{kind=\"{kind}\"}} 1\n");
            assert!(told(&counters).contains(&under_way));
            counters.end(&call, code, time);
        }
        let told = told(&counters);
        for line in [
            "vmprobe_calls_total{method=\"VmService/GetVm\",code=\"NOT_FOUND\"} 1\n",
            "vmprobe_calls_total{method=\"VmService/WaitVm\",code=\"OK\"} 1\n",
            "vmprobe_calls_total{method=\"grpc.health.v1.Health/Check\",code=\"OK\"} 1\n",
            "vmprobe_calls_total{method=\"unknown\",code=\"UNIMPLEMENTED\"} 1\n",
            "vmprobe_calls_in_progress{kind=\"call\"} 0\n",
            "vmprobe_call_duration_seconds_sum{method=\"VmService/GetVm\"} 1.0\n",
        ] {
            assert!(told.contains(line), "{line}{told}");
        }
        assert!(!told.contains("_sum{method=\"VmService/WaitVm"), "{told}");
    }

    #[test]
    fn a_connection_is_counted_as_long_as_it_is_there() {
        let counters = Counters::new();
        let count = counters.connections("grpc");
        let first = count.count("tls");
        let second = count.count("tls");
        let labels = "{protocol=\"grpc\",transport=\"tls\"}";
        assert!(told(&counters).contains(&format!("vmprobe_connections{labels} 2\n")));
        drop((first, second));
        let told = told(&counters);
        assert!(told.contains(&format!("vmprobe_connections{labels} 0\n")));
        assert!(told.contains(&format!("vmprobe_connections_accepted_total{labels} 2\n")));
    }
}
