//! The arguments of `vmprobe ci-job`.

use std::path::PathBuf;

use clap::Args;

pub const CI_JOB_EXAMPLES: &str = "\
Examples:
  vmprobe ci-job matrix.toml --image registry.example.org/vmprobe:0.1 --files kernels --results reports | kubectl apply -f -
  kubectl wait --for=condition=complete --timeout=1h job/vmprobe-ci

Each job of the matrix is an index of the Job: a pod of its own runs `vmprobe ci` for it, and fails if it fails.
JUnit's reports are INDEX.xml in the claim of --results, beside a folder with each job's console and output.";

#[derive(Debug, Args)]
pub struct CiJob {
    /// A file of kernels and tests, as `vmprobe ci` takes it
    #[arg(value_name = "MATRIX")]
    pub matrix: PathBuf,
    /// The image with vmprobe in it
    #[arg(long, value_name = "IMAGE")]
    pub image: String,
    /// The Job's name
    #[arg(long, value_name = "NAME", default_value = "vmprobe-ci", value_parser = label)]
    pub name: String,
    /// The namespace; that of whoever applies it when left out
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub namespace: Option<String>,
    /// Pods at the same time; as many as there are jobs, when left out
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub parallelism: Option<u32>,
    /// A persistent volume claim with the kernels and roots; paths of the matrix count from its root
    #[arg(long, value_name = "CLAIM", value_parser = label)]
    pub files: Option<String>,
    /// A persistent volume claim for the reports; without one they are gone with the pods
    #[arg(long, value_name = "CLAIM", value_parser = label)]
    pub results: Option<String>,
    /// What a device plugin of the cluster calls /dev/kvm
    #[arg(
        long,
        value_name = "RESOURCE",
        default_value = "devices.kubevirt.io/kvm"
    )]
    pub device: String,
    /// The number of the group that /dev/kvm belongs to on the nodes, where not all may use it
    #[arg(long, value_name = "GID")]
    pub kvm_group: Option<u32>,
}

/// Checks a name as most objects have it (RFC 1123, 2.1).
fn label(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = text.len() <= 63
        && text.starts_with(fits)
        && text.ends_with(fits)
        && text.chars().all(|c| fits(c) || c == '-');
    match is_label {
        true => Ok(text.to_owned()),
        false => Err("a name has at most 63 lower-case letters, digits and `-`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_of_an_object() {
        for good in ["a", "ci-6-12", "0"] {
            assert!(label(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a b", &"a".repeat(64)] {
            assert!(label(bad).is_err(), "{bad}");
        }
    }
}
