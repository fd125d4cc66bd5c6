//! Guests whose events are exported.

use std::fs;
use std::path::Path;

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, r8, rax, rbx, rdx};
use tiny_kernel as image;
use vmprobe_client::v1::CreateVmRequest;
use vmprobe_client::{Client, spec};

use crate::test::{Failure, check_eq, wrong};

/// The guest.
pub const VM: &str = "web-1";
/// The probe that is exported. RBX is the number of the hit, from 0.
pub const DEFINITION: &str = "p:pass body n=%bx:u64";
/// A probe at the same place that isn't removed during the export.
const COUNTED: &str = "counted=body count";
/// Hits of a guest that doesn't end by itself.
pub const ENDLESS: u32 = i32::MAX as u32;
/// Ticks of the guest's counter between two hits: about half a millisecond, so that no reader of events falls behind.
const PACE: i32 = 1_000_000;

/// Builds a kernel that goes through `body` this many times.
fn kernel(hits: u32) -> Result<Vec<u8>, Failure> {
    let counter = |a: &mut CodeAssembler| -> Result<(), IcedError> {
        a.rdtsc()?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)
    };
    Ok(image::build(|a, names| {
        let (mut again, mut wait, mut end) = (a.create_label(), a.create_label(), a.create_label());
        counter(a)?;
        a.mov(r8, rax)?;
        a.xor(rbx, rbx)?;
        a.set_label(&mut again)?;
        a.add(r8, PACE)?;
        a.set_label(&mut wait)?;
        counter(a)?;
        a.cmp(rax, r8)?;
        a.jb(wait)?;
        names.here(a, "body")?;
        a.inc(rbx)?;
        names.here(a, "after")?;
        a.cmp(rbx, hits as i32)?;
        a.jb(again)?;
        a.set_label(&mut end)?;
        a.jmp(end)
    })?)
}

/// Creates a guest that goes through `body` this many times, once it is started. Hits are also counted by a probe of
/// another client.
pub async fn create(client: &Client, folder: &Path, hits: u32) -> Result<(), Failure> {
    let path = folder.join("kernel");
    fs::write(&path, kernel(hits)?).map_err(Failure::io("write a kernel"))?;
    let request = CreateVmRequest {
        name: VM.into(),
        kernel: path.to_string_lossy().into_owned(),
        memory_mib: 64,
        hold: true,
        ..Default::default()
    };
    client.create_vm(request).await?;
    let counted = spec::parse(COUNTED).map_err(|error| wrong!("{error}"))?;
    client.register_probes(VM, vec![counted]).await?;
    Ok(())
}

/// Checks the number of hits.
pub async fn check_hits(client: &Client, expected: u64) -> Result<(), Failure> {
    let probes = client.list_probes(VM).await?;
    let counted = probes.iter().find(|probe| probe.name == "counted");
    let hits = counted.map(|probe| probe.hits);
    check_eq!(hits, Some(expected), "hits");
    Ok(())
}
