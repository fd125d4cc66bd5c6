//! Connections of clients, on all kinds of sockets.

use std::fmt::{Display, Formatter};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::counters::{ConnectionCount, CountedConnection};
use super::drain::Written;
use super::tls;
use super::unix_socket::UnixSocket;
use crate::access::Reloaded;

/// How long a client may take for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at the same time.
const HANDSHAKES: usize = 256;
/// Connections beyond the limit whose calls are refused with that reason, at the same time. Further ones are closed.
const REFUSED: usize = 64;
/// How long no connection is accepted after the system has refused one: it may have run out of files.
const PAUSE: Duration = Duration::from_millis(100);

/// The client at the other end of a connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A process of this host, by a Unix socket.
    Local {
        /// Its user, if the system knows it.
        uid: Option<u32>,
    },
    /// A client that has connected by TLS.
    Tls {
        /// Its address.
        address: SocketAddr,
        /// The names in its certificate, which has been verified. Empty if it has shown none.
        names: Arc<[String]>,
    },
    /// A client that has connected by TCP, in plain text.
    PlainText(SocketAddr),
    /// A client that has connected when there were as many connections as there may be.
    TooMany {
        /// The most connections.
        most: usize,
    },
}

impl Peer {
    /// Returns how the client has connected, in one word.
    fn transport(&self) -> &'static str {
        match self {
            Self::Local { .. } => "unix",
            Self::Tls { .. } => "tls",
            Self::PlainText(_) => "plain-text",
            Self::TooMany { .. } => "refused",
        }
    }
}

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local { uid: Some(uid) } => write!(f, "the local user {uid}"),
            Self::Local { uid: None } => f.write_str("a local user"),
            Self::Tls { address, names } if names.is_empty() => write!(f, "{address}"),
            Self::Tls { address, names } => write!(f, "{} at {address}", names.join(" or ")),
            Self::PlainText(address) => write!(f, "{address}, in plain text"),
            Self::TooMany { most } => write!(f, "one client more than {most}"),
        }
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    Unix(UnixSocket),
    PlainText(TcpListener),
    Tls(TcpListener, Arc<Reloaded<ServerConfig>>),
}

/// A connection, with the client at its other end.
#[derive(Debug)]
pub struct Connection {
    peer: Peer,
    stream: Stream,
    /// Set when the client is known.
    counted: Option<CountedConnection>,
    /// The connection's place among those that there may be.
    place: Option<OwnedSemaphorePermit>,
    written: Written,
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Accepts all connections to these listeners, until the returned set is dropped. They are counted.
pub fn incoming(
    listeners: Vec<Listener>,
    count: &ConnectionCount,
) -> (JoinSet<()>, mpsc::Receiver<io::Result<Connection>>) {
    let (found, connections) = mpsc::channel(1);
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, Found(found.clone(), count.clone())));
    }
    (accepting, connections)
}

/// How many connections there may be at the same time.
#[derive(Debug)]
pub struct ConnectionLimit {
    most: usize,
    places: Arc<Semaphore>,
    refused: Arc<Semaphore>,
    written: Written,
}

impl ConnectionLimit {
    /// Sets the limit.
    pub fn new(most: usize) -> Self {
        let semaphore = |most: usize| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self {
            most,
            places: semaphore(most),
            refused: semaphore(REFUSED),
            written: Written::default(),
        }
    }

    /// Returns the count of bytes that the clients of all connections have taken.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// Gives a connection a place, or makes its calls be refused ([`Peer::TooMany`]). Returns `None` if there are too
    /// many connections of the refused kind, too.
    pub fn admit(&self, accepted: io::Result<Connection>) -> Option<io::Result<Connection>> {
        let mut connection = match accepted {
            Ok(connection) => connection,
            failed => return Some(failed),
        };
        connection.written = self.written.clone();
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            connection.place = Some(place);
        } else {
            let most = self.most;
            tracing::warn!("there are {most} connections, as many as --max-connections says");
            connection.place = Some(Arc::clone(&self.refused).try_acquire_owned().ok()?);
            connection.peer = Peer::TooMany { most };
        }
        Some(Ok(connection))
    }
}

/// The channel to which accepted connections are sent.
#[derive(Clone, Debug)]
struct Found(mpsc::Sender<io::Result<Connection>>, ConnectionCount);

impl Found {
    /// # Errors
    /// The server takes no connections any more.
    async fn tell(&self, mut connection: Connection) -> Result<(), ()> {
        connection.counted = Some(self.1.count(connection.peer.transport()));
        self.0.send(Ok(connection)).await.map_err(|_| ())
    }
}

async fn accept(listener: Listener, found: Found) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let accepted = match &listener {
            Listener::Unix(socket) => local(socket).await.map(Some),
            Listener::PlainText(listener) => plain(listener).await.map(Some),
            Listener::Tls(listener, config) => {
                let Ok(place) = Arc::clone(&handshakes).acquire_owned().await else {
                    return;
                };
                let accepted = tcp(listener).await;
                accepted.map(|(stream, address)| {
                    let shaking = shake(config.get(), stream, address, found.clone());
                    tokio::spawn(async move {
                        shaking.await;
                        drop(place);
                    });
                    None
                })
            }
        };
        match accepted {
            Ok(None) => {}
            Ok(Some(connection)) => {
                if found.tell(connection).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!("a connection can't be accepted: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Does the TLS handshake with a client, and then sends the connection on.
async fn shake(config: Arc<ServerConfig>, stream: TcpStream, address: SocketAddr, found: Found) {
    let acceptor = TlsAcceptor::from(config);
    match timeout(HANDSHAKE, handshake(acceptor, stream, address)).await {
        Ok(Ok(connection)) => {
            let _the_server_may_have_ended = found.tell(connection).await;
        }
        Ok(Err(error)) => tracing::warn!("{address} doesn't come by TLS: {error}"),
        Err(_) => tracing::warn!("{address} has taken too long to come by TLS"),
    }
}

async fn local(socket: &UnixSocket) -> io::Result<Connection> {
    let (stream, _) = socket.listener.accept().await?;
    let uid = stream.peer_cred().ok().map(|peer| peer.uid());
    Ok(Connection::new(Peer::Local { uid }, Stream::Unix(stream)))
}

async fn tcp(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, address) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, address))
}

async fn plain(listener: &TcpListener) -> io::Result<Connection> {
    let (stream, address) = tcp(listener).await?;
    Ok(Connection::new(
        Peer::PlainText(address),
        Stream::Tcp(stream),
    ))
}

async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
) -> io::Result<Connection> {
    let stream = acceptor.accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates();
    let names = match shown.and_then(<[_]>::first) {
        Some(certificate) => tls::names(certificate)?,
        None => Vec::new(),
    };
    let names = names.into();
    let peer = Peer::Tls { address, names };
    Ok(Connection::new(peer, Stream::Tls(Box::new(stream))))
}

impl Connection {
    /// Makes a connection that is neither counted nor admitted yet.
    fn new(peer: Peer, stream: Stream) -> Self {
        Self {
            peer,
            stream,
            counted: None,
            place: None,
            written: Written::default(),
        }
    }

    /// Returns the client at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.written.add(*bytes);
        }
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut dyn Both> {
        match &mut self.get_mut().stream {
            Stream::Unix(stream) => Pin::new(stream),
            Stream::Tcp(stream) => Pin::new(stream),
            Stream::Tls(stream) => Pin::new(&mut **stream),
        }
    }
}

/// A stream of bytes in both directions.
trait Both: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Both for T {}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.as_mut().stream().poll_write(cx, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.as_mut().stream().poll_write_vectored(cx, parts);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Unix(stream) => stream.is_write_vectored(),
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
