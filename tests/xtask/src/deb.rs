//! The Debian package, made by cargo-deb of programs that are built already.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use lab::CacheError;

use crate::{root, say};

/// cargo-deb's version, from crates.io.
const VERSION: &str = "3.8.0";

/// The programs of the package.
pub const PROGRAMS: [&str; 3] = ["vmprobed", "vmprobe", "vmprobe-init"];
/// Those with a command line.
const COMMANDS: [&str; 2] = ["vmprobed", "vmprobe"];

/// How strongly a package is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As strongly as possible, for a package that is published.
    Small,
    /// Weakly, for tests.
    Large,
}

/// Why there is no package.
#[derive(Debug, thiserror::Error)]
pub enum DebError {
    /// There is no cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A program can't be started.
    #[error("can't start {0}")]
    Start(String, #[source] io::Error),
    /// A program failed.
    #[error("{0} failed: {1}")]
    Failed(String, String),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
}

/// What to make a package of.
#[derive(Debug, Args)]
pub struct Options {
    /// The folder with the programs [default: target/release].
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

/// Makes a package, and says where it is.
///
/// # Errors
/// See [`DebError`].
pub fn run(options: &Options) -> Result<bool, DebError> {
    let release = root().join("target/release");
    let package = build(
        options.programs.as_deref().unwrap_or(&release),
        None,
        Size::Small,
    )?;
    say(&package.display().to_string());
    Ok(true)
}

/// Makes a package of the programs in `folder`, as the version `version`, or that of the workspace, in which lintian
/// finds no error. Returns its path.
///
/// # Errors
/// See [`DebError`].
pub fn build(folder: &Path, version: Option<&str>, size: Size) -> Result<PathBuf, DebError> {
    let home = root().join("target/deb");
    stage(folder, &home.join("files"))?;
    let package = home.join(match version {
        Some(version) => format!("vmprobe_{version}.deb"),
        None => "vmprobe.deb".to_owned(),
    });
    let mut deb = Command::new(cargo_deb()?);
    deb.args([
        "--quiet",
        "--no-build",
        "--no-strip",
        "--package",
        "vmprobe-cli",
    ]);
    deb.args(
        version
            .iter()
            .flat_map(|version| ["--deb-version", version]),
    );
    deb.args((size == Size::Large).then_some("--fast"));
    deb.arg("--output").arg(&package).current_dir(root());
    output(&mut deb)?;
    // For a package that differs only in its version, lintian finds the same.
    if version.is_none() {
        check(&package, size)?;
    }
    Ok(package)
}

/// Checks with lintian that it has no errors.
fn check(package: &Path, size: Size) -> Result<(), DebError> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error"]);
    // The tests' programs are linked statically, so that they need no libraries of the machine that they run on.
    let static_ones = "--suppress-tags=statically-linked-binary";
    lintian.args((size == Size::Large).then_some(static_ones));
    output(lintian.arg(package))?;
    Ok(())
}

/// Fills the folder that the package's description in `cli/Cargo.toml` names.
fn stage(programs: &Path, files: &Path) -> Result<(), DebError> {
    if files.exists() {
        fs::remove_dir_all(files).map_err(|e| DebError::Io("remove", files.into(), e))?;
    }
    for folder in ["bin", "man", "bash", "zsh", "fish", "sysusers"] {
        let folder = files.join(folder);
        fs::create_dir_all(&folder).map_err(|e| DebError::Io("make", folder, e))?;
    }
    for program in PROGRAMS {
        let to = files.join("bin").join(program);
        let mut strip = Command::new("strip");
        output(
            strip
                .args(["--strip-all", "-o"])
                .arg(&to)
                .arg(programs.join(program)),
        )?;
        fs::set_permissions(&to, Permissions::from_mode(0o755))
            .map_err(|e| DebError::Io("set the permissions of", to, e))?;
    }
    for program in COMMANDS {
        let path = files.join("bin").join(program);
        output(Command::new(&path).arg("manual").arg(files.join("man")))?;
        for (shell, name) in [
            ("bash", program.to_owned()),
            ("zsh", format!("_{program}")),
            ("fish", format!("{program}.fish")),
        ] {
            let script = output(Command::new(&path).args(["completions", shell]))?;
            let to = files.join(shell).join(name);
            fs::write(&to, script).map_err(|e| DebError::Io("write", to, e))?;
        }
    }
    let sysusers = root().join("deploy/systemd/vmprobe.sysusers.conf");
    fs::copy(&sysusers, files.join("sysusers/vmprobe.conf"))
        .map_err(|e| DebError::Io("copy", sysusers, e))?;
    Ok(())
}

/// Returns the path of cargo-deb in the cache. Building it takes some minutes, once.
fn cargo_deb() -> Result<PathBuf, DebError> {
    let home = lab::cache_dir()?.join(format!("cargo-deb-{VERSION}"));
    let program = home.join("bin/cargo-deb");
    if program.is_file() {
        return Ok(program);
    }
    say("building cargo-deb (once; some minutes)");
    let unfinished = home.with_extension(format!("{VERSION}.{}", std::process::id()));
    let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    install
        .args([
            "install",
            "--quiet",
            "--locked",
            "cargo-deb",
            "--version",
            VERSION,
        ])
        .args(["--no-default-features", "--root"])
        .arg(&unfinished);
    output(&mut install)?;
    match fs::rename(&unfinished, &home) {
        // Another process has finished first.
        Err(_) if program.is_file() => {
            let _only_wanted_once = fs::remove_dir_all(&unfinished);
        }
        renamed => renamed.map_err(|e| DebError::Io("name", home, e))?,
    }
    Ok(program)
}

/// Runs a program and returns its standard output.
fn output(command: &mut Command) -> Result<Vec<u8>, DebError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command.output();
    let ended = ended.map_err(|cause| DebError::Start(name.clone(), cause))?;
    match ended.status.success() {
        true => Ok(ended.stdout),
        false => {
            let said = [ended.stdout, ended.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            Err(DebError::Failed(name, said))
        }
    }
}
