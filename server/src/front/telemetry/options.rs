//! The options of sending metrics and logs.

use std::time::Duration;

use vmprobe_otlp::OtlpArgs;

use crate::front::sent::Signal;

/// The receiver of the server's metrics and log.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "OpenTelemetry")]
pub struct TelemetryOptions {
    /// The receiver.
    #[command(flatten)]
    pub receiver: OtlpArgs,
    /// What is sent: metrics, logs, or both
    #[arg(
        long,
        value_enum,
        value_name = "SIGNAL",
        env = "VMPROBED_OTLP_SIGNALS",
        value_delimiter = ',',
        default_value = "metrics,logs"
    )]
    pub otlp_signals: Vec<Signal>,
    /// How often metrics are sent
    #[arg(long, value_name = "MILLISECONDS", env = "OTEL_METRIC_EXPORT_INTERVAL", default_value_t = 60_000,
        value_parser = clap::value_parser!(u64).range(100..))]
    pub otlp_interval: u64,
}

impl TelemetryOptions {
    /// Returns true if something of this kind is sent.
    #[must_use]
    pub fn sends(&self, signal: Signal) -> bool {
        self.receiver.otlp.is_some() && self.otlp_signals.contains(&signal)
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_millis(self.otlp_interval)
    }
}
