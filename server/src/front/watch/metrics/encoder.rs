//! Writing samples as text.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// A metric's name and meaning.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name without the suffixes of its unit and type.
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
pub type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A histogram of lengths of time.
#[derive(Debug)]
pub struct Lengths {
    pub seconds: f64,
    pub count: u64,
    /// The end of each range, and how many lengths are in it.
    pub ranges: Vec<(f64, u64)>,
}

/// Writes samples.
pub struct Encoder<'a>(pub DescriptorEncoder<'a>);

impl Encoder<'_> {
    /// Writes a metric that goes up and down.
    pub fn gauge<'s>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (Labels<'s>, f64)>,
    ) -> fmt::Result {
        self.samples(metric, MetricType::Gauge, samples, |encoder, value| {
            encoder.encode_gauge(&value)
        })
    }

    /// Writes a metric that only goes up.
    pub fn counter<'s>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (Labels<'s>, u64)>,
    ) -> fmt::Result {
        self.samples(metric, MetricType::Counter, samples, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// Writes a metric in seconds that only goes up.
    pub fn seconds<'s>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (Labels<'s>, f64)>,
    ) -> fmt::Result {
        self.samples(metric, MetricType::Counter, samples, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// Writes a histogram of lengths.
    pub fn histogram<'s>(
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
        encode: impl Fn(&mut MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let Metric { name, help, unit } = metric;
        let unit = unit.map(|unit| match unit {
            MetricUnit::Seconds => Unit::Seconds,
            MetricUnit::Bytes => Unit::Bytes,
        });
        // Registered metrics have a full stop after their help, too.
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

/// Makes a metric without a unit.
pub const fn plain(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        help,
        unit: None,
    }
}

/// Makes a metric in seconds.
pub const fn in_seconds(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        help,
        unit: Some(MetricUnit::Seconds),
    }
}

/// Makes a metric in bytes.
pub const fn in_bytes(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        help,
        unit: Some(MetricUnit::Bytes),
    }
}
