//! The time from a process's start to its guest's first instruction, and the process's memory besides the guest's
//! (BN13).

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use vmprobe_client::v1::CreateVmRequest;
use vmprobe_client::{Client, ClientError};

use crate::exits::kernel;
use crate::image::{Image, ImageError};
use crate::in_process::InProcessError;
use crate::report::Entry;

const VM: &str = "start";
/// Memory of a guest in MiB.
const GUEST_MIB: u64 = 128;
/// Starts; the figure is that of the one in the middle.
const RUNS: usize = 11;
/// The limits.
const TIME_LIMIT: Duration = Duration::from_millis(15);
const MEMORY_LIMIT_MIB: f64 = 15.0;

/// Why no start was measured.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no runtime, no server, or no file.
    #[error(transparent)]
    InProcess(#[from] InProcessError),
    /// The server refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A kernel can't be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A process isn't what it should be.
    #[error("the {0} isn't there")]
    Missing(&'static str),
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |error| InProcessError::Io(what, error).into()
}

/// One start.
struct Start {
    /// Time from the start of the server's process until its guest runs.
    whole: Duration,
    /// Time from the request for the VM, for which its own process is started.
    vm: Duration,
    /// Resident memory of the VM's process besides the guest's, in KiB.
    memory: u64,
}

/// Measures starts of a guest of a few bytes, and of each of these kernels, by this server's program. Each kernel is
/// started from the bzImage and from the ELF file in it.
///
/// # Errors
/// See [`StartError`].
pub fn measure(server: &Path, kernels: &[(&str, &Path)]) -> Result<Vec<Entry>, StartError> {
    let runtime = Runtime::new().map_err(failed("start a runtime"))?;
    let folder = TempDir::new().map_err(failed("make a folder for kernels"))?;
    // The first start unpacks a packaged kernel. The median leaves that out.
    let cache = TempDir::new().map_err(failed("make a folder for unpacked kernels"))?;
    let tiny = folder.path().join("tiny");
    let code = kernel(2, 1).map_err(InProcessError::from)?;
    fs::write(&tiny, code).map_err(failed("write a kernel"))?;
    let mut all = vec![("a kernel of a few bytes".to_owned(), tiny)];
    for (release, vmlinuz) in kernels {
        let vmlinux = folder.path().join(release);
        let image = Image::read(vmlinuz)?;
        fs::write(&vmlinux, image.elf).map_err(failed("write a kernel"))?;
        all.push((
            format!("{release}, as its package has it (unpacked by the first start)"),
            (*vmlinuz).to_owned(),
        ));
        all.push((format!("{release}, unpacked"), vmlinux));
    }
    let mut entries = Vec::new();
    for (what, kernel) in all {
        let mut starts = Vec::new();
        for _ in 0..RUNS {
            starts.push(runtime.block_on(start(server, &kernel, cache.path()))?);
        }
        let middle = |value: fn(&Start) -> f64| {
            let mut values: Vec<f64> = starts.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            (values[RUNS / 2], values[0], values[RUNS - 1])
        };
        let (whole, least, most) = middle(|start| start.whole.as_secs_f64() * 1e3);
        let (vm, ..) = middle(|start| start.vm.as_secs_f64() * 1e3);
        let limit = TIME_LIMIT.as_secs_f64() * 1e3;
        entries.push(
            Entry::native(
                "BN13",
                (whole * 10.0).round() / 10.0,
                "ms",
                format!(
                    "start of vmprobed until a guest of {what} runs, in {GUEST_MIB} MiB, as its client is told; \
                     median of {RUNS}"
                ),
            )
            .note(format!(
                "{least:.1} to {most:.1}; {vm:.1} from the request, with the start of the VM's process; limit {limit}: {}",
                verdict(whole <= limit)
            )),
        );
        let (memory, least, most) = middle(|start| start.memory as f64 / 1024.0);
        entries.push(
            Entry::native(
                "BN13",
                (memory * 10.0).round() / 10.0,
                "MiB",
                format!("resident memory of a VM's process beside the guest's, with {what}"),
            )
            .note(format!(
                "{least:.1} to {most:.1}; limit {MEMORY_LIMIT_MIB}: {}",
                verdict(memory <= MEMORY_LIMIT_MIB)
            )),
        );
    }
    Ok(entries)
}

fn verdict(is_kept: bool) -> &'static str {
    match is_kept {
        true => "kept",
        false => "missed",
    }
}

/// A server, which is ended when this is dropped.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.input.take());
        let _its_end_says_nothing = self.child.wait();
    }
}

async fn start(program: &Path, kernel: &Path, cache: &Path) -> Result<Start, StartError> {
    let began = Instant::now();
    let mut child = Command::new(program)
        .args([
            "--listen",
            "127.0.0.1:0",
            "--plain-text",
            "--exit-with-stdin",
            "--files",
            "/",
            "--kernel-cache",
        ])
        .arg(cache)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed("start the server"))?;
    let output = child
        .stdout
        .take()
        .ok_or(StartError::Missing("server's output"))?;
    let server = Server {
        input: child.stdin.take(),
        child,
    };
    let mut line = String::new();
    BufReader::new(output)
        .read_line(&mut line)
        .map_err(failed("read the server's address"))?;
    let endpoint = line.trim_end().strip_prefix("listening on ");
    let client = Client::connect(endpoint.ok_or(StartError::Missing("server's address"))?).await?;
    let asked = Instant::now();
    let request = CreateVmRequest {
        name: VM.into(),
        kernel: kernel.to_string_lossy().into_owned(),
        memory_mib: GUEST_MIB,
        ..Default::default()
    };
    client.create_vm(request).await?;
    let (whole, vm) = (began.elapsed(), asked.elapsed());
    let memory = memory(server.child.id())?;
    client.delete_vm(VM).await?;
    Ok(Start { whole, vm, memory })
}

/// Returns the KiB of resident memory of the process that `server` has started, without the guest's. The guest's memory
/// is excluded from core dumps, and so it is marked in `smaps` (`dd`).
fn memory(server: u32) -> Result<u64, StartError> {
    let process = child_of(server)?.ok_or(StartError::Missing("VM's process"))?;
    let maps = fs::read_to_string(process.join("smaps")).map_err(failed("read a memory map"))?;
    let number = |line: &str, field: &str| -> Option<u64> {
        let value = line.strip_prefix(field)?.trim();
        value.strip_suffix("kB")?.trim().parse().ok()
    };
    let (mut sum, mut resident) = (0, 0);
    for line in maps.lines() {
        if let Some(rss) = number(line, "Rss:") {
            resident = rss;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_guests = flags.split_whitespace().any(|flag| flag == "dd");
            sum += if is_guests { 0 } else { resident };
        }
    }
    Ok(sum)
}

/// The folder in `/proc` of a process that `parent` has started.
fn child_of(parent: u32) -> Result<Option<PathBuf>, StartError> {
    let entries = fs::read_dir("/proc").map_err(failed("list processes"))?;
    let is_child = |path: &PathBuf| {
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        let by = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        by.is_some_and(|by| by.trim() == parent.to_string())
    };
    Ok(entries.flatten().map(|entry| entry.path()).find(is_child))
}
