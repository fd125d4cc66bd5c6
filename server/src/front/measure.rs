//! A layer outside of those that refuse calls: it counts all calls, and how long they take.

use std::sync::Arc;
use std::time::Instant;

use http::Request;
use tonic::Code;
use tonic::body::Body;

use super::admission::is_lasting;
use super::counters::{CountedCall, Counters};
use crate::answer_body::{Companion, accompany};
use crate::call_layer::{Answer, CallService, OnCall};

/// Counts calls.
#[derive(Clone, Debug)]
pub struct Measure(Arc<Counters>);

impl Measure {
    /// Makes a layer that counts in these counters.
    pub fn new(counters: Arc<Counters>) -> Self {
        Self(counters)
    }
}

impl OnCall for Measure {
    fn on_call(&self, request: Request<Body>, inner: &mut impl CallService) -> Answer {
        let path = request.uri().path();
        let lasts = is_lasting(path);
        let measured = Measured {
            call: self.0.begin(path, lasts),
            counters: Arc::clone(&self.0),
            begun: (!lasts).then(Instant::now),
            // A call that doesn't reach its end was cancelled by its client.
            code: Code::Cancelled,
        };
        let answer = inner.call(request);
        Box::pin(async move { Ok(accompany(answer.await?, measured)) })
    }
}

/// A call that is counted when this value is dropped.
#[derive(Debug)]
struct Measured {
    call: CountedCall,
    counters: Arc<Counters>,
    begun: Option<Instant>,
    code: Code,
}

impl Companion for Measured {
    fn learn(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let time = self.begun.map(|begun| begun.elapsed());
        self.counters.end(&self.call, self.code, time);
    }
}
