//! Data for watchpoints: the file mode mask of the guest's only process, which each `umask` writes once.

use vmprobe_client::Message;

use super::guest::{Guest, VM};
use super::jumps::jump;
use super::steps::must;
use crate::test::{Failure, check, wrong};

/// Returns the address of the mask. The guest's workload must be `tools`.
///
/// # Errors
/// If the guest doesn't report it, or has another value there.
pub async fn address(guest: &mut Guest) -> Result<u64, Failure> {
    let mut stream = guest.client.events(VM, Vec::new()).await?;
    guest.probe("look=__x64_sys_umask").await?;
    jump(guest, "look").await?;
    // By a call of the main thread, which lives on.
    let members = must(guest, "umask").await?;
    let task = loop {
        match stream.next().await? {
            Some(Message::Batch { events, .. }) => {
                if let Some(event) = events.first() {
                    break event.task;
                }
            }
            _ => return Err(wrong!("no event of a jump")),
        }
    };
    guest.remove(&["look"]).await?;
    let offset = |name: &str| {
        let found = members[name].as_u64();
        found.ok_or_else(|| wrong!("the guest doesn't know {name}: {members}"))
    };
    let pointer = guest.memory(task + offset("fs")?, 8).await?;
    let fs = pointer
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte));
    let mask = fs + offset("umask")?;
    let value = guest.memory(mask, 4).await?;
    check!(
        value == [0o022, 0, 0, 0],
        "{mask:#x} is no mask: {value:02x?}"
    );
    Ok(mask)
}
