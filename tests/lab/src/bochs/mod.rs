//! The lab's Bochs: Debian's source package, a few lines changed, built once for this machine, and the
//! firmware and boot loader of Debian's packages beside it.

mod cd;
mod machine;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::{AptError, Release};
use crate::cache::{self, CacheError};
use crate::progress::step;
use crate::tool::{self, ToolError};

/// The Debian release whose Bochs is built.
const RELEASE: &str = "trixie";

/// The changes, by file name; the head of each says what it is for.
const PATCHES: [(&str, &str); 4] = [
    (
        "bochs-posted-interrupts.patch",
        include_str!("../../bochs-posted-interrupts.patch"),
    ),
    (
        "bochs-entry-interrupts.patch",
        include_str!("../../bochs-entry-interrupts.patch"),
    ),
    (
        "bochs-fault-after-fault.patch",
        include_str!("../../bochs-fault-after-fault.patch"),
    ),
    (
        "bochs-memory-list.patch",
        include_str!("../../bochs-memory-list.patch"),
    ),
];
const SCRIPT: &str = include_str!("../../build-bochs.sh");
const PROGRAM: &str = "bochs";

const BIOS: &str = "BIOS-bochs-latest";
const VGA_BIOS: &str = "vgabios.bin";
const LOADER: &str = "isolinux.bin";
const LOADER_MODULE: &str = "ldlinux.c32";
/// Files that Debian packages apart from Bochs: the package, and the file's path in it.
const FIRMWARE: [(&str, &str, &str); 4] = [
    ("bochsbios", "usr/share/bochs", BIOS),
    ("vgabios", "usr/share/vgabios", VGA_BIOS),
    ("isolinux", "usr/lib/ISOLINUX", LOADER),
    (
        "syslinux-common",
        "usr/lib/syslinux/modules/bios",
        LOADER_MODULE,
    ),
];

/// Why there is no Bochs.
#[derive(Debug, thiserror::Error)]
pub enum BochsError {
    /// Its source or its firmware can't be fetched.
    #[error("can't fetch Bochs' source or firmware")]
    Fetch(#[from] AptError),
    /// A package of its firmware can't be unpacked.
    #[error("can't unpack the firmware for Bochs")]
    Unpack(#[source] ToolError),
    /// It doesn't build.
    #[error(
        "can't build Bochs; run deploy/setup.sh, which installs what that needs, then this again"
    )]
    Build(#[source] ToolError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A Bochs that runs the lab machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bochs {
    /// The program.
    pub program: PathBuf,
    /// The folder with its firmware and the boot loader.
    pub folder: PathBuf,
}

/// Finds the lab's Bochs in the cache, or builds it there: about two minutes on two cores, once. One that is cached for
/// these patches and this build script needs no network.
///
/// # Errors
/// If the source or firmware can't be fetched, or it doesn't build.
pub fn ensure_bochs() -> Result<Bochs, BochsError> {
    let cache = cache::cache_dir()?;
    let mut parts: Vec<&[u8]> = PATCHES.iter().map(|(_, patch)| patch.as_bytes()).collect();
    parts.push(SCRIPT.as_bytes());
    let folder = cache.join(format!("bochs-{}", cache::key(&parts)));
    let program = folder.join(PROGRAM);
    if !program.exists() {
        let _lock = cache::lock(&cache, "bochs")?;
        // Another process may have built it while this one waited.
        if !program.exists() {
            build(&cache, &folder)?;
        }
    }
    Ok(Bochs { program, folder })
}

fn build(cache: &Path, home: &Path) -> Result<(), BochsError> {
    let work = cache::work_dir(cache, "bochs-build")?;
    let (source, ready) = (work.join("source"), work.join("ready"));
    cache::make_dir(&source)?;
    cache::make_dir(&ready)?;
    let release = Release::open(cache, RELEASE)?;
    step("fetching Bochs' source archive");
    let archive = release.upstream_source("bochs", &source)?;
    for (package, dir, file) in FIRMWARE {
        let into = work.join(package);
        cache::make_dir(&into)?;
        let deb = release.download(package, &into)?;
        let mut unpack = Command::new("dpkg-deb");
        tool::run(unpack.arg("--extract").arg(&deb).arg(&into)).map_err(BochsError::Unpack)?;
        let path = into.join(dir).join(file);
        if !path.is_file() {
            let problem = format!("no {dir}/{file}");
            return Err(release.unexpected(package, problem).into());
        }
        cache::rename(&path, &ready.join(file))?;
    }
    drop(release);

    let script = work.join("build-bochs.sh");
    cache::write(&script, SCRIPT.as_bytes())?;
    // Outside the build folder, so that it outlives the next try's clean-up of that folder.
    let log = cache.join("bochs-build.log");
    step(&format!(
        "building Bochs (about 2 minutes, once; log: {})",
        log.display()
    ));
    let mut command = Command::new("sh");
    command.arg(&script).arg(&archive).arg(&work);
    for (file, text) in PATCHES {
        let patch = work.join(file);
        cache::write(&patch, text.as_bytes())?;
        command.arg(&patch);
    }
    tool::run_logged(&mut command, &log).map_err(BochsError::Build)?;

    cache::rename(&work.join(PROGRAM), &ready.join(PROGRAM))?;
    cache::remove_dir(home)?;
    cache::rename(&ready, home)?;
    cache::remove_dir(&work)?;
    Ok(())
}
