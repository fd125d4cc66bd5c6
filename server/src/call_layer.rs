//! Layers that a call passes on its way to the service that answers it.

use std::convert::Infallible;
use std::future::ready;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tower_layer::Layer;
use tower_service::Service;

/// The answer to a call, when it is ready.
pub type Answer = BoxFuture<Response<Body>, Infallible>;

/// A service that answers calls: the gRPC services, or a layer around them.
pub trait CallService:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
{
}

impl<S> CallService for S where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        >
{
}

/// The work of a layer for each call.
pub trait OnCall: Clone {
    /// Answers the call, or lets `inner` answer it.
    fn on_call(&self, request: Request<Body>, inner: &mut impl CallService) -> Answer;
}

/// Returns the answer that refuses a call.
pub fn refuse(status: Status) -> Answer {
    Box::pin(ready(Ok(status.into_http())))
}

/// A layer of calls.
#[derive(Clone, Debug)]
pub struct CallLayer<C>(pub C);

/// A service below a layer of calls.
#[derive(Clone, Debug)]
pub struct Layered<C, S> {
    layer: C,
    inner: S,
}

impl<C: Clone, S> Layer<S> for CallLayer<C> {
    type Service = Layered<C, S>;

    fn layer(&self, inner: S) -> Layered<C, S> {
        Layered {
            layer: self.0.clone(),
            inner,
        }
    }
}

impl<C: OnCall, S: CallService> Service<Request<Body>> for Layered<C, S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        self.layer.on_call(request, &mut self.inner)
    }
}
