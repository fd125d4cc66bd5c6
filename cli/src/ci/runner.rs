//! Running jobs, several at the same time, each again where it fails.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::artifacts::Artifacts;
use super::attempt;
use super::error::CiError;
use super::outcome::JobResult;
use super::plan::Job;
use super::progress::Progress;
use super::report::text;
use crate::cli::Ci;
use crate::failure::Failure;

/// Runs all jobs; the results are in the jobs' order.
///
/// # Errors
/// A file can't be written.
pub async fn run_all(asked: &Ci, jobs: Vec<Job>) -> Result<Vec<JobResult>, Failure> {
    let at_once = asked
        .jobs
        .map_or_else(|| default_jobs(&jobs), |it| it as usize);
    let places = Arc::new(Semaphore::new(at_once));
    let progress = Progress::new(jobs.len(), asked.quiet, asked.output);
    let mut running = JoinSet::new();
    for (number, job) in jobs.into_iter().enumerate() {
        let progress = Arc::clone(&progress);
        let artifacts = asked.artifacts.clone();
        // Jobs begin in their order. The semaphore is never closed.
        let place = Arc::clone(&places).acquire_owned().await;
        running.spawn(async move {
            let _place = place;
            let result = run_one(&job, artifacts.as_deref(), &progress).await?;
            for line in text::job(&result) {
                progress.line(&line);
            }
            Ok::<_, CiError>((number, result))
        });
    }
    let mut results = Vec::new();
    while let Some(joined) = running.join_next().await {
        match joined {
            Ok(result) => results.push(result?),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    results.sort_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Returns how many jobs the host has CPUs for, by the largest of the guests.
fn default_jobs(jobs: &[Job]) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let most = jobs.iter().map(Job::vcpus).max().unwrap_or(1).max(1);
    (cpus / most as usize).max(1)
}

async fn run_one(
    job: &Job,
    artifacts: Option<&std::path::Path>,
    progress: &Arc<Progress>,
) -> Result<JobResult, CiError> {
    let mut result = JobResult {
        name: job.name.clone(),
        attempts: Vec::new(),
    };
    for number in 0..=job.retries() {
        let artifacts = Artifacts::of(artifacts, &job.name, number)?;
        let shown = progress.job(&job.name);
        let attempt = attempt::run(job, &artifacts, &shown).await;
        shown.end();
        let passed = attempt.passed();
        result.attempts.push(attempt);
        if passed {
            break;
        }
    }
    Ok(result)
}
