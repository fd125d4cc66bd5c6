//! A Linux guest with the tests' own PID 1.

use vmprobe_client::v1::{BootMethod, CreateVmRequest, Ending, EndingKind, Probe, ProbeSpec};
use vmprobe_client::{Client, spec};

use crate::console::Console;
use crate::context::Context;
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
    /// How it is started.
    pub boot: BootMethod,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Arguments of the kernel besides `console=ttyS0`.
    pub kernel_args: &'static str,
    /// What PID 1 does.
    pub plan: &'static str,
    /// Probes planted before the first instruction.
    pub probes: Vec<ProbeSpec>,
}

impl Config {
    /// Debian's 6.1 kernel on one vCPU with little on its console.
    pub fn new(plan: &'static str) -> Self {
        Self {
            kernel: files::BZIMAGE_6_1,
            boot: BootMethod::Elf,
            vcpus: 1,
            kernel_args: "quiet",
            plan,
            probes: Vec::new(),
        }
    }

    /// The request that makes it.
    pub fn request(&self, cx: &Context) -> CreateVmRequest {
        CreateVmRequest {
            name: VM.into(),
            kernel: cx.file(self.kernel),
            initramfs: cx.file(files::INITRAMFS),
            cmdline: format!("console=ttyS0 {} -- {}", self.kernel_args, self.plan),
            memory_mib: 512,
            vcpus: self.vcpus,
            boot: self.boot.into(),
            probes: self.probes.clone(),
            hold: false,
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
}

impl Guest {
    /// Starts a server and boots a guest on it.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn boot(cx: &Context, config: &Config) -> Result<Self, Failure> {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        let (_, probes) = client.create_vm(config.request(cx)).await?;
        let console = Console::attach(&client, VM).await?;
        Ok(Self {
            client,
            console,
            probes,
            server,
        })
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

    /// The probe of this name as it is now.
    ///
    /// # Errors
    /// If there is none.
    pub async fn listed(&self, name: &str) -> Result<Probe, Failure> {
        let probes = self.client.list_probes(VM).await?;
        let found = probes.into_iter().find(|probe| probe.name == name);
        found.ok_or_else(|| wrong!("probe {name:?} isn't listed"))
    }

    /// Reads the console to its end, and says how the guest ended.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn ending(&mut self) -> Result<Ending, Failure> {
        while self.console.line().await?.is_some() {}
        Ok(self.client.wait_vm(VM).await?)
    }

    /// Waits for the guest to switch itself off; any other ending is a failure. Then ends the
    /// server.
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
