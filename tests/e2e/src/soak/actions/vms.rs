//! VMs and images that come and go.

use std::fs;
use std::sync::Arc;

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use seeded_random::Random;
use tiny_kernel as image;
use vmprobe_client::ClientError;
use vmprobe_client::v1::{CreateVmRequest, EndingKind};

use super::{World, name};
use crate::test::{Failure, check_eq, wrong};

/// Bytes of an image at most.
const IMAGE: u64 = 300_000;

/// Uploads a file, which exists until it is deleted.
pub async fn image(world: &World, random: &mut Random) -> Result<(), Failure> {
    let client = world.connect().await?;
    let name = name("image", random);
    let file = world.file(&name);
    let mut content = vec![0; 1 + random.below(IMAGE) as usize];
    random.fill(&mut content);
    fs::write(&file, &content).map_err(Failure::io("write an image"))?;
    let pushed = client.push_image(&file, &name, Arc::new(|_| {})).await;
    fs::remove_file(&file).map_err(Failure::io("remove an image"))?;
    let pushed = pushed.map_err(|error| wrong!("an image is refused: {error}"))?;
    check_eq!(pushed.size, content.len() as u64, "the size of an image");
    let found = client.get_image(&name).await?;
    check_eq!(found.sha256, pushed.sha256, "the digest of an image");
    client.delete_image(&name).await?;
    match client.get_image(&name).await {
        Err(ClientError::NotFound(_)) => Ok(()),
        other => Err(wrong!("a deleted image: {other:?}")),
    }
}

/// How a VM ends.
#[derive(Debug, Clone, Copy)]
enum End {
    PowerOff,
    TripleFault,
    Killed,
    /// It is deleted before it has run, or while it runs.
    Held,
    Deleted,
}

/// Runs a VM for a moment beside the others.
pub async fn vm(world: &World, random: &mut Random) -> Result<(), Failure> {
    let client = world.connect().await?;
    let end = random.pick(&[
        End::PowerOff,
        End::TripleFault,
        End::Killed,
        End::Held,
        End::Deleted,
    ]);
    let name = name("vm", random);
    let kernel = world.file(&name);
    fs::write(&kernel, image::build(|a, _| code(a, end))?)
        .map_err(Failure::io("write a kernel"))?;
    let request = CreateVmRequest {
        name: name.clone(),
        kernel: kernel.to_string_lossy().into_owned(),
        memory_mib: 64,
        hold: matches!(end, End::Held),
        ..Default::default()
    };
    let created = client.create_vm(request).await;
    fs::remove_file(&kernel).map_err(Failure::io("remove a kernel"))?;
    created?;
    let expected = match end {
        End::PowerOff => Some(EndingKind::PowerOff),
        End::TripleFault => Some(EndingKind::TripleFault),
        End::Killed => {
            client.kill_vm(&name).await?;
            Some(EndingKind::Killed)
        }
        End::Held | End::Deleted => None,
    };
    if let Some(expected) = expected {
        let ending = client.wait_vm(&name).await?;
        check_eq!(
            ending.kind(),
            expected,
            "the end of {name}: {}",
            ending.detail
        );
    }
    client.delete_vm(&name).await?;
    Ok(())
}

fn code(a: &mut CodeAssembler, end: End) -> Result<(), IcedError> {
    match end {
        End::PowerOff | End::Held => image::power_off(a),
        // Without an IDT, an exception has no handler, and neither has the one that follows from it.
        End::TripleFault => a.ud2(),
        End::Killed | End::Deleted => {
            let mut still = a.create_label();
            a.set_label(&mut still)?;
            a.cli()?;
            a.hlt()?;
            a.jmp(still)
        }
    }
}
