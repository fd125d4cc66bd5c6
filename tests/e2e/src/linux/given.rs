//! Kernels with a separate list of symbols, and kernels without types.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use vmprobe_client::v1::CreateVmRequest;
use vmprobe_client::{Client, ClientError};

use super::guest::{Config, Guest, VM, files, specs};
use super::jumps::{self, jump};
use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "a_kernel_without_symbols_and_types_is_probed_by_a_list_of_symbols",
    ids: &["VM11"],
    needs: Needs::Linux,
    run: without_symbols,
}];

/// A name for `do_sys_openat2` that no kernel has.
const ALIAS: &str = "a_name_of_the_list_alone";

fn without_symbols(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        let own = Config {
            kernel: files::BZIMAGE_6_12,
            ..Config::new("workload=none")
        };
        let own = own.request(cx);
        let list = List::of(&client, &own).await?;
        let other = CreateVmRequest {
            kernel: cx.kernel(files::BZIMAGE_6_1),
            symbols: list.path("own", |_| true)?,
            ..own.clone()
        };
        refused(&client, other, "symbols", "doesn't belong to the kernel").await?;

        let kernel = list.without_symbols(Path::new(&own.kernel))?;
        let without = CreateVmRequest {
            kernel: kernel.to_string_lossy().into_owned(),
            ..own
        };
        refused(&client, without.clone(), "kernel", "holds no symbols").await?;
        drop(server);

        let config = Config {
            kernel: files::BZIMAGE_6_12,
            probes: specs(&[
                &format!("p:open {ALIAS}"),
                &format!("r:opened {ALIAS} $retval"),
            ])?,
            ..Config::new("workload=echo")
        };
        let is_no_type = |name: &str| !name.ends_with("_BTF");
        let symbols = list.path("without-types", is_no_type)?;
        let change = |request: &mut CreateVmRequest| {
            request.kernel.clone_from(&without.kernel);
            request.symbols.clone_from(&symbols);
        };
        let mut guest = Guest::hold_changed(cx, &config, change).await?;
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        without_types(&guest).await?;
        let before = jump(&guest, "open").await?;
        guest.work("files count=3").await?;
        let now = guest.listed("open").await?;
        check!(now.hits >= before.hits + 3, "3 files were opened: {now:?}");
        jumps::no_exits(&before, &now, "of a jump")?;
        let opened = guest.listed("opened").await?;
        check!(opened.hits >= 3, "3 calls returned: {opened:?}");
        guest.finish().await?;
        let count = list.symbols.len();
        pass_with(format!("{count} symbols"))
    })
}

/// Checks that calls which need types say so.
async fn without_types(guest: &Guest) -> Result<(), Failure> {
    const BTF: &str = "BTF";
    for text in [
        "p vfs_open path->dentry",
        "p vfs_open if comm == \"sh\"",
        "p tun:tun_chr_open",
    ] {
        let refusal = guest.refusal(text).await?.to_string();
        check!(refusal.contains(BTF), "{text} was refused: {refusal}");
    }
    let described = guest.client.describe_type(VM, "struct file").await;
    let described = described.map_err(|error| error.to_string());
    check!(
        described.as_ref().is_err_and(|error| error.contains(BTF)),
        "the description of a type: {described:?}"
    );
    Ok(())
}

/// The symbols of a kernel, as its image has them.
struct List {
    symbols: Vec<vmprobe_client::v1::Symbol>,
}

impl List {
    /// Makes the VM of a request, asks for its symbols, and deletes the VM.
    async fn of(client: &Client, request: &CreateVmRequest) -> Result<Self, Failure> {
        let request = CreateVmRequest {
            hold: true,
            ..request.clone()
        };
        client.create_vm(request).await?;
        let (symbols, more) = client.lookup_symbols(VM, "*", 1_000_000).await?;
        check!(!more, "the list of symbols is cut off");
        client.kill_vm(VM).await?;
        client.wait_vm(VM).await?;
        client.delete_vm(VM).await?;
        Ok(Self { symbols })
    }

    fn address(&self, name: &str) -> Result<u64, Failure> {
        let found = self.symbols.iter().find(|symbol| symbol.name == name);
        found
            .map(|symbol| symbol.address)
            .ok_or_else(|| wrong!("no symbol {name}"))
    }

    /// The path of a new file with those of the symbols that are wanted, and [`ALIAS`].
    fn path(&self, file: &str, is_wanted: impl Fn(&str) -> bool) -> Result<String, Failure> {
        let mut text = String::new();
        for symbol in self.symbols.iter().filter(|symbol| is_wanted(&symbol.name)) {
            let _never_fails = writeln!(
                text,
                "{:016x} {} {}",
                symbol.address, symbol.kind, symbol.name
            );
        }
        let _never_fails = writeln!(text, "{:016x} T {ALIAS}", self.address("do_sys_openat2")?);
        let path = std::env::temp_dir().join(format!("System.map-{file}"));
        std::fs::write(&path, text).map_err(Failure::io("write a list of symbols"))?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// Writes a copy of the kernel whose headers say that it has no symbols.
    fn without_symbols(&self, kernel: &Path) -> Result<PathBuf, Failure> {
        let mut file = std::fs::read(kernel).map_err(Failure::io("read the kernel"))?;
        let count = offset(&file, self.address("kallsyms_num_syms")?);
        let count = count.and_then(|at| file.get_mut(at..at + 4));
        let count = count.ok_or_else(|| wrong!("kallsyms_num_syms isn't in the kernel's file"))?;
        check_eq!(
            u32::from_le_bytes([count[0], count[1], count[2], count[3]]) as usize,
            self.symbols.len(),
            "symbols that the kernel counts itself"
        );
        count.fill(0);
        let path = std::env::temp_dir().join("vmlinux-without-symbols");
        std::fs::write(&path, file).map_err(Failure::io("write a kernel"))?;
        Ok(path)
    }
}

/// Returns the offset in an ELF file of the byte at a virtual address.
fn offset(file: &[u8], address: u64) -> Option<usize> {
    const PROGRAM_HEADER: usize = 56;
    let word = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let headers = word(32)? as usize;
    let count = u16::from_le_bytes(*file.get(56..)?.first_chunk()?);
    (0..usize::from(count)).find_map(|index| {
        let header = headers + index * PROGRAM_HEADER;
        let (offset, start, len) = (word(header + 8)?, word(header + 16)?, word(header + 32)?);
        let inside = address.checked_sub(start).filter(|inside| *inside < len)?;
        Some((offset + inside) as usize)
    })
}

async fn refused(
    client: &Client,
    request: CreateVmRequest,
    field: &str,
    why: &str,
) -> Result<(), Failure> {
    match client.create_vm(request).await {
        Err(ClientError::InvalidArgument {
            fields, message, ..
        }) => {
            check_eq!(fields, [field], "the field of: {message}");
            check!(message.contains(why), "{field} was refused: {message}");
            Ok(())
        }
        other => Err(wrong!("{field} should be refused ({why}): {other:?}")),
    }
}
