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
    #[error("one of {programs} doesn't build; see cargo's messages above")]
    Compile {
        /// Their names.
        programs: String,
    },
    /// Cargo's answer isn't understood.
    #[error("can't read the answer of `cargo metadata`")]
    Metadata(#[from] serde_json::Error),
    /// Cargo built no such program.
    #[error("cargo built {package}, but made no program of {name}")]
    NoProgram {
        /// The package.
        package: String,
        /// The program or test asked for.
        name: String,
    },
}

/// A program of this workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    package: &'static str,
    /// Cargo's option that names it.
    kind: &'static str,
    name: &'static str,
}

impl Program {
    /// A program of a package.
    #[must_use]
    pub const fn bin(package: &'static str, name: &'static str) -> Self {
        let kind = "--bin";
        Self {
            package,
            kind,
            name,
        }
    }

    /// An integration test of a package, which is a program that runs the test's cases.
    #[must_use]
    pub const fn test(package: &'static str, name: &'static str) -> Self {
        let kind = "--test";
        Self {
            package,
            kind,
            name,
        }
    }
}

/// Builds programs, optimized and statically linked, and returns their paths. They are in a folder of their own under
/// cargo's target folder, so that other builds stay valid.
///
/// Building all at once is much faster than one after the other: cargo chooses the features of shared packages by
/// everything that it is told to build, and rebuilds them for another choice.
///
/// # Errors
/// If one doesn't build.
pub fn static_programs<const N: usize>(programs: [Program; N]) -> Result<[PathBuf; N], BuildError> {
    #[derive(Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let mut metadata = cargo();
    metadata.args(["metadata", "--format-version=1", "--no-deps"]);
    let metadata: Metadata = serde_json::from_str(&tool::run(&mut metadata)?)?;

    let mut build = cargo();
    build
        .args(["build", "--profile=lab", "--quiet", "--target", TARGET])
        .args(["--message-format=json-render-diagnostics", "--target-dir"])
        .arg(metadata.target_directory.join("static"));
    for program in &programs {
        build.args(["--package", program.package, program.kind, program.name]);
    }
    build
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // At fixed addresses, too, so that a program has nothing to relocate when it starts.
        .env(
            "RUSTFLAGS",
            "-C target-feature=+crt-static -C relocation-model=static",
        )
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = build
        .output()
        .map_err(|e| ToolError::Start("cargo".into(), e))?;
    if !output.status.success() {
        return Err(BuildError::Compile {
            programs: programs.map(|program| program.name).join(", "),
        });
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut paths = programs.map(|_| PathBuf::new());
    for (path, Program { package, name, .. }) in paths.iter_mut().zip(programs) {
        *path = executable(&messages, name).ok_or_else(|| BuildError::NoProgram {
            package: package.into(),
            name: name.into(),
        })?;
    }
    Ok(paths)
}

/// Returns the program of this name from cargo's messages, one a line.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        target: Option<Target>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.target.as_ref().is_some_and(|it| it.name == name))
        .find_map(|message| message.executable)
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_one_that_cargo_names() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"debug"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}
{"reason":"compiler-artifact","target":{"name":"debug"},"executable":"/t/debug-1"}
{"reason":"build-finished","success":true}
no message"#;
        assert_eq!(executable(messages, "debug"), Some("/t/debug-1".into()));
        assert_eq!(executable(messages, "absent"), None);
    }
}
