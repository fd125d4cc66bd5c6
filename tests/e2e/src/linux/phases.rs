//! How long the parts of a long test take.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

/// The parts, in the order in which they began.
#[derive(Debug, Default)]
pub struct Phases(Vec<(&'static str, Duration)>);

impl Phases {
    /// Does some work, and adds its time to a part.
    pub async fn time<T>(&mut self, part: &'static str, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let result = work.await;
        let took = started.elapsed();
        match self.0.iter_mut().find(|(known, _)| *known == part) {
            Some((_, sum)) => *sum += took,
            None => self.0.push((part, took)),
        }
        result
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (part, took)) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{part} {} s", took.as_secs())?;
        }
        Ok(())
    }
}
