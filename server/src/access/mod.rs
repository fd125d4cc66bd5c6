//! Who may do what.
//!
//! A client comes by a Unix socket, whose permissions say who may use it: it may do all with VMs. Or it comes by TLS, and
//! says who it is by a certificate or a token; the owner's list of clients ([`clients`]) says then what it may do ([`role`]), and to
//! which VMs. Each call passes [`authorize`], before anything of it is read. What changes something is written to the
//! audit log ([`audit`]).
//! Which files of the host a client may name is another matter, and so is whose images it uses: both go by its
//! [`Account`].

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
