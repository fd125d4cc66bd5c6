//! The outermost layer of calls: it counts them, and how long they take, also those that are refused.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tower_layer::Layer;
use tower_service::Service;

use super::admission::is_lasting;
use super::counters::{CountedCall, Counters};
use crate::answer_body::{Companion, accompany};

/// Counts calls.
#[derive(Clone, Debug)]
pub struct Measure(Arc<Counters>);

impl Measure {
    /// In these counters.
    pub fn new(counters: Arc<Counters>) -> Self {
        Self(counters)
    }
}

impl<S> Layer<S> for Measure {
    type Service = Measuring<S>;

    fn layer(&self, inner: S) -> Measuring<S> {
        Measuring {
            counters: Arc::clone(&self.0),
            inner,
        }
    }
}

/// A service whose calls are counted.
#[derive(Clone, Debug)]
pub struct Measuring<S> {
    counters: Arc<Counters>,
    inner: S,
}

impl<S> Service<Request<Body>> for Measuring<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let lasts = is_lasting(path);
        let measured = Measured {
            call: self.counters.begin(path, lasts),
            counters: Arc::clone(&self.counters),
            begun: (!lasts).then(Instant::now),
            // Unless it comes to an end, its client has cut it off.
            code: Code::Cancelled,
        };
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(accompany(answer.await?, measured)) })
    }
}

/// A call, counted when this goes.
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
