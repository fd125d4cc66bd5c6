//! Arguments of a guest: its kernel, and the machine that it gets.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::DeviceArgs;

/// What a guest is made of.
#[derive(Debug, Args)]
pub struct GuestArgs {
    /// Kernel: a bzImage or a vmlinux
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// What a guest has besides its kernel.
#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Symbols of the kernel, in place of those in it: its unstripped vmlinux, or its System.map
    #[arg(long, value_name = "FILE")]
    pub symbols: Option<PathBuf>,
    /// Initial RAM disk
    #[arg(long, value_name = "FILE")]
    pub initramfs: Option<PathBuf>,
    /// Kernel command line [default: console=ttyS0, or with --console virtio: earlyprintk=ttyS0 console=hvc0]
    #[arg(long, value_name = "TEXT")]
    pub cmdline: Option<String>,
    /// Guest memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..))]
    pub memory: u64,
    /// Make guest memory of the host's huge pages, of which enough have to be free
    #[arg(long)]
    pub huge_pages: bool,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub vcpus: u32,
    /// NUMA nodes that memory and virtual CPUs are divided among
    #[arg(long = "numa", value_name = "NODES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub numa_nodes: u32,
    /// How the kernel is started
    #[arg(long, value_enum, default_value_t = Boot::Elf)]
    pub boot: Boot,
    /// What the guest's console is
    #[arg(long, value_enum, default_value_t = ConsoleKind::Serial)]
    pub console: ConsoleKind,
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// A probe planted before the guest's first instruction (repeatable)
    #[arg(long = "probe", value_name = "PROBE")]
    pub probes: Vec<String>,
}

impl MachineArgs {
    /// The kernel's command line. By default the console is the one that the guest has; with a virtio console the
    /// serial port shows what the kernel writes before it has that one's driver.
    pub fn cmdline(&self) -> &str {
        match (&self.cmdline, self.console) {
            (Some(cmdline), _) => cmdline,
            (None, ConsoleKind::Serial) => "console=ttyS0",
            (None, ConsoleKind::Virtio) => "earlyprintk=ttyS0 console=hvc0",
        }
    }
}

/// A guest's console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConsoleKind {
    /// The serial port, ttyS0 in Linux
    Serial,
    /// A virtio device beside it, hvc0 in Linux, which costs fewer exits; what is typed goes there
    Virtio,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Boot {
    /// The ELF inside the kernel file, entered in 64-bit mode
    Elf,
    /// A bzImage as it is: its own decompressor runs in the guest, and moves the kernel (KASLR) unless `nokaslr` is
    /// on the command line
    Bzimage,
    /// The ELF inside the kernel file, entered by PVH, in 32-bit mode
    Pvh,
}
