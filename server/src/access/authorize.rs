//! The layer that finds out who makes a call, and refuses callers that may not make it.

use std::sync::{Arc, OnceLock};

use http::header::AUTHORIZATION;
use http::{HeaderMap, Request};
use tonic::body::Body;
use tonic::{Code, Status};

use super::audit::AuditLog;
use super::caller::{Account, Caller};
use super::clients::Clients;
use super::reloaded::Reloaded;
use super::role::{self, Need, Role};
use crate::answer_body::{Companion, accompany};
use crate::call_layer::{Answer, CallService, OnCall, refuse};
use crate::front::Peer;
use crate::status::{self, Reason};

/// The prefix of a token in a call's metadata (RFC 6750, 2.1).
const BEARER: &str = "Bearer ";

/// Lets calls in from clients that the owner has listed.
#[derive(Clone, Debug, Default)]
pub struct Authorize {
    clients: Option<Arc<Reloaded<Clients>>>,
    audit: Option<AuditLog>,
}

/// The VM that a call names, once that is known. The layers behind this one set it for the audit log.
#[derive(Clone, Debug, Default)]
pub struct NamedVm(Arc<OnceLock<String>>);

impl NamedVm {
    /// Sets the VM's name.
    pub fn tell(&self, vm: &str) {
        self.0.get_or_init(|| vm.to_owned());
    }
}

impl Authorize {
    /// Makes a layer for these clients, with this audit log.
    pub fn new(clients: Option<Reloaded<Clients>>, audit: Option<AuditLog>) -> Self {
        Self {
            clients: clients.map(Arc::new),
            audit,
        }
    }

    /// Returns the caller of a request that an observer may make.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` or `PERMISSION_DENIED`.
    pub fn observer(&self, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Status> {
        let caller = self.caller(peer, headers)?;
        caller.check_role(Role::Observe, "to watch the server")?;
        Ok(caller)
    }

    /// Returns the caller of a call.
    fn caller(&self, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Status> {
        let names = match peer {
            Peer::Local { uid } => {
                let account = uid.map_or(Account::Anonymous, Account::User);
                return Ok(Caller::unlisted(peer.to_string(), account));
            }
            Peer::TooMany { most } => {
                let why = format!(
                    "this server has {most} connections, as many as it takes: close one, or start vmprobed with a larger \
                     --max-connections"
                );
                return Err(status::exhausted("--max-connections", why));
            }
            Peer::PlainText(_) => {
                return Ok(Caller::unlisted(peer.to_string(), Account::Anonymous));
            }
            Peer::Tls { names, .. } => names,
        };
        let clients = self.clients.as_ref().map(|clients| clients.get());
        let clients = clients.unwrap_or_default();
        if let Some(token) = headers.get(AUTHORIZATION) {
            let token = token
                .to_str()
                .ok()
                .and_then(|value| value.strip_prefix(BEARER));
            let known = token.and_then(|token| clients.with_token(token.trim()));
            return known.cloned().ok_or_else(|| {
                let why = "this server knows no client with this token";
                status::because(Reason::UnknownToken, why)
            });
        }
        if names.is_empty() {
            return Err(status::because(
                Reason::NoCredentials,
                "this server wants to know who calls: give a certificate (--tls-cert, --tls-key), or a token (--token-file)",
            ));
        }
        clients.with_certificate(names).cloned().ok_or_else(|| {
            let why = format!(
                "this server knows no client with a certificate of the name {}",
                names.join(" or ")
            );
            status::because(Reason::UnknownCertificate, why)
        })
    }
}

impl OnCall for Authorize {
    fn on_call(&self, mut request: Request<Body>, inner: &mut impl CallService) -> Answer {
        let Need::Role(needed) = role::needed(request.uri().path()) else {
            return Box::pin(inner.call(request));
        };
        let Some(peer) = request.extensions().get::<Peer>() else {
            return refuse(Status::internal(
                "nobody makes this call: a bug of the server",
            ));
        };
        let caller = match self.caller(peer, request.headers()) {
            Ok(caller) => caller,
            Err(status) => {
                tracing::warn!("{peer} is refused: {}", status.message());
                return refuse(status);
            }
        };
        let path = request.uri().path();
        let call = path
            .rsplit_once("vmprobe.v1.")
            .map_or(path, |(_, call)| call);
        let entry = self.audit.clone().filter(|_| needed > Role::Observe);
        let entry = entry.map(|log| Entry {
            log,
            caller: caller.clone(),
            call: call.to_owned(),
            vm: NamedVm::default(),
            code: None,
        });
        if let Err(status) = caller.check_role(needed, call) {
            if let Some(mut entry) = entry {
                entry.code = Some(status.code());
            }
            return refuse(status);
        }
        let vm = entry.as_ref().map(|entry| entry.vm.clone());
        // The layers behind this one know the client by `caller` only, not by its own words.
        request.headers_mut().remove(AUTHORIZATION);
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(vm.unwrap_or_default());
        let answer = inner.call(request);
        let Some(entry) = entry else {
            return Box::pin(answer);
        };
        Box::pin(async move { Ok(accompany(answer.await?, entry)) })
    }
}

/// A line of the audit log, written when this is dropped.
#[derive(Debug)]
struct Entry {
    log: AuditLog,
    caller: Caller,
    call: String,
    vm: NamedVm,
    code: Option<Code>,
}

impl Companion for Entry {
    fn learn(&mut self, code: Code) {
        self.code = Some(code);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let (vm, code) = (self.vm.0.get(), self.code.map(i32::from));
        self.log
            .add(&self.caller, &self.call, vm.map(String::as_str), code);
    }
}
