//! A kernel of three functions. It never runs.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

const FUNCTIONS: [&str; 3] = ["first", "second", "third"];
/// `push %rbp; mov %rsp,%rbp; pop %rbp; ret` and padding.
const FUNCTION: [u8; 16] = [
    0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
];

/// The kernel's file, in a folder that is removed when dropped.
pub struct Kernel {
    folder: TempDir,
    path: PathBuf,
}

impl Kernel {
    pub fn write() -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("kernel");
        std::fs::write(&path, image()).unwrap();
        Self { folder, path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn image() -> Vec<u8> {
    let image = tiny_kernel::build(|a, names| {
        for name in FUNCTIONS {
            names.here(a, name)?;
            a.db(&FUNCTION)?;
        }
        Ok(())
    });
    image.unwrap()
}
