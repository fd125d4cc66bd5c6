//! A Linux guest with the tests' own PID 1.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use vmprobe_client::v1::{
    BootMethod, CreateVmRequest, Devices, Ending, EndingKind, Probe, ProbeSpec, ReadMemoryRequest,
};
use vmprobe_client::{Client, ClientError, spec};

use super::kept::{self, KeptGuests, Kind};
use crate::console::Console;
use crate::context::Context;
use crate::note;
use crate::process::Process;
use crate::server::Server;
use crate::test::{Failure, wrong};

/// Name of every test's only VM.
pub const VM: &str = "guest";

/// Files that the harness puts into the folder of the guests' files.
pub mod files {
    /// Debian's 6.1 kernel, as packaged: its payload is packed with LZ4.
    pub const BZIMAGE_6_1: &str = "vmlinuz-6.1";
    /// Debian's 6.12 kernel, as packaged: its payload is packed with zstd.
    pub const BZIMAGE_6_12: &str = "vmlinuz-6.12";
    /// The ELF file inside the 6.1 kernel.
    pub const VMLINUX_6_1: &str = "vmlinux-6.1";
    /// The ELF file inside the 6.12 kernel.
    pub const VMLINUX_6_12: &str = "vmlinux-6.12";
    /// The 6.1 kernel with its payload packed anew.
    pub const BZIMAGE_GZIP: &str = "vmlinuz-6.1-gzip";
    /// As above.
    pub const BZIMAGE_XZ: &str = "vmlinuz-6.1-xz";
    /// The initramfs with the tests' PID 1.
    pub const INITRAMFS: &str = "guest.cpio";
}

/// What to boot.
#[derive(Debug, Clone)]
pub struct Config {
    /// One of [`files`].
    pub kernel: &'static str,
    /// Whether the test is about this very file. Otherwise the ELF file inside it may be booted in its place.
    pub as_packaged: bool,
    /// How it is started.
    pub boot: BootMethod,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// MiB of memory.
    pub memory_mib: u64,
    /// Arguments of the kernel besides `console=ttyS0`.
    pub kernel_args: &'static str,
    /// What PID 1 does.
    pub plan: &'static str,
    /// Probes planted before the first instruction.
    pub probes: Vec<ProbeSpec>,
    /// Arguments of the server besides those that every test's has.
    pub server_args: &'static [&'static str],
    /// Its devices, if it has a PCI bus.
    pub devices: Option<Devices>,
}

/// Arguments for a kernel that writes little on its console and leaves out the self-tests of its cryptography, which
/// are over half of a boot of 6.1 in `lab-intel`.
pub const QUIET: &str = "quiet cryptomgr.notests initcall_blacklist=jent_mod_init";

impl Config {
    /// Debian's 6.1 kernel on one vCPU, in 512 MiB, with little on its console.
    pub fn new(plan: &'static str) -> Self {
        Self {
            kernel: files::BZIMAGE_6_1,
            as_packaged: false,
            boot: BootMethod::Elf,
            vcpus: 1,
            memory_mib: 512,
            kernel_args: QUIET,
            plan,
            probes: Vec::new(),
            server_args: &[],
            devices: None,
        }
    }

    /// Returns the request that makes it.
    pub fn request(&self, cx: &Context) -> CreateVmRequest {
        let kernel = if self.as_packaged || self.boot != BootMethod::Elf {
            cx.file(self.kernel)
        } else {
            cx.kernel(self.kernel)
        };
        CreateVmRequest {
            name: VM.into(),
            kernel,
            initramfs: cx.file(files::INITRAMFS),
            cmdline: format!("console=ttyS0 {} -- {}", self.kernel_args, self.plan),
            memory_mib: self.memory_mib,
            vcpus: self.vcpus,
            boot: self.boot.into(),
            probes: self.probes.clone(),
            hold: false,
            devices: self.devices.clone(),
            ..CreateVmRequest::default()
        }
    }
}

/// A running guest, its server, and a connection to it.
#[derive(Debug)]
pub struct Guest {
    /// The connection.
    pub client: Client,
    /// The guest's console.
    pub console: Console,
    /// The probes planted before its first instruction.
    pub probes: Vec<Probe>,
    server: Server,
    /// Its kind and where it is kept for other tests, if other tests may have it.
    keeps: Option<(Kind, KeptGuests)>,
    /// True if a workload has changed it for good.
    is_changed: AtomicBool,
}

impl Guest {
    /// Starts a server and boots a guest on it.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn boot(cx: &Context, config: &Config) -> Result<Self, Failure> {
        let guest = Self::hold(cx, config).await?;
        guest.client.start_vm(VM).await?;
        Ok(guest)
    }

    /// Starts a server and makes a guest on it that waits for its start.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn hold(cx: &Context, config: &Config) -> Result<Self, Failure> {
        Self::hold_on(cx, config, |_| {}).await
    }

    /// As [`hold`](Self::hold); `change` can change the request before.
    ///
    /// # Errors
    /// As said.
    pub async fn hold_changed(
        cx: &Context,
        config: &Config,
        change: impl FnOnce(&mut CreateVmRequest),
    ) -> Result<Self, Failure> {
        let server = Server::start_with(cx, |command| {
            command.args(config.server_args);
        })?;
        let mut request = config.request(cx);
        change(&mut request);
        Self::hold_at(server, request).await
    }

    /// As [`hold`](Self::hold); `change` can change the server's command before.
    ///
    /// # Errors
    /// As said.
    pub async fn hold_on(
        cx: &Context,
        config: &Config,
        change: impl FnOnce(&mut Command),
    ) -> Result<Self, Failure> {
        let server = Server::start_with(cx, |command| {
            command.args(config.server_args);
            change(command);
        })?;
        Self::hold_at(server, config.request(cx)).await
    }

    async fn hold_at(server: Server, request: CreateVmRequest) -> Result<Self, Failure> {
        let client = server.client().await?;
        let request = CreateVmRequest {
            hold: true,
            ..request
        };
        let (_, probes) = client.create_vm(request).await?;
        let guest = Self::made(server, client).await?;
        Ok(Self { probes, ..guest })
    }

    /// A guest that has been made on a server, by this client.
    ///
    /// # Errors
    /// If it has no console.
    pub async fn made(server: Server, client: Client) -> Result<Self, Failure> {
        let console = Console::attach(&client, VM).await?;
        Ok(Self {
            client,
            console,
            probes: Vec::new(),
            server,
            keeps: None,
            is_changed: AtomicBool::new(false),
        })
    }

    /// Returns a guest that does what lines of input ask for and that waits for one. Another test may have used it
    /// before.
    ///
    /// # Errors
    /// If it doesn't get so far.
    pub async fn ready(cx: &Context, kernel: &'static str, vcpus: u32) -> Result<Self, Failure> {
        let kind = Kind { kernel, vcpus };
        let mut guest = match cx.kept.take(kind) {
            Some(guest) => {
                note("# the guest has been another test's");
                guest
            }
            None => Self::new(cx, kernel, vcpus).await?,
        };
        guest.keeps = Some((kind, cx.kept.clone()));
        Ok(guest)
    }

    /// As [`Self::ready`], but newly booted, for tests that another test's probes would mislead. It isn't given back.
    ///
    /// # Errors
    /// As said.
    pub async fn new(cx: &Context, kernel: &'static str, vcpus: u32) -> Result<Self, Failure> {
        let config = Config {
            kernel,
            vcpus,
            ..Config::new("workload=echo")
        };
        let mut guest = Self::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        Ok(guest)
    }

    /// As [`Self::ready`], but no probe becomes a jump.
    ///
    /// # Errors
    /// As said.
    pub async fn breakpoints(
        cx: &Context,
        kernel: &'static str,
        vcpus: u32,
    ) -> Result<Self, Failure> {
        let guest = Self::ready(cx, kernel, vcpus).await?;
        guest.client.set_optimization(VM, false).await?;
        Ok(guest)
    }

    /// Where its server listens, as a URL.
    pub fn endpoint(&self) -> &str {
        &self.server.endpoint
    }

    /// Its process.
    ///
    /// # Errors
    /// If it has gone.
    pub fn process(&self) -> Result<Process, Failure> {
        self.server.vm_process(VM)
    }

    /// Types a line.
    ///
    /// # Errors
    /// If the console has ended.
    pub async fn say(&self, line: &str) -> Result<(), Failure> {
        if !kept::leaves_nothing(line) {
            self.is_changed.store(true, Ordering::Relaxed);
        }
        self.console.send(format!("{line}\n").as_bytes()).await
    }

    /// Has a guest that is [`ready`](Self::ready) do a workload, and returns its report.
    ///
    /// # Errors
    /// If the guest can't do it, or ends.
    pub async fn work(&mut self, workload: &str) -> Result<Value, Failure> {
        self.say(&format!("workload={workload}")).await?;
        self.console.report("done").await
    }

    /// Checks that the guest's kernel has nothing to complain about. Then ends a guest that is [`ready`](Self::ready),
    /// or gives it back for another test.
    ///
    /// # Errors
    /// If it has, or the guest doesn't switch itself off.
    pub async fn finish(mut self) -> Result<(), Failure> {
        let too_many = match self.keeps.take() {
            Some((kind, kept)) if !self.is_changed.load(Ordering::Relaxed) => {
                self.healthy().await?;
                self.clear().await?;
                kept.put(kind, self)
            }
            _ => Some(self),
        };
        match too_many {
            Some(guest) => guest.end().await,
            None => Ok(()),
        }
    }

    /// As [`Self::finish`], but always ends the guest.
    ///
    /// # Errors
    /// If it has, or the guest doesn't switch itself off.
    pub async fn end(mut self) -> Result<(), Failure> {
        self.quit().await?;
        self.power_off().await
    }

    /// As [`Self::end`], but doesn't wait for the end. What the server reports can be read to its end before the server
    /// ends with [`power_off`](Self::power_off).
    ///
    /// # Errors
    /// If the guest's kernel has something to complain about.
    pub async fn quit(&mut self) -> Result<(), Failure> {
        self.healthy().await?;
        self.say("quit").await
    }

    /// Removes all probes, and sets switches to their first values.
    async fn clear(&self) -> Result<(), Failure> {
        let probes = self.client.list_probes(VM).await?;
        let ids = probes.iter().map(|probe| probe.id).collect();
        if !probes.is_empty() {
            self.client.unregister_probes(VM, ids, Vec::new()).await?;
        }
        self.client.arm_probes(VM).await?;
        self.client.set_optimization(VM, true).await?;
        Ok(())
    }

    /// Fails if the log of the guest's kernel shows trouble.
    ///
    /// # Errors
    /// As said.
    pub async fn healthy(&mut self) -> Result<(), Failure> {
        let log = self.work("log").await?;
        quiet(&log)
    }

    /// Registers several probes in one batch.
    ///
    /// # Errors
    /// If the server refuses them.
    pub async fn probes(&self, texts: &[&str]) -> Result<Vec<Probe>, Failure> {
        Ok(self.client.register_probes(VM, specs(texts)?).await?)
    }

    /// Returns the error with which the server refuses a probe.
    ///
    /// # Errors
    /// If it accepts it.
    pub async fn refusal(&self, text: &str) -> Result<ClientError, Failure> {
        match self.probe(text).await {
            Ok(probe) => Err(wrong!("{text} was accepted: {probe:?}")),
            Err(Failure::Client(error)) => Ok(error),
            Err(other) => Err(other),
        }
    }

    /// Removes probes, and returns them as they were then.
    ///
    /// # Errors
    /// If one isn't there.
    pub async fn remove(&self, names: &[&str]) -> Result<Vec<Probe>, Failure> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Ok(self.client.unregister_probes(VM, Vec::new(), names).await?)
    }

    /// Returns the address of a symbol that exists once.
    ///
    /// # Errors
    /// If there is none, or several.
    pub async fn symbol(&self, name: &str) -> Result<u64, Failure> {
        let (symbols, _) = self.client.lookup_symbols(VM, name, 0).await?;
        match &*symbols {
            [symbol] => Ok(symbol.address),
            _ => Err(wrong!("{} symbols {name}", symbols.len())),
        }
    }

    /// Reads guest memory as it is, with what probes have written there; all of it or a failure.
    ///
    /// # Errors
    /// If not all is mapped.
    pub async fn memory(&self, address: u64, length: usize) -> Result<Vec<u8>, Failure> {
        /// The most that one call returns.
        const MOST: usize = 1 << 20;
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let more = (length - bytes.len()).min(MOST) as u32;
            let at = address + bytes.len() as u64;
            let request = ReadMemoryRequest {
                vm: VM.into(),
                vcpu: 0,
                address: at,
                length: more,
                as_is: true,
            };
            let part = self.client.read_memory_by(request).await?;
            if part.is_empty() {
                return Err(wrong!("{at:#x} isn't mapped"));
            }
            bytes.extend(part);
        }
        Ok(bytes)
    }

    /// Registers one probe.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn probe(&self, text: &str) -> Result<Probe, Failure> {
        let spec = spec::parse(text).map_err(|error| wrong!("{error}"))?;
        let mut probes = self.client.register_probes(VM, vec![spec]).await?;
        probes
            .pop()
            .ok_or_else(|| wrong!("the server answered with no probe"))
    }

    /// Returns the probe of this name as it is now.
    ///
    /// # Errors
    /// If there is none.
    pub async fn listed(&self, name: &str) -> Result<Probe, Failure> {
        let probes = self.client.list_probes(VM).await?;
        let found = probes.into_iter().find(|probe| probe.name == name);
        found.ok_or_else(|| wrong!("probe {name:?} isn't listed"))
    }

    /// Reads the console to its end, and returns how the guest ended.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn ending(&mut self) -> Result<Ending, Failure> {
        while self.console.line().await?.is_some() {}
        Ok(self.client.wait_vm(VM).await?)
    }

    /// Waits until the guest has switched itself off; any other ending is a failure. Then ends the server.
    ///
    /// # Errors
    /// As said.
    pub async fn power_off(mut self) -> Result<(), Failure> {
        let ending = self.ending().await?;
        if ending.kind() != EndingKind::PowerOff || ending.exit_code != 0 {
            return Err(wrong!(
                "the guest ended otherwise than by power-off: {ending:?}"
            ));
        }
        match self.server.stop()? {
            Some(0) => Ok(()),
            code => Err(wrong!("the server ended with exit code {code:?}")),
        }
    }
}

/// Fails if a report of the guest's PID 1 contains complaints of its kernel.
///
/// # Errors
/// As said.
pub fn quiet(report: &Value) -> Result<(), Failure> {
    match report["complaints"].as_array().map(Vec::as_slice) {
        Some([]) => Ok(()),
        _ => Err(wrong!(
            "the guest's kernel complains: {}",
            report["complaints"]
        )),
    }
}

/// Probe specifications from their command-line form.
///
/// # Errors
/// If one can't be read.
pub fn specs(texts: &[&str]) -> Result<Vec<ProbeSpec>, Failure> {
    texts
        .iter()
        .map(|text| spec::parse(text).map_err(|error| wrong!("{error}")))
        .collect()
}
