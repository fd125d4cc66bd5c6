//! Calls that their clients give up while the server still reads their messages.
//!
//! hyper ends the body of a request whose stream its client has reset (`RST_STREAM` with `CANCEL`) as if the client had
//! sent its last message (`hyper::body::Incoming`), and tonic does so with its error (`tonic::codec::decode`). So a
//! call would be refused because a message is missing, or would go on with the messages so far. With this layer such a
//! body has no end: hyper drops the call, as it does with a call that has read all its messages.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::call_layer::{Answer, CallService, OnCall};

/// A layer that tells the end of a call's messages from a reset of its stream.
#[derive(Clone, Debug)]
pub struct Cancellation;

impl OnCall for Cancellation {
    fn on_call(&self, request: Request<Body>, inner: &mut impl CallService) -> Answer {
        let request = request.map(|body| Body::new(RequestBody { body }));
        Box::pin(inner.call(request))
    }
}

/// The messages of a call, up to the end that the client itself has sent.
struct RequestBody {
    body: Body,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            // The stream is gone. hyper sees that too when it sends the answer
            // (`h2::server::SendResponse::poll_reset`).
            Poll::Ready(Some(Err(_))) => Poll::Pending,
            // After `END_STREAM` the body is at its end, and stays so if the stream is reset then.
            Poll::Ready(None) if !self.body.is_end_stream() => Poll::Pending,
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// How a body ends.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Whole,
        /// As hyper ends the body of a stream that was reset.
        Reset,
        Failed,
    }

    /// One message, and then the end.
    struct Messages(Option<Bytes>, End);

    impl HttpBody for Messages {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let end = match self.1 {
                End::Whole | End::Reset => None,
                End::Failed => Some(Err(Status::cancelled("the stream was reset"))),
            };
            let message = self.0.take();
            Poll::Ready(message.map_or(end, |message| Some(Ok(Frame::data(message)))))
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_none() && matches!(self.1, End::Whole)
        }
    }

    #[test]
    fn only_a_body_whose_client_has_ended_it_has_an_end() {
        for end in [End::Whole, End::Reset, End::Failed] {
            let messages = Messages(Some(Bytes::from_static(b"message")), end);
            let body = Body::new(messages);
            let mut body = RequestBody { body };
            let cx = &mut Context::from_waker(Waker::noop());
            let message = Pin::new(&mut body).poll_frame(cx);
            assert!(matches!(message, Poll::Ready(Some(Ok(_)))), "{end:?}");
            let is_whole = matches!(end, End::Whole);
            assert_eq!(body.is_end_stream(), is_whole, "{end:?}");
            let ended = matches!(Pin::new(&mut body).poll_frame(cx), Poll::Ready(None));
            assert_eq!(ended, is_whole, "{end:?}");
        }
    }
}
