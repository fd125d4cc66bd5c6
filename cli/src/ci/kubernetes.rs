//! `vmprobe ci-job`: the jobs of a matrix as an indexed Job of Kubernetes
//! (<https://kubernetes.io/docs/concepts/workloads/controllers/job/>), one index for each.

use std::fs;

use serde_json::{Value, json};

use super::error::CiError;
use super::plan::{self, Job};
use super::settings::Settings;
use crate::cli::CiJob;

/// Where the pods have the matrix, the files that it names, and the reports.
const MATRIX: &str = "/etc/vmprobe-ci";
const FILES: &str = "/ci";
const RESULTS: &str = "/results";
/// The variable that the Job's controller sets.
const INDEX: &str = "$(JOB_COMPLETION_INDEX)";
/// The user of the image, which is no user of the nodes'.
const USER: u32 = 65532;
/// MiB that a pod needs beside its guest's memory: vmprobe, reports, and an unpacked kernel.
const OWN_MEMORY: u64 = 512;
/// What an object of Kubernetes can hold, less the little that is around the matrix.
const MOST_BYTES: usize = 1_000_000;

/// Makes the objects, as YAML.
///
/// # Errors
/// The matrix isn't good, or too large.
pub fn manifests(asked: &CiJob) -> Result<String, CiError> {
    let matrix = fs::read_to_string(&asked.matrix).map_err(|cause| CiError::Read {
        file: asked.matrix.clone(),
        cause,
    })?;
    if matrix.len() > MOST_BYTES {
        return Err(CiError::TooLarge {
            file: asked.matrix.clone(),
        });
    }
    let jobs = plan::of_matrix(Some(&asked.matrix), None, &[], &Settings::default())?;
    let documents = [config_map(asked, &matrix, &jobs), job(asked, &jobs)];
    let texts: Result<Vec<String>, _> = documents.iter().map(serde_saphyr::to_string).collect();
    let texts = texts.map_err(CiError::Manifest)?.into_iter();
    Ok(texts.map(|text| format!("---\n{text}")).collect())
}

fn metadata(asked: &CiJob) -> Value {
    let mut metadata = json!({
        "name": asked.name,
        "labels": { "app.kubernetes.io/name": "vmprobe-ci" },
    });
    if let Some(namespace) = &asked.namespace {
        metadata["namespace"] = namespace.as_str().into();
    }
    metadata
}

/// Makes the object with the matrix, and which index is which job.
fn config_map(asked: &CiJob, matrix: &str, jobs: &[Job]) -> Value {
    let numbered = jobs.iter().enumerate();
    let names: String = numbered
        .map(|(index, job)| format!("{index} {}\n", job.name))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(asked),
        "data": { "matrix.toml": matrix, "jobs.txt": names },
    })
}

fn job(asked: &CiJob, jobs: &[Job]) -> Value {
    let completions = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(asked),
        "spec": {
            "completionMode": "Indexed",
            "completions": completions,
            "parallelism": asked.parallelism.unwrap_or(completions).min(completions),
            // A job that fails says nothing of the others, and `retries` of the matrix are done in its pod.
            "backoffLimitPerIndex": 0,
            "podFailurePolicy": { "rules": [{
                // With this code, `vmprobe ci` has found the matrix wrong, and so will all other pods.
                "action": "FailJob",
                "onExitCodes": { "containerName": "ci", "operator": "In", "values": [2] },
            }] },
            "template": {
                "metadata": { "labels": { "app.kubernetes.io/name": "vmprobe-ci" } },
                "spec": pod(asked, jobs),
            },
        },
    })
}

fn pod(asked: &CiJob, jobs: &[Job]) -> Value {
    let claim = |name: &Option<String>, is_read_only: bool| match name {
        Some(name) => {
            json!({ "persistentVolumeClaim": { "claimName": name, "readOnly": is_read_only } })
        }
        None => json!({ "emptyDir": {} }),
    };
    let volume = |name: &str, mut source: Value| {
        source["name"] = name.into();
        source
    };
    let mut security = json!({
        "runAsNonRoot": true,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    if let Some(group) = asked.kvm_group {
        security["supplementalGroups"] = json!([group]);
    }
    json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": security,
        "containers": [container(asked, jobs)],
        "volumes": [
            volume("matrix", json!({ "configMap": { "name": asked.name } })),
            volume("files", claim(&asked.files, true)),
            volume("results", claim(&asked.results, false)),
            volume("tmp", json!({ "emptyDir": {} })),
        ],
    })
}

fn container(asked: &CiJob, jobs: &[Job]) -> Value {
    // All pods of a Job are alike, so each can have the largest guest.
    let memory = jobs.iter().map(Job::memory).max().unwrap_or_default();
    let vcpus = jobs.iter().map(Job::vcpus).max().unwrap_or_default();
    let memory = format!("{}Mi", memory.saturating_add(OWN_MEMORY));
    let mount = |name: &str, path: &str, is_read_only: bool| json!({ "name": name, "mountPath": path, "readOnly": is_read_only });
    json!({
        "name": "ci",
        "image": asked.image,
        "command": ["vmprobe", "ci", format!("{MATRIX}/matrix.toml")],
        "args": [
            "--paths-from", FILES,
            "--job-index", INDEX,
            "--junit", format!("{RESULTS}/{INDEX}.xml"),
            "--artifacts", RESULTS,
        ],
        "env": [{ "name": "VMPROBED_KERNEL_CACHE", "value": "/tmp/unpacked-kernels" }],
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "resources": {
            "requests": { "cpu": vcpus.to_string(), "memory": memory, (asked.device.as_str()): "1" },
            "limits": { "memory": memory, (asked.device.as_str()): "1" },
        },
        "volumeMounts": [
            mount("matrix", MATRIX, true),
            mount("files", FILES, asked.files.is_some()),
            mount("results", RESULTS, false),
            mount("tmp", "/tmp", false),
        ],
    })
}
