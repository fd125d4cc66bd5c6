//! From arguments to a request for a VM.

use std::num::NonZeroU64;
use std::path::Path;

use vmprobe_client::spec::{self, SpecError};
use vmprobe_client::v1::network::Backend;
use vmprobe_client::v1::{
    BootMethod, CreateVmRequest, Devices, Disk, Network, Passt, ProbeSpec, RateLimit, Share, Tap,
    VirtioConsole, Vsock,
};

use crate::cli::{
    BackendArg, Boot, ConsoleKind, DeviceArgs, DiskArg, LimitArg, MachineArgs, NetworkArg,
    ShareArg, VsockArg,
};
use crate::failure::Failure;
use crate::paths::{self, PathError};
use crate::terminal;
use crate::tracing::Definition;

/// # Errors
/// A probe can't be read, one on the guest's command line included.
pub fn request(
    name: &str,
    kernel: &Path,
    machine: &MachineArgs,
    hold: bool,
) -> Result<CreateVmRequest, Failure> {
    let boot = match machine.boot {
        Boot::Elf => BootMethod::Elf,
        Boot::Bzimage => BootMethod::Bzimage,
        Boot::Pvh => BootMethod::Pvh,
    };
    if let Some(Err(error)) = spec::from_cmdline(machine.cmdline())
        .into_iter()
        .find(Result::is_err)
    {
        return Err(error.into());
    }
    Ok(CreateVmRequest {
        name: name.to_owned(),
        kernel: paths::file(kernel)?,
        initramfs: optional(machine.initramfs.as_deref())?,
        cmdline: machine.cmdline().to_owned(),
        memory_mib: machine.memory,
        vcpus: machine.vcpus,
        boot: boot.into(),
        probes: specs(&machine.probes)?,
        hold,
        devices: devices(&machine.devices, machine.console)?,
        symbols: optional(machine.symbols.as_deref())?,
        huge_pages: machine.huge_pages,
        numa_nodes: machine.numa_nodes,
    })
}

/// Returns the text of a path; empty if there is none.
fn optional(path: Option<&Path>) -> Result<String, PathError> {
    path.map_or(Ok(String::new()), paths::file)
}

/// Returns the devices; none where no device is asked for: the guest has no PCI bus then.
fn devices(asked: &DeviceArgs, console: ConsoleKind) -> Result<Option<Devices>, Failure> {
    let disks = asked.disks.iter().map(disk).collect::<Result<_, _>>()?;
    let shares = asked.shares.iter().map(share).collect::<Result<_, _>>()?;
    let networks = asked.networks.iter().map(network);
    let devices = Devices {
        disks,
        shares,
        networks: networks.collect::<Result<_, _>>()?,
        entropy: asked.entropy,
        vsock: asked.vsock.as_ref().map(vsock).transpose()?,
        console: (console == ConsoleKind::Virtio).then(virtio_console),
    };
    Ok((devices != Devices::default()).then_some(devices))
}

/// Returns a console of the size of this terminal, if there is one.
fn virtio_console() -> VirtioConsole {
    let (columns, rows) = terminal::size().unwrap_or_default();
    VirtioConsole {
        columns: columns.into(),
        rows: rows.into(),
    }
}

/// # Errors
/// The path is no text.
pub fn disk(asked: &DiskArg) -> Result<Disk, PathError> {
    Ok(Disk {
        path: paths::file(&asked.path)?,
        format: asked.format.into(),
        read_only: asked.read_only,
        limit: limit(asked.limit),
    })
}

/// # Errors
/// The path is no text.
pub fn network(asked: &NetworkArg) -> Result<Network, PathError> {
    let backend = match &asked.backend {
        BackendArg::Tap(name) => Backend::Tap(Tap { name: name.clone() }),
        BackendArg::Passt(socket) => Backend::Passt(Passt {
            socket: socket
                .as_deref()
                .map(paths::text)
                .transpose()?
                .unwrap_or_default(),
        }),
    };
    Ok(Network {
        backend: Some(backend),
        mac: asked.mac.clone(),
        limit: limit(asked.limit),
    })
}

/// Returns the limit; none where nothing is limited.
fn limit(asked: LimitArg) -> Option<RateLimit> {
    let number = |limit: Option<NonZeroU64>| limit.map_or(0, NonZeroU64::get);
    (asked != LimitArg::default()).then_some(RateLimit {
        bytes_per_second: number(asked.bytes),
        operations_per_second: number(asked.operations),
    })
}

fn share(asked: &ShareArg) -> Result<Share, Failure> {
    Ok(Share {
        tag: asked.tag.clone(),
        path: paths::text(&asked.path)?,
        mode: asked.mode.into(),
    })
}

fn vsock(asked: &VsockArg) -> Result<Vsock, Failure> {
    Ok(Vsock {
        path: paths::text(&asked.path)?,
        cid: asked.cid,
    })
}

pub fn specs(texts: &[String]) -> Result<Vec<ProbeSpec>, SpecError> {
    texts.iter().map(|text| spec::parse(text)).collect()
}

/// Reads probes with the same options for all, as if those stood behind each.
pub fn specs_with(texts: &[String], options: &[String]) -> Result<Vec<Definition>, SpecError> {
    let with = |text: &String| {
        let mut text = text.clone();
        for option in options {
            text = format!("{text} {option}");
        }
        let spec = spec::parse(&text)?;
        Ok(Definition { spec, text })
    };
    texts.iter().map(with).collect()
}
