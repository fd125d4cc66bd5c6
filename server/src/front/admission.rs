//! The limits of how many calls are under way at the same time.
//!
//! A call is let in before its request is read, and counts until its answer is sent. Short calls and calls that last
//! are counted separately, so that neither kind keeps the other out.

use std::sync::Arc;

use http::Request;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;

use crate::answer_body::{Companion, accompany};
use crate::call_layer::{Answer, CallService, OnCall, refuse};
use crate::limits::Limits;
use crate::status;

/// Calls that last until something happens, or until their client goes away.
const LASTING: &[&str] = &[
    "/vmprobe.v1.VmService/WaitVm",
    "/vmprobe.v1.VmService/DumpVm",
    "/vmprobe.v1.ProbeService/WaitProbes",
    "/vmprobe.v1.ProbeService/ListCalls",
    "/vmprobe.v1.ProbeService/ListBlacklist",
    "/vmprobe.v1.EventService/StreamEvents",
    "/vmprobe.v1.SessionService/OpenSession",
    "/vmprobe.v1.HitService/HandleHits",
    "/vmprobe.v1.DebugService/Debug",
    "/vmprobe.v1.ConsoleService/AttachConsole",
    "/vmprobe.v1.ImageService/UploadImage",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.",
];

/// Always let in, so that monitoring doesn't take a busy server for a dead one.
const ALWAYS: &str = "/grpc.health.v1.Health/Check";

/// Returns true if a call of this path lasts until something happens, or until its client goes away.
pub fn is_lasting(path: &str) -> bool {
    LASTING.iter().any(|prefix| path.starts_with(prefix))
}

/// One kind of calls.
#[derive(Clone, Debug)]
struct CallLimit {
    places: Arc<Semaphore>,
    most: usize,
    what: &'static str,
    option: &'static str,
}

impl CallLimit {
    fn new(most: usize, what: &'static str, option: &'static str) -> Self {
        Self {
            places: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            most,
            what,
            option,
        }
    }

    fn enter(&self) -> Result<OwnedSemaphorePermit, Status> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| {
            let Self {
                most, what, option, ..
            } = self;
            let why = format!(
                "this server has {most} {what} under way, as many as it takes: try again when some \
                 have ended, or start vmprobed with a larger {option}"
            );
            status::exhausted(option, why)
        })
    }
}

/// Lets calls in, for all connections of a server.
#[derive(Clone, Debug)]
pub struct Admission {
    calls: CallLimit,
    lasting: CallLimit,
}

impl Admission {
    /// Makes the limits from these settings.
    pub fn new(limits: &Limits) -> Self {
        Self {
            calls: CallLimit::new(limits.calls, "calls", "--max-calls"),
            lasting: CallLimit::new(limits.streams, "streams and waiting calls", "--max-streams"),
        }
    }

    /// Takes the place for a call of this path, or returns `None` if the call needs no place.
    fn enter(&self, path: &str) -> Result<Option<OwnedSemaphorePermit>, Status> {
        if path == ALWAYS {
            return Ok(None);
        }
        let gate = if is_lasting(path) {
            &self.lasting
        } else {
            &self.calls
        };
        gate.enter().map(Some)
    }
}

impl OnCall for Admission {
    fn on_call(&self, request: Request<Body>, inner: &mut impl CallService) -> Answer {
        let place = match self.enter(request.uri().path()) {
            Ok(place) => place,
            Err(status) => return refuse(status),
        };
        let answer = inner.call(request);
        let place = HeldPlace { _place: place };
        Box::pin(async move { Ok(accompany(answer.await?, place)) })
    }
}

/// The place of a call, until its answer is sent.
struct HeldPlace {
    _place: Option<OwnedSemaphorePermit>,
}

impl Companion for HeldPlace {}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn calls_and_streams_have_places_of_their_own_and_give_them_back() {
        let limits = Limits {
            calls: 1,
            streams: 1,
            ..Limits::default()
        };
        let admission = Admission::new(&limits);
        let (call, stream) = (
            "/vmprobe.v1.VmService/ListVms",
            "/vmprobe.v1.EventService/StreamEvents",
        );
        let first = admission.enter(call).unwrap();
        let refused = admission.enter(call).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("--max-calls"), "{refused}");
        let follows = admission.enter(stream).unwrap();
        let refused = admission.enter("/vmprobe.v1.VmService/WaitVm").unwrap_err();
        assert!(refused.message().contains("--max-streams"), "{refused}");
        assert!(admission.enter(ALWAYS).unwrap().is_none());
        drop((first, follows));
        assert!(admission.enter(call).is_ok() && admission.enter(stream).is_ok());
    }
}
