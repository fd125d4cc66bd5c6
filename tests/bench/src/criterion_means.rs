//! What criterion has measured: `estimates.json` of each benchmark of `benches/hits.rs`.

use std::path::Path;

use serde::Deserialize;

/// The group of the benchmarks.
pub const GROUP: &str = "hit";

#[derive(Deserialize)]
struct Estimates {
    mean: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// Returns the mean of a benchmark in nanoseconds; `None` if it has not run. `folder` is
/// criterion's.
pub fn read(folder: &Path, name: &str) -> Option<f64> {
    let file = folder.join(GROUP).join(name).join("new/estimates.json");
    let estimates: Estimates = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    Some(estimates.mean.point_estimate)
}
