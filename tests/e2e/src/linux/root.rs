//! One command in a guest whose root is a folder of the host's: `vmprobe run --root`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::guest::files;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_command_runs_on_a_folder_of_the_host_s_in_6_12",
        ids: &["VM09"],
        needs: Needs::Linux,
        run: |cx| commands(cx, files::BZIMAGE_6_12, "6.12."),
    },
    Test {
        name: "a_command_runs_on_a_folder_of_the_host_s_in_6_1",
        ids: &["VM09"],
        needs: Needs::Linux,
        run: |cx| commands(cx, files::BZIMAGE_6_1, "6.1."),
    },
];

/// More input than all buffers on the way hold.
const INPUT: usize = 3 << 20;

/// Runs commands in guests.
struct Runner<'c> {
    cx: &'c Context,
    kernel: String,
    root: PathBuf,
    modules: PathBuf,
}

impl Runner<'_> {
    /// Runs a command of the tests' program in a guest.
    fn run(&self, options: &[&str], command: &[&str], input: &[u8]) -> Result<Output, Failure> {
        let mut child = Command::new(self.cx.program("vmprobe"))
            .args(["run", "--memory", "256", "--kernel", &self.kernel, "--root"])
            .arg(&self.root)
            .arg("--modules")
            .arg(&self.modules)
            .args(options)
            .args(["--", "/guest", "command"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Failure::io("start vmprobe run"))?;
        let mut to = child
            .stdin
            .take()
            .ok_or_else(|| wrong!("no standard input"))?;
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            // A command that doesn't read its input closes it.
            let _ended = to.write_all(&input);
        });
        let output = child.wait_with_output();
        let output = output.map_err(Failure::io("wait for vmprobe run"))?;
        let _a_panic_shows_in_the_output = writer.join();
        Ok(output)
    }

    /// As [`run`](Self::run), without input. Returns its exit code and standard output.
    fn simple(&self, options: &[&str], command: &[&str]) -> Result<(Option<i32>, String), Failure> {
        let output = self.run(options, command, &[])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code() == Some(125) {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(wrong!("the guest ended: {errors}"));
        }
        Ok((output.status.code(), text))
    }
}

/// Unpacks the modules of one kernel from the guests' initramfs.
pub fn unpack_modules(cx: &Context, release: &str, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    let mut archive = fs::File::open(cx.file(files::INITRAMFS))?;
    loop {
        let entry = cpio::newc::Reader::new(archive)?;
        if entry.entry().is_trailer() {
            return Ok(());
        }
        let name = entry.entry().name().to_owned();
        let file = name.strip_prefix("lib/modules/");
        let file = file.filter(|file| file.starts_with(release) && file.ends_with(".ko"));
        archive = match file.and_then(|file| file.rsplit_once('/')) {
            Some((_, module)) => entry.to_writer(fs::File::create(to.join(module))?)?,
            None => entry.finish()?,
        };
    }
}

fn commands(cx: &Context, kernel: &'static str, release: &str) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let (root, modules) = (folder.path().join("root"), folder.path().join("modules"));
    let made = fs::create_dir_all(root.join("kept"))
        .and_then(|()| fs::copy(cx.program("guest"), root.join("guest")))
        .and_then(|_| fs::write(root.join("file"), "of the host\n"))
        .and_then(|()| unpack_modules(cx, release, &modules));
    made.map_err(Failure::io("make a root folder"))?;
    let runner = Runner {
        cx,
        kernel: cx.kernel(kernel),
        root,
        modules,
    };

    let input: Vec<u8> = (0..INPUT as u32).map(|n| (n ^ n >> 8) as u8).collect();
    let output = runner.run(&[], &["copy"], &input)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    check_eq!(output.status.code(), Some(0), "exit code of copy: {errors}");
    check!(output.stdout == input, "the output of copy isn't its input");
    let count = format!("{INPUT} bytes");
    check!(
        errors.lines().any(|line| line == count),
        "standard error of copy: {errors}"
    );

    let who = runner.simple(&["--env", "WHAT=a b", "--chdir", "/kept"], &["who", "WHAT"])?;
    let expected = "user 0 in /kept with \"a b\"\n";
    check_eq!(who, (Some(0), expected.to_owned()), "what who says");

    let kept = runner.root.join("kept");
    let kept = kept.to_string_lossy();
    let writable = ["--rw", &kept];
    for (path, stays) in [("/file", false), ("/kept/file", true)] {
        let before = fs::read_to_string(runner.root.join(&path[1..])).unwrap_or_default();
        let (code, text) = runner.simple(&writable, &["add", path, "of the guest"])?;
        let after = format!("{before}of the guest\n");
        check_eq!(
            (code, &*text),
            (Some(0), &*after),
            "what add says of {path}"
        );
        let now = fs::read_to_string(runner.root.join(&path[1..])).unwrap_or_default();
        check_eq!(now, if stays { after } else { before }, "{path} afterwards");
    }

    let ended = runner.simple(&[], &["exit", "77"])?;
    check_eq!(ended, (Some(77), "no line feed".to_owned()), "exit");
    let aborted = runner.simple(&[], &["abort"])?.0;
    check_eq!(aborted, Some(128 + libc::SIGABRT), "exit code of abort");
    let panicked = runner.run(&[], &["panic"], &[])?;
    check_eq!(panicked.status.code(), Some(125), "exit code of panic");
    let told = String::from_utf8_lossy(&panicked.stderr);
    check!(
        told.contains("sysrq triggered crash"),
        "no panic is told of: {told}"
    );
    pass()
}
