//! Conversion of the metrics of `/metrics` to OpenTelemetry's form.
//!
//! It follows the specification ("Prometheus and `OpenMetrics` Compatibility"): names lose the suffixes of units and
//! counters, which a receiver that is a Prometheus adds again, units are those of UCUM, and ranges of histograms stay
//! the same. No metric is treated by its name here.

use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as told;
use vmprobe_otlp::proto::common::v1::KeyValue;
use vmprobe_otlp::proto::metrics::v1::metric::Data;
use vmprobe_otlp::proto::metrics::v1::number_data_point::Value;
use vmprobe_otlp::proto::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};
use vmprobe_otlp::{attribute, text};

use super::starts::{Series, Starts};

/// The most data points in a request. Each has some hundred bytes, and receivers take 4 MiB.
const POINTS: usize = 4096;

/// The metrics of one request.
#[derive(Debug, Default)]
pub struct Batch {
    pub metrics: Vec<Metric>,
    /// The number of data points of all metrics.
    pub points: u64,
}

/// Returns all samples, taken at `now`, as requests that aren't too large.
pub fn batches(families: &[told::MetricFamily], now: u64, starts: &mut Starts) -> Vec<Batch> {
    starts.begin(now);
    let mut batches = vec![Batch::default()];
    for family in families {
        let (numbers, histograms) = points(family, now, starts);
        let is_sum = family.r#type() == told::MetricType::Counter;
        let number = |points: Vec<NumberDataPoint>| match is_sum {
            true => Data::Sum(Sum {
                data_points: points,
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                is_monotonic: true,
            }),
            false => Data::Gauge(Gauge {
                data_points: points,
            }),
        };
        let histogram = |points: Vec<HistogramDataPoint>| {
            Data::Histogram(Histogram {
                data_points: points,
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
            })
        };
        add(&mut batches, family, numbers, number);
        add(&mut batches, family, histograms, histogram);
    }
    batches.retain(|batch| batch.points > 0);
    batches
}

/// Adds points to the last batch, and to new batches when it's full.
fn add<P>(
    batches: &mut Vec<Batch>,
    family: &told::MetricFamily,
    points: Vec<P>,
    data: impl Fn(Vec<P>) -> Data,
) {
    let mut points = points.into_iter().peekable();
    while points.peek().is_some() {
        let used = batches.last().map_or(POINTS, |batch| batch.points as usize);
        if used >= POINTS {
            batches.push(Batch::default());
        }
        let Some(batch) = batches.last_mut() else {
            return;
        };
        let some: Vec<P> = points
            .by_ref()
            .take(POINTS - batch.points as usize)
            .collect();
        batch.points += some.len() as u64;
        batch.metrics.push(Metric {
            name: name(family).to_owned(),
            description: family.help.clone(),
            unit: unit(&family.unit).to_owned(),
            data: Some(data(some)),
            ..Metric::default()
        });
    }
}

/// Returns a metric's name without the suffixes of a counter and of its unit.
fn name(family: &told::MetricFamily) -> &str {
    let name = &*family.name;
    let name = match family.r#type() {
        told::MetricType::Counter => name.strip_suffix("_total").unwrap_or(name),
        _ => name,
    };
    let without = name.strip_suffix(&*family.unit);
    let without = without.and_then(|it| it.strip_suffix('_'));
    without.unwrap_or(name)
}

/// Returns a unit's name in UCUM.
fn unit(name: &str) -> &str {
    match name {
        "seconds" => "s",
        "bytes" => "By",
        other => other,
    }
}

fn points(
    family: &told::MetricFamily,
    now: u64,
    starts: &mut Starts,
) -> (Vec<NumberDataPoint>, Vec<HistogramDataPoint>) {
    let (mut numbers, mut histograms) = (Vec::new(), Vec::new());
    for metric in &family.metric {
        let labels = metric.label.iter();
        let labels: Vec<_> = labels
            .map(|label| (label.name.clone(), label.value.clone()))
            .collect();
        let attributes = attributes(&labels);
        let series: Series = (family.name.clone(), labels);
        if let Some(counter) = &metric.counter {
            numbers.push(NumberDataPoint {
                attributes,
                start_time_unix_nano: starts.of(series, counter.value),
                time_unix_nano: now,
                value: Some(Value::AsDouble(counter.value)),
                ..NumberDataPoint::default()
            });
        } else if let Some(gauge) = &metric.gauge {
            numbers.push(NumberDataPoint {
                attributes,
                time_unix_nano: now,
                value: Some(Value::AsDouble(gauge.value)),
                ..NumberDataPoint::default()
            });
        } else if let Some(histogram) = &metric.histogram {
            let start = starts.of(series, histogram.sample_count as f64);
            histograms.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano: start,
                time_unix_nano: now,
                ..lengths(histogram)
            });
        }
    }
    (numbers, histograms)
}

fn attributes(labels: &[(String, String)]) -> Vec<KeyValue> {
    let labels = labels.iter();
    labels
        .map(|(name, value)| attribute(name.clone(), text(value.clone())))
        .collect()
}

/// Converts the ranges of a histogram. Prometheus' counts include all lower ranges, OpenTelemetry's don't. The last
/// range has no end.
fn lengths(told: &told::Histogram) -> HistogramDataPoint {
    let ends = told.bucket.iter();
    let ends = ends.filter(|range| range.upper_bound < f64::MAX);
    let up_to: Vec<u64> = ends.clone().map(|range| range.cumulative_count).collect();
    let before = [0].iter().chain(&up_to);
    let counts = up_to.iter().chain([&told.sample_count]);
    HistogramDataPoint {
        count: told.sample_count,
        sum: Some(told.sample_sum),
        bucket_counts: counts
            .zip(before)
            .map(|(count, before)| count.saturating_sub(*before))
            .collect(),
        explicit_bounds: ends.map(|range| range.upper_bound).collect(),
        ..HistogramDataPoint::default()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::prometheus_protobuf::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::histogram::Histogram as Lengths;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    #[test]
    fn a_histogram_keeps_its_ranges_its_sum_and_its_unit() {
        let lengths = Lengths::new([0.5, 1.0]);
        for seconds in [0.25, 0.75, 0.75, 7.0] {
            lengths.observe(seconds);
        }
        let mut registry = Registry::default();
        registry.register_with_unit("stop", "Stops", Unit::Seconds, lengths);
        let mut starts = Starts::new(1);
        let batches = batches(&encode(&registry).unwrap(), 2, &mut starts);
        let metric = &batches[0].metrics[0];
        assert_eq!((&*metric.name, &*metric.unit), ("stop", "s"));
        let Some(Data::Histogram(histogram)) = &metric.data else {
            panic!("{metric:?}");
        };
        let point = &histogram.data_points[0];
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!(point.explicit_bounds, [0.5, 1.0]);
        assert_eq!((point.count, point.sum), (4, Some(8.75)));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
        assert_eq!(histogram.aggregation_temporality, 2);
    }

    #[test]
    fn many_samples_are_divided_between_requests_and_none_is_left_out() {
        let family = Family::<Vec<(String, String)>, Counter>::default();
        let count = 2 * POINTS + 5;
        for number in 0..count {
            let labels = vec![("probe".to_owned(), number.to_string())];
            family.get_or_create(&labels).inc_by(number as u64);
        }
        let mut registry = Registry::default();
        registry.register("hits", "Hits", family);
        let batches = batches(&encode(&registry).unwrap(), 2, &mut Starts::new(1));
        assert_eq!(batches.len(), 3);
        let mut sum = 0;
        for batch in &batches {
            assert!(batch.points <= POINTS as u64);
            for metric in &batch.metrics {
                let Some(Data::Sum(of)) = &metric.data else {
                    panic!("{metric:?}");
                };
                assert!(of.is_monotonic && metric.name == "hits");
                for point in &of.data_points {
                    let Some(Value::AsDouble(value)) = point.value else {
                        panic!("{point:?}");
                    };
                    sum += value as usize;
                }
            }
        }
        assert_eq!(sum, count * (count - 1) / 2);
    }
}
