//! From arguments to a request for a VM.

use std::path::{Path, absolute};

use vmprobe_client::spec::{self, SpecError};
use vmprobe_client::v1::{BootMethod, CreateVmRequest, ProbeSpec};

use crate::cli::{Boot, Guest};
use crate::failure::Failure;

pub fn request(name: &str, guest: &Guest, hold: bool) -> Result<CreateVmRequest, Failure> {
    let boot = match guest.boot {
        Boot::Elf => BootMethod::Elf,
        Boot::Bzimage => BootMethod::Bzimage,
    };
    Ok(CreateVmRequest {
        name: name.to_owned(),
        kernel: path(&guest.kernel)?,
        initramfs: guest
            .initramfs
            .as_deref()
            .map(path)
            .transpose()?
            .unwrap_or_default(),
        cmdline: guest.cmdline.clone(),
        memory_mib: guest.memory,
        vcpus: guest.vcpus,
        boot: boot.into(),
        probes: specs(&guest.probes)?,
        hold,
    })
}

pub fn specs(texts: &[String]) -> Result<Vec<ProbeSpec>, SpecError> {
    texts.iter().map(|text| spec::parse(text)).collect()
}

/// The server may have been started elsewhere; what the user typed counts from here.
fn path(path: &Path) -> Result<String, Failure> {
    let absolute = absolute(path).map_err(Failure::CurrentFolder)?;
    absolute
        .into_os_string()
        .into_string()
        .map_err(|path| Failure::PathNotUtf8 { path })
}
