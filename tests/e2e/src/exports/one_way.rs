//! A connection through a relay that can hold back what a server says.

use std::net::SocketAddr;

use tokio::io::{self, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::test::Failure;

/// Listens for clients, and connects each with a server, until this is dropped.
pub struct OneWay {
    /// Where clients connect.
    pub address: SocketAddr,
    is_silent: watch::Sender<bool>,
    accepting: JoinHandle<io::Result<()>>,
}

impl OneWay {
    /// Connects clients with the server at an address.
    ///
    /// # Errors
    /// There is no port.
    pub async fn to(server: String) -> Result<Self, Failure> {
        let no_port = Failure::io("listen");
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let (address, listener) = listener
            .and_then(|listener| Ok((listener.local_addr()?, listener)))
            .map_err(no_port)?;
        let (is_silent, silence) = watch::channel(false);
        let accepting = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await?;
                // The connection is refused while the server is away.
                if let Ok(server) = TcpStream::connect(&server).await {
                    tokio::spawn(connect(client, server, silence.clone()));
                }
            }
        });
        Ok(Self {
            address,
            is_silent,
            accepting,
        })
    }

    /// Holds back what the server says, or lets it through.
    pub fn silence(&self, is_silent: bool) {
        self.is_silent.send_replace(is_silent);
    }
}

impl Drop for OneWay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Relays between both connections, and ends both when one of them ends.
async fn connect(client: TcpStream, server: TcpStream, silence: watch::Receiver<bool>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let _either_has_ended = tokio::select! {
        ended = forward(from_client, to_server, None) => ended,
        ended = forward(from_server, to_client, Some(silence)) => ended,
    };
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut silence: Option<watch::Receiver<bool>>,
) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut bytes).await?;
        if read == 0 {
            return Ok(());
        }
        if let Some(silence) = &mut silence {
            let _or_the_test_is_over = silence.wait_for(|is_silent| !is_silent).await;
        }
        to.write_all(&bytes[..read]).await?;
    }
}
