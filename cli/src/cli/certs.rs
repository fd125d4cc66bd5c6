//! Arguments of `vmprobe certs`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, value_parser};
use thiserror::Error;

use super::format::FormatArgs;

pub const CERTS_EXAMPLES: &str = "\
Examples:
  vmprobe certs init --dir certs --host kvm1.example.org --client alice=control --client ci=probe
  vmprobe certs client --dir certs bob=observe     one more client, of the same authority
  vmprobe certs client --dir certs bob --replace   a new certificate in the place of the one that ends

The authority is for tests and for small sites: its key is a file without a password. A site that has an
authority of its own uses that.";

#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Make an authority, a certificate for a server, and one for each client
    Init(CertsInit),
    /// Make the server's certificate anew
    Server(CertsServer),
    /// Make a certificate for one more client
    Client(CertsClient),
}

#[derive(Debug, Args)]
pub struct CertsInit {
    /// The folder for them, which is made
    #[arg(long, value_name = "FOLDER")]
    pub dir: PathBuf,
    /// A name or an IP address that clients reach the server by (repeatable) [default: localhost and 127.0.0.1]
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// A client, and what it may do: observe (the default), probe or control (repeatable)
    #[arg(long = "client", value_name = "NAME[=ROLE]")]
    pub clients: Vec<NewClient>,
    /// How long the certificates are good; the authority's is for ten years
    #[arg(long, value_name = "DAYS", default_value_t = DAYS, value_parser = value_parser!(u32).range(1..))]
    pub days: u32,
    #[command(flatten)]
    pub format: FormatArgs,
}

impl CertsInit {
    /// Returns the validity of each certificate.
    pub fn validity(&self) -> Validity {
        Validity {
            days: self.days,
            replace: false,
        }
    }
}

/// How long a certificate is good, in days.
const DAYS: u32 = 365;

#[derive(Clone, Copy, Debug, Args)]
pub struct Validity {
    /// How long the certificate is good
    #[arg(long, value_name = "DAYS", default_value_t = DAYS, value_parser = value_parser!(u32).range(1..))]
    pub days: u32,
    /// Put it in the place of one that is there
    #[arg(long)]
    pub replace: bool,
}

#[derive(Debug, Args)]
pub struct CertsServer {
    /// The folder that `vmprobe certs init` has made
    #[arg(long, value_name = "FOLDER")]
    pub dir: PathBuf,
    /// A name or an IP address that clients reach the server by (repeatable) [default: localhost and 127.0.0.1]
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    #[command(flatten)]
    pub validity: Validity,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct CertsClient {
    /// The folder that `vmprobe certs init` has made
    #[arg(long, value_name = "FOLDER")]
    pub dir: PathBuf,
    /// The client, and what it may do: observe (the default), probe or control
    #[arg(value_name = "NAME[=ROLE]")]
    pub client: NewClient,
    #[command(flatten)]
    pub validity: Validity,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// A client that is to have a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClient {
    /// The name, also that of its files.
    pub name: String,
    pub role: &'static str,
}

/// Why a text names no client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoClient {
    #[error(
        "a client's name has letters, digits, `-`, `_`, `.` and `@`, and doesn't begin with a `.`"
    )]
    Name,
    #[error("a client's role is observe, probe or control")]
    Role,
}

const ROLES: [&str; 3] = ["observe", "probe", "control"];

impl FromStr for NewClient {
    type Err = NoClient;

    fn from_str(text: &str) -> Result<Self, NoClient> {
        let (name, role) = text.split_once('=').unwrap_or((text, ROLES[0]));
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
            return Err(NoClient::Name);
        }
        let role = ROLES.into_iter().find(|known| *known == role);
        Ok(Self {
            name: name.to_owned(),
            role: role.ok_or(NoClient::Role)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_name_that_is_one_of_a_file_and_a_role() {
        let client = |name: &str, role| NewClient {
            name: name.to_owned(),
            role,
        };
        assert_eq!("alice".parse(), Ok(client("alice", "observe")));
        assert_eq!("a@b.c=control".parse(), Ok(client("a@b.c", "control")));
        for name in ["", "=probe", "a/b", "..", "a b", "ä"] {
            assert_eq!(name.parse::<NewClient>(), Err(NoClient::Name), "{name}");
        }
        assert_eq!("a=root".parse::<NewClient>(), Err(NoClient::Role));
    }
}
