//! The whole server in this process, with a client that is connected to it over loopback.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use iced_x86::IcedError;
use tokio::sync::oneshot;
use vmprobe_client::v1::CreateVmRequest;
use vmprobe_client::{Client, ClientError};
use vmprobe_server::testing::Publishers;
use vmprobe_server::{BindError, ListenAddress, ServeOptions, Server, Settings, VmProgram};

/// Memory of a guest in MiB.
const GUEST_MIB: u64 = 64;

/// Why there is no server, no client, or no guest.
#[derive(Debug, thiserror::Error)]
pub enum InProcessError {
    /// There is no runtime, or no file to be written.
    #[error("can't {0}")]
    Io(&'static str, #[source] io::Error),
    /// The guest's code is wrong.
    #[error("the guest's code doesn't assemble")]
    Assemble(#[from] IcedError),
    /// The server does not start.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Does some work with a server of its own, which ends afterwards.
///
/// # Errors
/// The server doesn't start, can't be reached, or the work fails.
pub async fn with_server<R, E: From<InProcessError>>(
    work: impl AsyncFnOnce(&Client, &Publishers) -> Result<R, E>,
) -> Result<R, E> {
    let publishers = Publishers::default();
    let listen = ListenAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let program = VmProgram::Here(publishers.clone());
    let mut settings = Settings::default();
    settings.files.read = vec!["/".into()];
    let options = ServeOptions::new(listen, settings, program);
    let server = Server::bind(options).await.map_err(InProcessError::from)?;
    let endpoint = server.endpoints()[0].clone();
    let (end, ended) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async {
        // Also when nobody is left to say so.
        let _ = ended.await;
    }));
    let client = Client::connect(&endpoint).await;
    let client = client.map_err(InProcessError::from)?;
    let done = work(&client, &publishers).await;
    drop(end);
    // Its errors are those of the calls before.
    let _ = serving.await;
    done
}

/// Makes a guest of this kernel, which waits to be started.
///
/// # Errors
/// The kernel can't be written to a file, or the server refuses.
pub async fn create_guest(
    client: &Client,
    name: &str,
    kernel: &[u8],
) -> Result<(), InProcessError> {
    let path = std::env::temp_dir().join(format!("vmprobe-bench-{}", std::process::id()));
    std::fs::write(&path, kernel)
        .map_err(|error| InProcessError::Io("write the guest's kernel", error))?;
    let request = CreateVmRequest {
        name: name.into(),
        kernel: path.to_string_lossy().into_owned(),
        memory_mib: GUEST_MIB,
        hold: true,
        ..Default::default()
    };
    let created = client.create_vm(request).await;
    std::fs::remove_file(&path)
        .map_err(|error| InProcessError::Io("remove the guest's kernel", error))?;
    created?;
    Ok(())
}
