//! A connection without tonic's client. Its calls have no timers of their own, so only the server can end them.

use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};

use crate::test::{Failure, wrong};

/// Such a connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Bare(SendRequest<Body>);

impl Bare {
    /// Connects to `unix:PATH`.
    ///
    /// # Errors
    /// If no server listens there.
    pub async fn connect(endpoint: &str) -> Result<Self, Failure> {
        let stream = UnixStream::connect(endpoint.trim_start_matches("unix:")).await;
        let stream = TokioIo::new(stream.map_err(Failure::io("connect"))?);
        let shaken = handshake(TokioExecutor::new(), stream).await;
        let (sender, connection) = shaken.map_err(|error| wrong!("no HTTP/2: {error}"))?;
        // Runs until the connection ends, which is when its last `Bare` is dropped.
        tokio::spawn(connection);
        Ok(Self(sender))
    }
}

impl Service<Request<Body>> for Bare {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<Response<Incoming>, hyper::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
