//! The lab's QEMU: Debian's source package, a few lines changed, built once for this machine.

mod machine;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::apt::{AptError, Release};
use crate::cache::{self, CacheError};
use crate::progress::step;
use crate::tool::{self, ToolError};

/// The Debian release whose QEMU is built. The one of Debian 12 (7.2) doesn't report hardware
/// breakpoints to a nested hypervisor.
const RELEASE: &str = "trixie";

/// The changes, by file name; the head of each says what it is for.
const PATCHES: [(&str, &str); 5] = [
    (
        "qemu-bp-intercept.patch",
        include_str!("../../qemu-bp-intercept.patch"),
    ),
    (
        "qemu-interrupt-race.patch",
        include_str!("../../qemu-interrupt-race.patch"),
    ),
    (
        "qemu-ignne-race.patch",
        include_str!("../../qemu-ignne-race.patch"),
    ),
    (
        "qemu-jump-cache.patch",
        include_str!("../../qemu-jump-cache.patch"),
    ),
    (
        "qemu-svm-tlb.patch",
        include_str!("../../qemu-svm-tlb.patch"),
    ),
];
const SCRIPT: &str = include_str!("../../build-qemu.sh");
const PROGRAM: &str = "qemu-system-x86_64";

/// Why there is no QEMU.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// Its source can't be fetched.
    #[error("can't fetch QEMU's source")]
    Source(#[from] AptError),
    /// It doesn't build.
    #[error(
        "can't build QEMU; run deploy/setup.sh, which installs what that needs, then this again"
    )]
    Build(#[source] ToolError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The firmware isn't installed.
    #[error("QEMU's firmware {0} is missing; run deploy/setup.sh, which installs it")]
    NoFirmware(String),
}

/// A QEMU that runs the lab machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// Folders with its firmware.
    pub firmware: Vec<PathBuf>,
}

/// The source of a built QEMU, in a file beside it in the cache.
#[derive(Debug, Serialize, Deserialize)]
struct Origin {
    source: String,
}

/// Finds the lab's QEMU in the cache, or builds it there: about three minutes on two cores, once.
/// One that is cached for these patches and this build script needs no network.
///
/// # Errors
/// If the source can't be fetched, it doesn't build, or the firmware isn't installed.
pub fn ensure_qemu() -> Result<Qemu, QemuError> {
    let firmware = firmware()?;
    let cache = cache::cache_dir()?;
    let mut parts: Vec<&[u8]> = PATCHES.iter().map(|(_, patch)| patch.as_bytes()).collect();
    parts.push(SCRIPT.as_bytes());
    let name = format!("qemu-{}", cache::key(&parts));
    let home = cache.join(&name);
    let program = home.join(PROGRAM);
    if !program.exists() {
        let _lock = cache::lock(&cache, "qemu")?;
        // Another process may have built it while this one waited.
        if !program.exists() {
            build(&cache, &home)?;
        }
    }
    Ok(Qemu { program, firmware })
}

fn build(cache: &Path, home: &Path) -> Result<(), QemuError> {
    let work = cache::work_dir(cache, "qemu-build")?;
    let source = work.join("source");
    cache::make_dir(&source)?;
    let release = Release::open(cache, RELEASE)?;
    step("fetching QEMU's source package");
    let dsc = release.source("qemu", &source)?;

    let script = work.join("build-qemu.sh");
    cache::write(&script, SCRIPT.as_bytes())?;
    // Outside the build folder, so that it outlives the next try's clean-up of that folder.
    let log = cache.join("qemu-build.log");
    step(&format!(
        "building QEMU (about 3 minutes, once; log: {})",
        log.display()
    ));
    let mut command = Command::new("sh");
    command.arg(&script).arg(&dsc).arg(&work);
    for (file, text) in PATCHES {
        let patch = work.join(file);
        cache::write(&patch, text.as_bytes())?;
        command.arg(&patch);
    }
    tool::run_logged(&mut command, &log).map_err(QemuError::Build)?;

    let ready = work.join("ready");
    cache::make_dir(&ready)?;
    cache::rename(&work.join(PROGRAM), &ready.join(PROGRAM))?;
    let source = dsc
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let origin = Origin {
        source: source.unwrap_or_default(),
    };
    // A struct of one string always serializes.
    let origin = serde_json::to_vec_pretty(&origin).unwrap_or_default();
    cache::write(&ready.join("origin.json"), &origin)?;
    cache::remove_dir(home)?;
    cache::rename(&ready, home)?;
    cache::remove_dir(&work)?;
    Ok(())
}

/// Folders of the firmware that Debian packages apart from QEMU.
fn firmware() -> Result<Vec<PathBuf>, QemuError> {
    // The BIOS, and the loader by which it boots a kernel given with -kernel.
    let needed = [
        ("/usr/share/seabios", "bios-256k.bin"),
        ("/usr/share/qemu", "linuxboot_dma.bin"),
    ];
    for (dir, file) in needed {
        let path = Path::new(dir).join(file);
        if !path.exists() {
            return Err(QemuError::NoFirmware(path.display().to_string()));
        }
    }
    Ok(needed.iter().map(|(dir, _)| PathBuf::from(dir)).collect())
}
