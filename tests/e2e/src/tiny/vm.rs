//! A tiny guest on a server of its own.

use std::process::Command;

use vmprobe_client::Client;
use vmprobe_client::v1::{CreateVmRequest, Ending, EndingKind};

use crate::console::Console;
use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, check_eq};

/// Name of every test's only VM.
pub const VM: &str = "tiny";

/// A tiny guest that has not run yet.
#[derive(Debug)]
pub struct Tiny {
    /// The connection.
    pub client: Client,
    /// The guest's serial port.
    pub console: Console,
    /// The server.
    pub server: Server,
}

impl Tiny {
    /// Makes a VM of this kernel.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn new(cx: &Context, kernel: &[u8], memory_mib: u64) -> Result<Self, Failure> {
        Self::new_with(cx, kernel, memory_mib, |_| {}).await
    }

    /// As [`Self::new`]; `change` can change the server's command before.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn new_with(
        cx: &Context,
        kernel: &[u8],
        memory_mib: u64,
        change: impl FnOnce(&mut Command),
    ) -> Result<Self, Failure> {
        let server = Server::start_with(cx, change)?;
        Self::on(server, kernel, |request| request.memory_mib = memory_mib).await
    }

    /// Makes a VM of this kernel. `change` can change its request, which asks for 64 MiB.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn with(
        cx: &Context,
        kernel: &[u8],
        change: impl FnOnce(&mut CreateVmRequest),
    ) -> Result<Self, Failure> {
        Self::on(Server::start(cx)?, kernel, change).await
    }

    async fn on(
        server: Server,
        kernel: &[u8],
        change: impl FnOnce(&mut CreateVmRequest),
    ) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join("tiny-kernel");
        std::fs::write(&path, kernel).map_err(Failure::io("write the tiny kernel"))?;
        let client = server.client().await?;
        let mut request = CreateVmRequest {
            name: VM.into(),
            kernel: path.to_string_lossy().into_owned(),
            memory_mib: 64,
            hold: true,
            ..Default::default()
        };
        change(&mut request);
        client.create_vm(request).await?;
        let console = Console::attach(&client, VM).await?;
        Ok(Self {
            client,
            console,
            server,
        })
    }

    /// Starts the guest.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn start(&self) -> Result<(), Failure> {
        self.client.start_vm(VM).await?;
        Ok(())
    }

    /// Waits for its end, which must be a power-off.
    ///
    /// # Errors
    /// If it is another.
    pub async fn power_off(&self) -> Result<(), Failure> {
        self.ends_by(EndingKind::PowerOff, 0).await.map(drop)
    }

    /// Waits for its end, which must be this one.
    ///
    /// # Errors
    /// If it is another.
    pub async fn ends_by(&self, kind: EndingKind, exit_code: u32) -> Result<Ending, Failure> {
        let ending = self.client.wait_vm(VM).await?;
        check_eq!(ending.kind(), kind, "the ending ({})", ending.detail);
        check_eq!(ending.exit_code, exit_code, "its exit code");
        Ok(ending)
    }
}

/// A little-endian number of 8 bytes, as a guest sends it.
pub fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
