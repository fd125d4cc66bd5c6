//! The arguments of commands that look at a guest that stands still.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::TargetArgs;
use super::format::FormatArgs;

pub const GDB_EXAMPLES: &str = "\
Examples:
  vmprobe gdb                                 wait for gdb on 127.0.0.1:1234
  gdb vmlinux -ex 'target remote :1234'
  gdb vmlinux -ex 'target remote | vmprobe gdb --stdio'

The VM is paused while gdb is attached and doesn't let it go on. When gdb detaches, ends or dies, its
breakpoints are removed and the guest goes on. Setting registers and writing memory need a server that
was started with --allow-changes.";

/// Let gdb debug a guest's kernel.
#[derive(Debug, Args)]
pub struct Gdb {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Where to wait for gdb, an address of this host; port 0 takes any free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:1234")]
    pub listen: SocketAddr,
    /// Speak with gdb over standard input and output, for `target remote | vmprobe gdb --stdio`
    #[arg(long, conflicts_with = "listen")]
    pub stdio: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}

pub const DUMP_EXAMPLES: &str = "\
Examples:
  vmprobe dump -o guest.core
  drgn -c guest.core -s vmlinux
  crash vmlinux guest.core

The guest is paused while its memory is copied, and goes on afterwards. Pages of zeros become holes of the file.";

/// Write a guest's memory and vCPUs to an ELF core file, for crash and drgn.
#[derive(Debug, Args)]
pub struct DumpArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The file; one that is there is replaced
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}
