//! Where the vCPUs of a guest stand.

use vmprobe_client::{Client, ClientError};

use crate::tracing::place;

/// Where a vCPU stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub vcpu: u32,
    /// The task's name and number, where they are known.
    pub task: Option<(String, u32)>,
    /// The call stack, innermost frame first.
    pub stack: Vec<String>,
}

/// Pauses a guest, and looks at all its vCPUs.
///
/// # Errors
/// The guest has ended meanwhile, or the server has gone.
pub async fn of_all(client: &Client, vm: &str, vcpus: u32) -> Result<Vec<Standing>, ClientError> {
    client.pause_vm(vm).await?;
    let mut all = Vec::new();
    for vcpu in 0..vcpus {
        let found = client.read_stack(vm, vcpu).await?;
        let mut stack = Vec::new();
        for address in &found.addresses {
            stack.push(place_of(client, vm, *address).await);
        }
        all.push(Standing {
            vcpu,
            task: found.comm.zip(found.pid),
            stack,
        });
    }
    Ok(all)
}

/// Returns an address as the kernel writes it, `vfs_read+0x15/0x2e0 [module]`, or the bare number where it is in no
/// function.
pub async fn place_of(client: &Client, vm: &str, address: u64) -> String {
    let found = client.locate(vm, address).await.ok().and_then(place);
    found.map_or_else(|| format!("{address:#x}"), |place| place.to_string())
}
