//! Access control.
//!
//! A client that connects by a Unix socket may do everything with VMs: the socket's permissions say who may use it. A
//! client that connects by TLS identifies itself by a certificate or a token. The owner's list of clients ([`clients`])
//! says what it may do ([`role`]), and to which VMs. Each call passes [`authorize`] before its request is read. Calls
//! that change something are written to the audit log ([`audit`]). Which files of the host a client may name, and whose
//! images it uses, are separate questions: both depend on its [`Account`].

mod audit;
mod authorize;
mod caller;
mod clients;
mod reloaded;
mod role;

pub use audit::{AuditError, AuditLog};
pub use authorize::{Authorize, NamedVm};
pub use caller::{Account, Caller, NoAccount};
pub use clients::{Clients, ClientsError};
pub use reloaded::Reloaded;
pub use role::Role;
