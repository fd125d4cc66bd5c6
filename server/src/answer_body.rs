//! Bodies of answers on their way to a client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};

/// A value that goes with an answer until its last byte is sent, or until the client has dropped it.
pub trait Companion: Send + Unpin + 'static {
    /// Gets the code that the answer ends with: from its headers if the call is refused at once, else from its
    /// trailers.
    fn learn(&mut self, _code: Code) {}
}

/// Returns the answer with a companion.
pub fn accompany(answer: Response<Body>, mut companion: impl Companion) -> Response<Body> {
    if let Some(status) = Status::from_header_map(answer.headers()) {
        companion.learn(status.code());
    }
    answer.map(|body| Body::new(AnswerBody { body, companion }))
}

struct AnswerBody<C> {
    body: Body,
    companion: C,
}

impl<C: Companion> HttpBody for AnswerBody<C> {
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
                if let Some(status) = trailers.and_then(Status::from_header_map) {
                    self.companion.learn(status.code());
                }
            }
            Poll::Ready(Some(Err(status))) => {
                let code = status.code();
                self.companion.learn(code);
            }
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
