//! The outermost layer of calls: it counts them, and how long they take, also those that are refused.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::{Code, Status};
use tower_layer::Layer;
use tower_service::Service;

use super::admission::is_lasting;
use super::counters::{CountedCall, Counters};

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
        let mut measured = Measured {
            call: self.counters.begin(path, lasts),
            counters: Arc::clone(&self.counters),
            begun: (!lasts).then(Instant::now),
            // Unless it comes to an end, its client has cut it off.
            code: Code::Cancelled,
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            // A refusal has its code there.
            measured.learn(Status::from_header_map(answer.headers()));
            Ok(answer.map(|body| Body::new(MeasuredBody { body, measured })))
        })
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

impl Measured {
    fn learn(&mut self, status: Option<Status>) {
        if let Some(status) = status {
            self.code = status.code();
        }
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let time = self.begun.map(|begun| begun.elapsed());
        self.counters.end(&self.call, self.code, time);
    }
}

/// An answer whose end tells how the call went.
struct MeasuredBody {
    body: Body,
    measured: Measured,
}

impl HttpBody for MeasuredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let trailers = frame.trailers_ref();
                let status = trailers.and_then(Status::from_header_map);
                self.measured.learn(status);
            }
            Poll::Ready(Some(Err(status))) => self.measured.code = status.code(),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
