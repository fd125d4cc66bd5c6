//! What a job is made of: the matrix' defaults, the kernel's, the test's, and those of the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::cli::CiTest;

/// What a network has before the path of a socket.
const SOCKET: &str = "passt=";

/// See the module. A key that isn't given is none, or an empty list.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    /// The kernel's file.
    pub kernel: Option<PathBuf>,
    /// The names of the only kernels that a test is for; all where there are none.
    pub only: Vec<String>,
    pub root: Option<PathBuf>,
    pub run: Option<String>,
    #[serde(deserialize_with = "time")]
    pub timeout: Option<Duration>,
    pub retries: Option<u32>,
    pub rw: Vec<PathBuf>,
    pub modules: Option<PathBuf>,
    pub as_user: Option<bool>,
    pub chdir: Option<PathBuf>,
    pub env: Vec<String>,
    pub initramfs: Option<PathBuf>,
    pub append: Vec<String>,
    pub memory: Option<u64>,
    pub vcpus: Option<u32>,
    pub disk: Vec<String>,
    pub net: Vec<String>,
    pub probe: Vec<String>,
    pub expect: Vec<String>,
    pub expect_none: Vec<String>,
    pub max_latency: Vec<MaxLatency>,
    pub coverage: Vec<String>,
    pub allow: Vec<String>,
}

/// A function, and the longest time that a call of it is to take.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MaxLatency {
    pub probe: String,
    /// As people write it, such as `5ms`.
    pub time: String,
}

/// Reads a time as people write it: `90s`.
fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let time = humantime::parse_duration(&text);
    time.map(Some).map_err(serde::de::Error::custom)
}

impl Settings {
    /// Returns these with `more` on top: a value of `more` takes the place of one here, and its lists follow those
    /// here.
    #[must_use]
    pub fn with(&self, more: &Self) -> Self {
        fn last<T: Clone>(below: &Option<T>, above: &Option<T>) -> Option<T> {
            above.as_ref().or(below.as_ref()).cloned()
        }
        fn all<T: Clone>(below: &[T], above: &[T]) -> Vec<T> {
            [below, above].concat()
        }
        Self {
            kernel: last(&self.kernel, &more.kernel),
            only: all(&self.only, &more.only),
            root: last(&self.root, &more.root),
            run: last(&self.run, &more.run),
            timeout: last(&self.timeout, &more.timeout),
            retries: last(&self.retries, &more.retries),
            rw: all(&self.rw, &more.rw),
            modules: last(&self.modules, &more.modules),
            as_user: last(&self.as_user, &more.as_user),
            chdir: last(&self.chdir, &more.chdir),
            env: all(&self.env, &more.env),
            initramfs: last(&self.initramfs, &more.initramfs),
            append: all(&self.append, &more.append),
            memory: last(&self.memory, &more.memory),
            vcpus: last(&self.vcpus, &more.vcpus),
            disk: all(&self.disk, &more.disk),
            net: all(&self.net, &more.net),
            probe: all(&self.probe, &more.probe),
            expect: all(&self.expect, &more.expect),
            expect_none: all(&self.expect_none, &more.expect_none),
            max_latency: all(&self.max_latency, &more.max_latency),
            coverage: all(&self.coverage, &more.coverage),
            allow: all(&self.allow, &more.allow),
        }
    }

    /// Returns these with paths of the host's that count from `base`. A folder in the guest stays as it is.
    #[must_use]
    pub fn based_on(self, base: &Path) -> Self {
        let joined = |path: PathBuf| base.join(path);
        let text = |path: &str| base.join(path).to_string_lossy().into_owned();
        let network = |asked: String| match asked.strip_prefix(SOCKET) {
            Some(socket) => format!("{SOCKET}{}", text(socket)),
            None => asked,
        };
        Self {
            kernel: self.kernel.map(joined),
            root: self.root.map(joined),
            rw: self.rw.into_iter().map(joined).collect(),
            modules: self.modules.map(joined),
            initramfs: self.initramfs.map(joined),
            disk: self.disk.iter().map(|disk| text(disk)).collect(),
            net: self.net.into_iter().map(network).collect(),
            ..self
        }
    }
}

impl From<&CiTest> for Settings {
    fn from(given: &CiTest) -> Self {
        let pairs = given.max_latency.chunks_exact(2);
        Self {
            kernel: None,
            only: Vec::new(),
            root: given.root.clone(),
            run: given.run.clone(),
            timeout: given.timeout,
            retries: given.retries,
            rw: given.rw.clone(),
            modules: given.modules.clone(),
            as_user: given.as_user.then_some(true),
            chdir: given.chdir.clone(),
            env: given.env.clone(),
            initramfs: given.initramfs.clone(),
            append: given.append.clone(),
            memory: given.memory,
            vcpus: given.vcpus,
            disk: given.disk.clone(),
            net: given.net.clone(),
            probe: given.probe.clone(),
            expect: given.expect.clone(),
            expect_none: given.expect_none.clone(),
            max_latency: pairs
                .map(|pair| MaxLatency {
                    probe: pair[0].clone(),
                    time: pair[1].clone(),
                })
                .collect(),
            coverage: given.coverage.clone(),
            allow: given.allow.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_and_lists_go_on() {
        let below = Settings {
            memory: Some(1),
            vcpus: Some(2),
            env: vec!["A".to_owned()],
            ..Settings::default()
        };
        let above = Settings {
            memory: Some(3),
            env: vec!["B".to_owned()],
            ..Settings::default()
        };
        let both = below.with(&above);
        assert_eq!((both.memory, both.vcpus), (Some(3), Some(2)));
        assert_eq!(both.env, ["A", "B"]);
    }

    #[test]
    fn paths_count_from_the_matrix_and_the_guest_s_do_not() {
        let settings = Settings {
            root: Some("tree".into()),
            chdir: Some("work".into()),
            disk: vec!["a.qcow2,qcow2".to_owned(), "/b".to_owned()],
            net: ["passt", "passt=s,pps=1", "passt=/s", "tap=t"]
                .map(str::to_owned)
                .into(),
            ..Settings::default()
        };
        let based = settings.based_on(Path::new("/ci"));
        assert_eq!(based.root, Some("/ci/tree".into()));
        assert_eq!(based.chdir, Some("work".into()));
        assert_eq!(based.disk, ["/ci/a.qcow2,qcow2", "/b"]);
        let networks = ["passt", "passt=/ci/s,pps=1", "passt=/s", "tap=t"];
        assert_eq!(based.net, networks);
    }
}
