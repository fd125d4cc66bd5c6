//! Static builds of this workspace's own programs, for machines that have no libraries.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::tool::{self, ToolError};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Why a program can't be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Cargo failed.
    #[error("cargo failed")]
    Cargo(#[from] ToolError),
    /// The compiler refused; it has said why on standard error.
    #[error("{package} doesn't build; see cargo's messages above")]
    Compile {
        /// The package.
        package: String,
    },
    /// Cargo's answer isn't understood.
    #[error("can't read the answer of `cargo metadata`")]
    Metadata(#[from] serde_json::Error),
    /// Cargo built no such program.
    #[error("{package} has no program {bin}: {} wasn't made", path.display())]
    NoProgram {
        /// The package.
        package: String,
        /// The program asked for.
        bin: String,
        /// Where it should be.
        path: PathBuf,
    },
}

/// Builds a program of this workspace, optimized and with all libraries inside, and returns its
/// path. It is in a folder of its own under cargo's target folder, so that other builds stay valid.
///
/// # Errors
/// If it doesn't build.
pub fn static_binary(package: &str, bin: &str) -> Result<PathBuf, BuildError> {
    #[derive(Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let mut metadata = cargo();
    metadata.args(["metadata", "--format-version=1", "--no-deps"]);
    let metadata: Metadata = serde_json::from_str(&tool::run(&mut metadata)?)?;
    let target_dir = metadata.target_directory.join("static");

    let mut build = cargo();
    build
        .args(["build", "--profile=lab", "--quiet", "--target", TARGET])
        .args(["--package", package, "--bin", bin, "--target-dir"])
        .arg(&target_dir)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .stdin(Stdio::null());
    let status = build
        .status()
        .map_err(|e| ToolError::Start("cargo".into(), e))?;
    if !status.success() {
        return Err(BuildError::Compile {
            package: package.into(),
        });
    }
    let path = target_dir.join(TARGET).join("lab").join(bin);
    if !path.is_file() {
        return Err(BuildError::NoProgram {
            package: package.into(),
            bin: bin.into(),
            path,
        });
    }
    Ok(path)
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    command
}
