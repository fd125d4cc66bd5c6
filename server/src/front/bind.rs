//! Binding the server's addresses.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use thiserror::Error;
use tokio::net::TcpListener;
use vmprobe_otlp::{OtlpError, Sender};
use vmprobe_proto::v1;

use super::address::ListenAddress;
use super::connection::Listener;
use super::declared::{self, DeclaredError};
use super::options::ServeOptions;
use super::tls::{HTTP1, HTTP2, TlsError};
use super::unix_socket::UnixSocket;
use crate::access::{AuditError, Clients, ClientsError, Reloaded};
use crate::files::Folders;
use crate::images::OpenError;

/// What an address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Calls of gRPC.
    Calls,
    /// Requests for metrics and the status page.
    Metrics,
}

impl Purpose {
    /// Returns the option that gives the addresses.
    fn option(self) -> &'static str {
        match self {
            Self::Calls => "--listen",
            Self::Metrics => "--metrics",
        }
    }

    /// Returns the protocol's name in TLS.
    fn protocol(self) -> &'static [u8] {
        match self {
            Self::Calls => HTTP2,
            Self::Metrics => HTTP1,
        }
    }

    fn addresses(self, options: &ServeOptions) -> &[ListenAddress] {
        match self {
            Self::Calls => &options.listen,
            Self::Metrics => &options.metrics,
        }
    }
}

/// Why the server can't listen.
#[derive(Debug, Error)]
pub enum BindError {
    /// Any client that reaches the address could do or see everything.
    #[error(
        "{0} is for those who come by TLS: give the server a certificate (--tls-cert, --tls-key) and a list of clients \
         (--clients), or listen on a Unix socket; --plain-text lets any process of this host do all by an address of the \
         loopback interface"
    )]
    NoTls(SocketAddr),
    /// No client would be able to use TLS.
    #[error("TLS takes a list of clients (--clients), which says who may do what")]
    NoClients,
    /// Another program listens there.
    #[error(
        "{address} is in use: stop what listens there, or choose another address with {option}"
    )]
    InUse {
        /// The address.
        address: ListenAddress,
        /// The option that it comes from.
        option: &'static str,
    },
    /// The operating system refuses.
    #[error("can't listen on {address} ({cause}): choose another address with {option}")]
    Refused {
        /// The address.
        address: ListenAddress,
        /// The option that it comes from.
        option: &'static str,
        /// The operating system's reason.
        cause: io::Error,
    },
    /// A path below which clients may name files isn't a folder.
    #[error("{folder} isn't a folder that clients can name files below: {cause}")]
    Files {
        /// The path.
        folder: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The folder of images can't be used.
    #[error(transparent)]
    Images(#[from] OpenError),
    /// The VMs that are made at the start are declared wrongly.
    #[error(transparent)]
    Declared(#[from] DeclaredError),
    /// A certificate can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The list of clients can't be used.
    #[error(transparent)]
    Clients(#[from] ClientsError),
    /// The audit log can't be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The receiver of metrics and logs can't be sent to.
    #[error(transparent)]
    Otlp(#[from] OtlpError),
}

/// The addresses that the server listens on.
#[derive(Debug, Default)]
pub struct Listening {
    pub listeners: Vec<Listener>,
    /// The addresses in the form that clients accept, with the actual ports.
    pub endpoints: Vec<String>,
}

/// Checks all that can be known before the server listens: that certificates, keys, the list of clients and folders can
/// be used, and that each address may be listened on. Nothing is made or changed.
///
/// # Errors
/// See [`BindError`].
pub fn check(options: &ServeOptions) -> Result<(), BindError> {
    for purpose in [Purpose::Calls, Purpose::Metrics] {
        load_tls(options, purpose)?;
        for address in purpose.addresses(options) {
            check_address(address, options)?;
        }
    }
    clients(options)?;
    telemetry(options)?;
    folders(options.settings.files.clone())?;
    declared(options)?;
    Ok(())
}

/// Checks the options for the receiver of metrics and logs. Doesn't connect to it.
///
/// # Errors
/// See [`BindError`].
pub fn telemetry(options: &ServeOptions) -> Result<(), BindError> {
    let receiver = options.telemetry.receiver.options();
    let checked = receiver.map(|receiver| Sender::check(&receiver));
    Ok(checked.transpose().map(drop)?)
}

/// Returns the list of clients that may connect by TLS.
///
/// # Errors
/// See [`BindError`].
pub fn clients(options: &ServeOptions) -> Result<Option<Reloaded<Clients>>, BindError> {
    if options.tls.is_some() && options.clients.is_none() {
        return Err(BindError::NoClients);
    }
    let clients = options.clients.clone().map(|file| {
        let files = vec![file.clone()];
        Reloaded::new(files, move || Clients::read(&file))
    });
    Ok(clients.transpose()?)
}

/// Returns the folders below which clients may name files.
///
/// # Errors
/// [`BindError::Files`].
pub fn folders(given: Folders) -> Result<Folders, BindError> {
    let found = given.found();
    found.map_err(|(folder, cause)| BindError::Files { folder, cause })
}

/// Returns the VMs that are made at the start.
///
/// # Errors
/// [`BindError::Declared`].
pub fn declared(options: &ServeOptions) -> Result<Vec<v1::CreateVmRequest>, BindError> {
    let declared = options.vms.as_deref().map(declared::read).transpose()?;
    Ok(declared.unwrap_or_default())
}

fn load_tls(
    options: &ServeOptions,
    purpose: Purpose,
) -> Result<Option<Reloaded<ServerConfig>>, TlsError> {
    let files = options.tls.as_ref();
    files
        .map(|files| files.load(purpose.protocol()))
        .transpose()
}

/// Checks that plain text is only used on the loopback interface, and only if the owner allows it.
fn check_address(address: &ListenAddress, options: &ServeOptions) -> Result<(), BindError> {
    let is_safe =
        |tcp: &SocketAddr| options.tls.is_some() || options.plain_text && tcp.ip().is_loopback();
    match address {
        ListenAddress::Tcp(tcp) if !is_safe(tcp) => Err(BindError::NoTls(*tcp)),
        _ => Ok(()),
    }
}

/// Binds the addresses for one purpose.
///
/// # Errors
/// See [`BindError`].
pub async fn listen(options: &ServeOptions, purpose: Purpose) -> Result<Listening, BindError> {
    let tls = load_tls(options, purpose)?.map(Arc::new);
    let option = purpose.option();
    let mut listening = Listening::default();
    for address in purpose.addresses(options) {
        check_address(address, options)?;
        let refused = |cause: io::Error| {
            let address = address.clone();
            match cause.kind() {
                ErrorKind::AddrInUse => BindError::InUse { address, option },
                _ => BindError::Refused {
                    address,
                    option,
                    cause,
                },
            }
        };
        let (listener, endpoint) = match address {
            ListenAddress::Unix(path) => {
                let socket = UnixSocket::bind(path, options.socket_mode).map_err(refused)?;
                (Listener::Unix(socket), address.to_string())
            }
            ListenAddress::Tcp(tcp) => {
                let listener = TcpListener::bind(tcp).await.map_err(refused)?;
                let address = listener.local_addr().map_err(refused)?;
                match &tls {
                    Some(tls) => {
                        let listener = Listener::Tls(listener, Arc::clone(tls));
                        (listener, format!("https://{address}"))
                    }
                    None => (Listener::PlainText(listener), format!("http://{address}")),
                }
            }
        };
        listening.listeners.push(listener);
        listening.endpoints.push(endpoint);
    }
    Ok(listening)
}
