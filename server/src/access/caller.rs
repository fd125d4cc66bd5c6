//! The client that makes a call.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tonic::{Extensions, Status};
use wildmatch::WildMatch;

use super::role::Role;
use crate::status::{self, Reason};

const CLIENT: &str = "client:";
const USER: &str = "user:";
const ANONYMOUS: &str = "anonymous";

/// The account of a client. Images belong to accounts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Account {
    /// A client of the list, by its name there.
    Client(Arc<str>),
    /// A user of this host, by its number.
    User(u32),
    /// A client that has connected in a way that doesn't identify it.
    Anonymous,
}

impl Account {
    /// Returns true for users that can read everything that this process can: its own user, and root.
    pub fn is_as_mighty_as_the_server(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        matches!(self, Self::User(user) if *user == own || *user == 0)
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(name) => write!(f, "{CLIENT}{name}"),
            Self::User(number) => write!(f, "{USER}{number}"),
            Self::Anonymous => f.write_str(ANONYMOUS),
        }
    }
}

/// The text isn't an account.
#[derive(Clone, Copy, Debug, Error)]
#[error("an owner is `client:NAME`, `user:NUMBER` or `anonymous`")]
pub struct NoAccount;

impl FromStr for Account {
    type Err = NoAccount;

    fn from_str(text: &str) -> Result<Self, NoAccount> {
        if let Some(name) = text.strip_prefix(CLIENT) {
            return Ok(Self::Client(name.into()));
        }
        if let Some(number) = text.strip_prefix(USER) {
            return number.parse().map(Self::User).map_err(|_| NoAccount);
        }
        (text == ANONYMOUS)
            .then_some(Self::Anonymous)
            .ok_or(NoAccount)
    }
}

/// The client that makes a call, and what it may do.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its name in the list of clients, or how it has connected.
    pub name: Arc<str>,
    /// The account whose images it sees.
    pub account: Account,
    pub role: Role,
    /// Patterns of the names of its VMs. If empty, it may use all VMs.
    pub(super) vms: Arc<[WildMatch]>,
}

impl Caller {
    /// Makes a caller that may do everything to all VMs.
    pub fn unlisted(name: impl Into<Arc<str>>, account: Account) -> Self {
        Self {
            name: name.into(),
            account,
            role: Role::Control,
            vms: Arc::default(),
        }
    }

    /// Returns the caller from a call's extensions. Each call has one.
    ///
    /// # Errors
    /// `INTERNAL`, never in practice.
    pub fn of(extensions: &Extensions) -> Result<Self, Status> {
        let found = extensions.get::<Self>().cloned();
        found.ok_or_else(|| Status::internal("nobody makes this call: a bug of the server"))
    }

    /// Returns true if the caller may do everything to all VMs.
    pub fn controls_all(&self) -> bool {
        let mut patterns = self.vms.iter().map(ToString::to_string);
        let all = self.vms.is_empty() || patterns.any(|pattern| pattern == "*");
        self.role == Role::Control && all
    }

    /// Returns true if the caller may use the VM of this name.
    pub fn may_use(&self, vm: &str) -> bool {
        self.vms.is_empty() || self.vms.iter().any(|pattern| pattern.matches(vm))
    }

    /// # Errors
    /// `PERMISSION_DENIED` if the caller may not use a VM of this name, whether it exists or not.
    pub fn check_vm(&self, vm: &str) -> Result<(), Status> {
        match self.may_use(vm) {
            true => Ok(()),
            false => {
                let patterns: Vec<String> = self.vms.iter().map(ToString::to_string).collect();
                let why = format!(
                    "client `{}` may use VMs called {}, and not `{vm}`",
                    self.name,
                    patterns.join(" or ")
                );
                Err(status::because(Reason::NotYourVm, why))
            }
        }
    }

    /// # Errors
    /// `PERMISSION_DENIED` for a lesser role.
    pub fn check_role(&self, needed: Role, what: &str) -> Result<(), Status> {
        match self.role >= needed {
            true => Ok(()),
            false => {
                let why = format!(
                    "{what} takes the role `{}`, and client `{}` has `{}`",
                    needed.name(),
                    self.name,
                    self.role.name()
                );
                Err(status::because(Reason::Role, why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_what_its_text_says() {
        for account in [
            Account::Client("alice:b".into()),
            Account::User(1000),
            Account::Anonymous,
        ] {
            assert_eq!(account.to_string().parse::<Account>().unwrap(), account);
        }
        for text in ["", "alice", "user:", "user:-1", "user:x", "anonymous:", "*"] {
            assert!(text.parse::<Account>().is_err(), "{text}");
        }
    }
}
