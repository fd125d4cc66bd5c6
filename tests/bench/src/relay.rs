//! A connection whose bytes are counted.

use std::io;
use std::net::Ipv4Addr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes one client's connection on to a server.
#[derive(Debug)]
pub struct Relay {
    /// Where the client connects.
    pub endpoint: String,
    counting: JoinHandle<io::Result<u64>>,
}

impl Relay {
    /// Makes a relay to the server at this endpoint, `SCHEME://ADDRESS:PORT`.
    ///
    /// # Errors
    /// There is no port.
    pub async fn to(endpoint: &str) -> io::Result<Self> {
        let (scheme, server) = endpoint
            .split_once("://")
            .ok_or(io::ErrorKind::InvalidInput)?;
        let server = server.to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Ok(Self {
            endpoint: format!("{scheme}://{}", listener.local_addr()?),
            counting: tokio::spawn(async move {
                let (mut client, _) = listener.accept().await?;
                let mut server = TcpStream::connect(server).await?;
                let (_, to_client) = copy_bidirectional(&mut client, &mut server).await?;
                Ok(to_client)
            }),
        })
    }

    /// Returns the bytes from the server to the client, when both have closed the connection.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn counted(self) -> io::Result<u64> {
        self.counting.await?
    }
}
