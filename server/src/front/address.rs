//! The addresses that a server listens on.

use std::fmt::{Display, Formatter};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The prefix of a Unix socket's address.
const UNIX: &str = "unix:";

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// An IP address and a port; port 0 is any free one.
    Tcp(SocketAddr),
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is no address to listen on: give the path of a Unix socket, such as unix:/run/vmprobe/vmprobed.sock, or an \
     IP address and a port, such as 127.0.0.1:7070 or [::1]:7070"
)]
pub struct NoAddress(String);

impl FromStr for ListenAddress {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let no_address = || NoAddress(text.to_owned());
        match text.strip_prefix(UNIX) {
            Some("") => Err(no_address()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| no_address()),
        }
    }
}

impl Display for ListenAddress {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_socket_s_path_or_an_ip_address_with_a_port() {
        for text in ["unix:/run/a.sock", "127.0.0.1:7070", "[::1]:0"] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in ["", "unix:", "localhost", "127.0.0.1", "/run/a.sock"] {
            let error = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(error.contains("127.0.0.1:7070"), "{error}");
        }
    }
}
