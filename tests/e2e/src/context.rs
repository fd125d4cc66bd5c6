//! Where a test runs and what it finds there.

use std::env;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use seeded_random::Random;

use crate::linux::{KeptGuests, files};
use crate::test::{Failure, TestResult};

/// The folder with `vmprobed` and `vmprobe`; by default that of this program.
pub const BIN_DIR: &str = "VMPROBE_BIN_DIR";
/// The folder with the Linux guests' files.
pub const FILES: &str = "VMPROBE_FILES";

/// A seed for a run without a given one: another one each time.
pub fn any_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The machine that tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Place {
    /// A machine as it is.
    Host,
    /// The lab machine with upstream kvm-amd.
    LabAmd,
    /// The lab machine with upstream kvm-intel.
    LabIntel,
}

impl Place {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::LabAmd => "lab-amd",
            Self::LabIntel => "lab-intel",
        }
    }
}

/// What a test is given.
#[derive(Debug)]
pub struct Context {
    /// Where it runs.
    pub place: Place,
    /// The seed of its random numbers: another one in each run, unless the run is given one.
    pub seed: u64,
    bin: PathBuf,
    files: PathBuf,
    /// Guests that tests have given back.
    pub kept: KeptGuests,
    // Declared after the guests, whose connections it drives.
    runtime: tokio::runtime::Runtime,
}

impl Context {
    /// Finds the programs and files by the environment.
    ///
    /// # Errors
    /// If no runtime can be made.
    pub fn new(place: Place, seed: u64) -> Result<Self, Failure> {
        let own = env::current_exe().map_err(Failure::io("find this program"))?;
        let beside = own.parent().map(PathBuf::from).unwrap_or_default();
        let folder = |name| env::var_os(name).map(PathBuf::from);
        Ok(Self {
            place,
            seed,
            files: folder(FILES).unwrap_or_else(|| beside.clone()),
            bin: folder(BIN_DIR).unwrap_or(beside),
            kept: KeptGuests::default(),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .map_err(Failure::io("start the asynchronous runtime"))?,
        })
    }

    /// A program of the product.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// A file of the Linux guests, as a text, which the protocol wants.
    pub fn file(&self, name: &str) -> String {
        self.files.join(name).to_string_lossy().into_owned()
    }

    /// A kernel to boot. In the labs it is the unpacked one, as unpacking takes most of a boot there. Elsewhere as
    /// [`file`](Self::file).
    pub fn kernel(&self, name: &str) -> String {
        let unpacked = match name {
            files::BZIMAGE_6_1 => files::VMLINUX_6_1,
            files::BZIMAGE_6_12 => files::VMLINUX_6_12,
            other => other,
        };
        self.file(match self.place {
            Place::Host => name,
            Place::LabAmd | Place::LabIntel => unpacked,
        })
    }

    /// Random numbers, the same ones for the same seed.
    pub fn random(&self) -> Random {
        Random::new(self.seed)
    }

    /// Ends the guests that tests have given back.
    ///
    /// # Errors
    /// If one of them doesn't end as it should.
    pub fn end_kept(&self) -> Result<(), Failure> {
        while let Some(guest) = self.kept.take_any() {
            self.runtime.block_on(guest.end())?;
        }
        Ok(())
    }

    /// Runs the asynchronous part of a test.
    ///
    /// # Errors
    /// Those of the test.
    pub fn block_on(&self, test: impl Future<Output = TestResult>) -> TestResult {
        self.runtime.block_on(test)
    }
}
