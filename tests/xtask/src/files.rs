//! Files of the Linux guests; the end-to-end tests know their names.
//!
//! Files made of Debian's packages are in the cache; those with programs of this clone are in its own `target`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lab::{
    CacheError, DebianDiskError, Initramfs, Kernel, KernelError, Kernels, ModuleError,
    PackageError, PypiError, TestKernelError, ensure_pypi,
};

use crate::deb::{self, DebError, Size};
use crate::drgn::{self, DrgnError};
use crate::examples::{self, ExamplesError};
use crate::gdb::{self, GdbError};
use crate::machine::Programs;
use crate::nats;
use crate::passt::{self, PasstError};
use crate::prometheus;
use crate::repack::{self, Packer, RepackError};
use crate::root_files::{self, RootFilesError};
use crate::victoria_metrics;
use crate::{root, say};

/// Folders of Python's packages beside the programs of the tests, with what is in each.
const PYTHON: [(&str, &[&str]); 2] = [
    // Readers of exported events.
    (
        "python-readers",
        &["duckdb==2.0.1", "nats-py==2.16.0", "pyarrow==26.0.1"],
    ),
    // A receiver of OpenTelemetry's protocol.
    (
        "otlp-receiver",
        &[
            "grpcio==1.85.3",
            "opentelemetry-proto==1.45.2",
            "protobuf==7.36.2",
        ],
    ),
];

/// Modules that both kernels have.
const MODULES: [&str; 10] = [
    "drivers/net/tun",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "drivers/block/virtio_blk",
    "drivers/char/hw_random/virtio-rng",
    "fs/overlayfs/overlay",
    "net/vmw_vsock/vsock",
    "net/vmw_vsock/vmw_vsock_virtio_transport_common",
    "net/vmw_vsock/vmw_vsock_virtio_transport",
];
/// Modules of 6.1 that 6.12 has built in.
const MODULES_6_1: [&str; 8] = [
    "drivers/char/virtio_console",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "fs/fuse/fuse",
    "fs/fuse/virtiofs",
];
/// Modules of 6.12 that a system on a disk loads: those for mounting a seed of cloud-init's.
const MODULES_6_12: [&str; 6] = [
    "fs/binfmt_misc",
    "fs/autofs/autofs4",
    "fs/fat/fat",
    "fs/fat/vfat",
    "fs/nls/nls_cp437",
    "fs/nls/nls_ascii",
];

/// The disk with Debian on it.
const DEBIAN_DISK: &str = "debian.qcow2";

/// The product's packages with their versions: one of an earlier version, and that of this clone.
const PACKAGES: [(&str, Option<&str>); 2] = [
    ("vmprobe-before.deb", Some("0.0.1-1")),
    ("vmprobe.deb", None),
];

/// Why the files aren't there.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// No kernels.
    #[error("the guests' kernels aren't ready")]
    Kernel(#[from] KernelError),
    /// A module for the guests is missing.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// A kernel can't be packed anew.
    #[error(transparent)]
    Repack(#[from] RepackError),
    /// No kernel that tests itself.
    #[error(transparent)]
    TestKernel(#[from] TestKernelError),
    /// No root file systems for commands.
    #[error(transparent)]
    RootFiles(#[from] RootFilesError),
    /// No disk of a distribution's.
    #[error(transparent)]
    DebianDisk(#[from] DebianDiskError),
    /// No gdb for the lab.
    #[error(transparent)]
    Gdb(#[from] GdbError),
    /// No drgn for the lab.
    #[error(transparent)]
    Drgn(#[from] DrgnError),
    /// No package of the product.
    #[error("can't make the Debian package")]
    Deb(#[from] DebError),
    /// No passt for the tests.
    #[error(transparent)]
    Passt(#[from] PasstError),
    /// No Prometheus, `VictoriaMetrics` or NATS for the tests.
    #[error("a package of Debian's isn't there")]
    Package(#[from] PackageError),
    /// No packages of Python's for what reads exported events.
    #[error("there are no readers of what is exported")]
    Pypi(#[from] PypiError),
    /// No clients in other languages for the tests.
    #[error("there are no clients in other languages")]
    Examples(#[from] ExamplesError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A file operation failed.
    #[error("can't {0}")]
    Io(String, #[source] io::Error),
}

/// Files of the guests by the names that the end-to-end tests use.
#[derive(Debug)]
pub struct Files {
    /// The folder with all of them, or links to them.
    pub folder: PathBuf,
    /// The folder of the cache with those that are made from packages.
    cached: PathBuf,
    names: Vec<&'static str>,
    /// Files for only one lab, with the paths in its machine: gdb, drgn and passt with their libraries, a
    /// distribution's disk, and the test kernel's debug information.
    others: Vec<(PathBuf, String)>,
}

impl Files {
    /// Only what the demonstration needs.
    ///
    /// # Errors
    /// See [`FilesError`].
    pub fn for_demo(programs: &Programs) -> Result<Self, FilesError> {
        let mut files = Self {
            folder: made(root().join("target").join("guests"))?,
            cached: made(lab::cache_dir()?.join("guests"))?,
            names: Vec::new(),
            others: Vec::new(),
        };
        let kernels = lab::ensure_kernels()?;
        files.link("vmlinuz-6.1", &kernels.v6_1.vmlinuz)?;
        files.initramfs(programs, &kernels)?;
        Ok(files)
    }

    /// All that the tests and the benches need.
    ///
    /// # Errors
    /// See [`FilesError`].
    pub fn for_tests(programs: &Programs) -> Result<Self, FilesError> {
        let mut files = Self::for_demo(programs)?;
        let kernels = lab::ensure_kernels()?;
        files.link("vmlinuz-6.12", &kernels.v6_12.vmlinuz)?;
        files.repacked(&kernels.v6_1)?;
        files.unpacked("vmlinux-6.12", &kernels.v6_12)?;
        let test_kernel = lab::ensure_test_kernel()?;
        files.link("test-kernel", &test_kernel.vmlinuz)?;
        files.link("busybox", &root_files::busybox()?)?;
        files.link("root.img", &root_files::image(&files.cached)?)?;
        // Beside the other programs, as in the lab.
        link(&programs.folder.join("gdb"), &gdb::program()?)?;
        link(&programs.folder.join("passt"), &passt::program()?)?;
        for name in prometheus::PROGRAMS {
            link(&programs.folder.join(name), &prometheus::program(name)?)?;
        }
        let store = victoria_metrics::program()?;
        link(&programs.folder.join(victoria_metrics::PROGRAM), &store)?;
        link(&programs.folder.join(nats::PROGRAM), &nats::program()?)?;
        for (name, packages) in PYTHON {
            link(&programs.folder.join(name), &ensure_pypi(packages)?)?;
        }
        examples::put_into(&programs.folder)?;
        files.others = gdb::in_lab()?;
        files.others.extend(drgn::in_lab("/boot/drgn")?);
        files.others.extend(passt::in_lab()?);
        let debian = lab::ensure_debian_disk()?;
        link(&files.folder.join(DEBIAN_DISK), &debian)?;
        files.others.push((debian, format!("/boot/{DEBIAN_DISK}")));
        for (name, version) in PACKAGES {
            let package = deb::build(&programs.folder, version, Size::Large)?;
            link(&files.folder.join(name), &package)?;
            files.others.push((package, format!("/boot/{name}")));
        }
        files
            .others
            .extend(below(&test_kernel.debug, "/boot/debug")?);
        // Several of them need the same libraries.
        files.others.sort();
        files.others.dedup();
        Ok(files)
    }

    /// Each file, and its path in a folder of the lab machine.
    pub fn in_lab(&self, folder: &str) -> Vec<(PathBuf, String)> {
        let pair = |name: &&str| (self.folder.join(name), format!("{folder}/{name}"));
        self.names.iter().map(pair).collect()
    }

    /// Returns the files for `lab-amd` alone, with the paths in its machine.
    pub fn others(&self) -> &[(PathBuf, String)] {
        &self.others
    }

    /// Adds a file by a link to it.
    ///
    /// # Errors
    /// It can't be linked.
    pub fn link(&mut self, name: &'static str, to: &Path) -> Result<(), FilesError> {
        link(&self.folder.join(name), to)?;
        self.names.push(name);
        Ok(())
    }

    /// PID 1, and the modules that its workloads load, for both kernels.
    fn initramfs(&mut self, programs: &Programs, kernels: &Kernels) -> Result<(), FilesError> {
        let init = fs::read(&programs.guest).map_err(io_error("read", &programs.guest))?;
        let mut image = Initramfs::new().file("/init", &init, 0o755);
        for (kernel, more) in [
            (&kernels.v6_1, &MODULES_6_1[..]),
            (&kernels.v6_12, &MODULES_6_12),
        ] {
            for path in MODULES.iter().chain(more) {
                let name = path.rsplit('/').next().unwrap_or(path);
                let to = format!("/lib/modules/{}/{name}.ko", kernel.release);
                image = image.file(&to, &kernel.module(path)?, 0o644);
            }
        }
        self.write("guest.cpio", &image.finish())
    }

    fn write(&mut self, name: &'static str, bytes: &[u8]) -> Result<(), FilesError> {
        let path = self.folder.join(name);
        let unfinished = self.folder.join(format!("{name}.new"));
        fs::write(&unfinished, bytes).map_err(io_error("write", &unfinished))?;
        fs::rename(&unfinished, &path).map_err(io_error("put in place", &path))?;
        self.names.push(name);
        Ok(())
    }

    /// The ELF file inside a kernel, made once for each version of its package.
    fn unpacked(&mut self, name: &'static str, kernel: &Kernel) -> Result<(), FilesError> {
        let mark = self.cached.join(format!("{name}.made-from"));
        let made_from = fs::read_to_string(&mark).unwrap_or_default();
        let elf = self.cached.join(name);
        if made_from != kernel.package_version || !elf.is_file() {
            let bytes = repack::vmlinux(&kernel.vmlinuz)?;
            fs::write(&elf, bytes).map_err(io_error("write", &elf))?;
            fs::write(&mark, &kernel.package_version).map_err(io_error("write", &mark))?;
        }
        self.link(name, &elf)
    }

    /// Kernels that Debian doesn't package, made once for each version of its package.
    fn repacked(&mut self, kernel: &Kernel) -> Result<(), FilesError> {
        const MADE: [&str; 3] = ["vmlinux-6.1", "vmlinuz-6.1-gzip", "vmlinuz-6.1-xz"];
        let mark = self.cached.join("repacked-from");
        let made_from = fs::read_to_string(&mark).unwrap_or_default();
        let made = MADE.map(|name| self.cached.join(name));
        let [elf, gzip, xz] = &made;
        if made_from != kernel.package_version || !made.iter().all(|path| path.is_file()) {
            say("packing the kernel anew, with gzip and xz");
            let bytes = repack::vmlinux(&kernel.vmlinuz)?;
            fs::write(elf, bytes).map_err(io_error("write", elf))?;
            for (path, packer) in [(gzip, Packer::Gzip), (xz, Packer::Xz)] {
                repack::bzimage(&kernel.vmlinuz, elf, packer, path)?;
            }
            fs::write(&mark, &kernel.package_version).map_err(io_error("write", &mark))?;
        }
        for (name, path) in MADE.into_iter().zip(&made) {
            self.link(name, path)?;
        }
        Ok(())
    }
}

/// Makes `path` a link to `to`. An old link may lead to a file that is gone.
fn link(path: &Path, to: &Path) -> Result<(), FilesError> {
    if fs::read_link(path).ok().as_deref() != Some(to) {
        let _there_may_be_none = fs::remove_file(path);
        std::os::unix::fs::symlink(to, path).map_err(io_error("link", path))?;
    }
    Ok(())
}

/// All files below a folder, with their paths below another one.
fn below(folder: &Path, place: &str) -> Result<Vec<(PathBuf, String)>, FilesError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error("read", folder))? {
        let path = entry.map_err(io_error("read", folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let place = format!("{place}/{name}");
        match path.is_dir() {
            true => files.extend(below(&path, &place)?),
            false => files.push((path, place)),
        }
    }
    Ok(files)
}

fn made(folder: PathBuf) -> Result<PathBuf, FilesError> {
    fs::create_dir_all(&folder).map_err(io_error("make the folder", &folder))?;
    Ok(folder)
}

fn io_error(what: &str, path: &Path) -> impl FnOnce(io::Error) -> FilesError + use<> {
    let text = format!("{what} {}", path.display());
    move |error| FilesError::Io(text, error)
}
