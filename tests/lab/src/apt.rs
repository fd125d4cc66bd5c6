//! Fetching packages with apt, without touching the machine's own apt state: a configuration and
//! package lists of our own in the cache, for one Debian release. Apt checks the signatures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt_sources::{self, DEBIAN_KEYRING, Mirror};
use crate::cache::{self, CacheError, Lock};
use crate::progress::step;
use crate::tool::{self, ToolError};

/// Why a package can't be fetched.
#[derive(Debug, thiserror::Error)]
pub enum AptError {
    /// No Debian mirror in the machine's sources.
    #[error(
        "no Debian mirror found in /etc/apt/sources.list or /etc/apt/sources.list.d; \
         the lab takes its kernels and its emulators' sources from the mirror that this machine uses"
    )]
    NoMirror,
    /// The keys that packages are signed with are missing.
    #[error("the keyring {0} is missing; run deploy/setup.sh, which installs Debian's")]
    NoKeyring(String),
    /// The mirror can't be reached, or gives something else than a signed release.
    #[error("can't read Debian {release} from this machine's mirror {mirror}; is it reachable?")]
    Update {
        /// The release's code name.
        release: &'static str,
        /// The mirror.
        mirror: String,
        /// What apt said.
        source: ToolError,
    },
    /// A package can't be had.
    #[error("can't fetch {package} of Debian {release}")]
    Fetch {
        /// The package.
        package: String,
        /// The release's code name.
        release: &'static str,
        /// What apt said.
        source: ToolError,
    },
    /// What apt fetched isn't what it should be.
    #[error("{package} of Debian {release}: {problem}")]
    Unexpected {
        /// The package.
        package: String,
        /// The release's code name.
        release: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Package lists of one Debian release, locked for one user at a time.
#[derive(Debug)]
pub(crate) struct Release {
    name: &'static str,
    sources: PathBuf,
    options: Vec<String>,
    _lock: Lock,
}

impl Release {
    /// Reads the lists of the release with this code name from the machine's mirror.
    pub(crate) fn open(cache: &Path, name: &'static str) -> Result<Self, AptError> {
        let mirrors = apt_sources::read(Path::new("/etc/apt")).ok_or(AptError::NoMirror)?;
        let lock = cache::lock(cache, &format!("apt-{name}"))?;
        step(&format!("reading the package lists of Debian {name}"));
        let dir = cache.join("apt").join(name);
        for sub in ["lists/partial", "archives/partial"] {
            cache::make_dir(&dir.join(sub))?;
        }
        let mut sources = sources_of(&mirrors.main, name)?;
        if let Some(security) = &mirrors.security {
            sources += &sources_of(security, &format!("{name}-security"))?;
        }
        let list = dir.join("sources.list");
        cache::write(&list, sources.as_bytes())?;
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            "Dir::Etc::SourceParts=/dev/null".into(),
            format!("Dir::State::Lists={}/lists", dir.display()),
            format!("Dir::Cache={}", dir.display()),
            "APT::Architecture=amd64".into(),
            "APT::Default-Release=".into(),
            // The cache may be in a home folder that apt's own user can't enter.
            "APT::Sandbox::User=root".into(),
            "APT::Update::Error-Mode=any".into(),
            "Acquire::Retries=2".into(),
            "Acquire::Languages=none".into(),
        ];
        let release = Self {
            name,
            sources: list,
            options: options.into(),
            _lock: lock,
        };
        release
            .run(Command::new("apt-get").args(["update", "-q"]))
            .map_err(|source| AptError::Update {
                release: name,
                mirror: mirrors.main.uri,
                source,
            })?;
        Ok(release)
    }

    /// The list of its sources, as apt takes it.
    pub(crate) fn sources(&self) -> &Path {
        &self.sources
    }

    /// Fetches a source package into a folder and returns the path of its `.dsc`.
    pub(crate) fn source(&self, package: &str, into: &Path) -> Result<PathBuf, AptError> {
        let mut command = Command::new("apt-get");
        command
            .args(["source", "-q", "--download-only", package])
            .current_dir(into);
        self.run(&mut command)
            .map_err(|e| self.fetch_error(package, e))?;
        self.only_file(package, into, "dsc")
    }

    /// Fetches the upstream part of a source package, a packed archive, into a folder and returns its
    /// path.
    pub(crate) fn upstream_source(&self, package: &str, into: &Path) -> Result<PathBuf, AptError> {
        let mut command = Command::new("apt-get");
        command
            .args(["source", "-q", "--download-only", "--tar-only", package])
            .current_dir(into);
        self.run(&mut command)
            .map_err(|e| self.fetch_error(package, e))?;
        self.only_file(package, into, "xz")
    }

    /// Fetches the upstream part of the newest available version of a source package, as
    /// [`upstream_source`](Self::upstream_source) does. A mirror may list versions whose files it has dropped.
    pub(crate) fn any_upstream_source(
        &self,
        package: &str,
        into: &Path,
    ) -> Result<PathBuf, AptError> {
        let listed = self.run(Command::new("apt-cache").args(["madison", package]));
        let listed = listed.map_err(|e| self.fetch_error(package, e))?;
        let mut problem = None;
        for version in source_versions(&listed) {
            match self.upstream_source(&format!("{package}={version}"), into) {
                Ok(path) => return Ok(path),
                // The error about the newest version is the one that is reported.
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or_else(|| self.unexpected(package, "it has no source".into())))
    }

    /// Fetches a binary package into a folder and returns the path of its `.deb`.
    pub(crate) fn download(&self, package: &str, into: &Path) -> Result<PathBuf, AptError> {
        step(&format!("fetching {package}"));
        let mut command = Command::new("apt-get");
        command.args(["download", "-q", package]).current_dir(into);
        self.run(&mut command)
            .map_err(|e| self.fetch_error(package, e))?;
        self.only_file(package, into, "deb")
    }

    /// The first package whose name starts with `prefix` that `package` depends on, as it is in
    /// this release now.
    pub(crate) fn dependency(&self, package: &str, prefix: &str) -> Result<String, AptError> {
        let mut command = Command::new("apt-cache");
        command.args(["show", "--no-all-versions", package]);
        let text = self
            .run(&mut command)
            .map_err(|e| self.fetch_error(package, e))?;
        dependency_in(&text, prefix).ok_or_else(|| {
            self.unexpected(package, format!("it depends on no package {prefix}..."))
        })
    }

    /// An error about something fetched from here.
    pub(crate) fn unexpected(&self, package: &str, problem: String) -> AptError {
        AptError::Unexpected {
            package: package.into(),
            release: self.name,
            problem,
        }
    }

    fn run(&self, command: &mut Command) -> Result<String, ToolError> {
        for option in &self.options {
            command.args(["-o", option]);
        }
        tool::run(command.env("LC_ALL", "C"))
    }

    fn fetch_error(&self, package: &str, source: ToolError) -> AptError {
        AptError::Fetch {
            package: package.into(),
            release: self.name,
            source,
        }
    }

    fn only_file(&self, package: &str, dir: &Path, extension: &str) -> Result<PathBuf, AptError> {
        let entries = fs::read_dir(dir).map_err(|e| cache::io_error("read the folder", dir, e))?;
        let paths = entries.flatten().map(|entry| entry.path());
        let mut found = paths.filter(|path| path.extension().is_some_and(|e| e == extension));
        match (found.next(), found.next()) {
            (Some(path), None) => Ok(path),
            _ => Err(self.unexpected(package, format!("apt left not exactly one .{extension}"))),
        }
    }
}

fn sources_of(mirror: &Mirror, suite: &str) -> Result<String, AptError> {
    let Mirror { uri, keyring } = mirror;
    if !Path::new(keyring).exists() {
        return Err(AptError::NoKeyring(keyring.clone()));
    }
    // A machine's mirror may name a keyring of its own release only; Debian's package has all keyrings.
    let keyrings = match keyring.as_str() {
        DEBIAN_KEYRING => keyring.clone(),
        _ if Path::new(DEBIAN_KEYRING).exists() => format!("{keyring},{DEBIAN_KEYRING}"),
        _ => keyring.clone(),
    };
    let line = |kind| format!("{kind} [signed-by={keyrings}] {uri} {suite} main\n");
    Ok(line("deb") + &line("deb-src"))
}

/// The versions of a source package that `apt-cache madison` lists, newest first.
fn source_versions(listed: &str) -> Vec<&str> {
    let mut versions: Vec<_> = listed
        .lines()
        .filter(|line| line.trim_end().ends_with("Sources"))
        .filter_map(|line| line.split('|').nth(1))
        .map(str::trim)
        .collect();
    // By their numbers alone: they are versions of one package in one release.
    let numbers = |version: &&str| -> Vec<u64> {
        let parts = version.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    };
    versions.sort_by_key(|version| std::cmp::Reverse(numbers(version)));
    versions.dedup();
    versions
}

fn dependency_in(control: &str, prefix: &str) -> Option<String> {
    let depends = control
        .lines()
        .find_map(|line| line.strip_prefix("Depends:"))?;
    let names = depends
        .split([',', '|'])
        .filter_map(|part| part.split_whitespace().next());
    names
        .into_iter()
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_source_comes_first() {
        let listed = " linux | 6.12.8-1 | http://m.test/debian trixie/main Sources\n\
                      \x20linux | 6.12.117-1 | http://m.test/debian trixie/main Sources\n\
                      \x20linux | 6.12.38-1 | http://m.test/debian trixie/main amd64 Packages\n\
                      \x20linux | 6.12.9-2 | http://s.test/debian trixie-security/main Sources\n\
                      \x20linux | 6.12.9-2 | http://m.test/debian trixie/main Sources\n";
        let expected = ["6.12.117-1", "6.12.9-2", "6.12.8-1"];
        assert_eq!(source_versions(listed), expected);
        assert!(source_versions("").is_empty());
    }

    #[test]
    fn the_kernel_behind_a_meta_package_is_found() {
        let control = "Package: linux-image-cloud-amd64\nDepends: base (>= 1) | core, \
                       linux-image-6.1.0-9-cloud-amd64 (= 6.1.1-1)\nDescription: x\n";
        let found = dependency_in(control, "linux-image-");
        assert_eq!(found.as_deref(), Some("linux-image-6.1.0-9-cloud-amd64"));
        assert_eq!(dependency_in(control, "linux-headers-"), None);
        assert_eq!(dependency_in("Package: x\n", "linux-image-"), None);
    }
}
