//! The time limit that a client sets for its call (`grpc-timeout`). When it's over, the server ends the call, even if
//! its answer is under way.
//!
//! tonic itself ends a call only before its answer begins, and with `CANCELLED`. This layer is inside of tonic's and
//! starts to count before it, so this layer's limit comes first.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::Status;
use tonic::body::Body;

use crate::call_layer::{Answer, CallService, OnCall, refuse};
use crate::status::{self, Reason};

const HEADER: &str = "grpc-timeout";

/// Ends calls whose time is over.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines;

impl OnCall for Deadlines {
    fn on_call(&self, mut request: Request<Body>, inner: &mut impl CallService) -> Answer {
        let allowed = match allowed(request.headers()) {
            Ok(Some(allowed)) => allowed,
            Ok(None) => return Box::pin(inner.call(request)),
            Err(refused) => return refuse(refused),
        };
        if allowed.is_zero() {
            return refuse(over(allowed));
        }
        // A VM's process needs no limit of its own: it sees that the call ends.
        request.headers_mut().remove(HEADER);
        let end = Instant::now() + allowed;
        let answer = inner.call(request);
        Box::pin(async move {
            match timeout_at(end, answer).await {
                Ok(answer) => Ok(answer?.map(|body| {
                    Body::new(EndingBody {
                        body: Some(body),
                        end: Box::pin(sleep_until(end)),
                        allowed,
                    })
                })),
                Err(_) => Ok(over(allowed).into_http()),
            }
        })
    }
}

fn over(allowed: Duration) -> Status {
    let why = format!(
        "the call's time, {}, is over: what it waited for has not happened; give it more time",
        humantime::format_duration(allowed)
    );
    status::because(Reason::TimeOver, why)
}

/// Returns the time that a call may take, if its client has set one: at most eight digits and a unit (gRPC over HTTP/2,
/// "Timeout").
///
/// # Errors
/// `INVALID_ARGUMENT` if the header is no time.
fn allowed(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get(HEADER) else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(parse);
    let why = || "a call's time is 1 to 8 digits and one of the units H, M, S, m, u and n";
    parsed
        .map(Some)
        .ok_or_else(|| status::invalid(HEADER, why()))
}

fn parse(text: &str) -> Option<Duration> {
    const MOST_DIGITS: usize = 8;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > MOST_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// An answer that ends when its call's time is over.
struct EndingBody {
    /// `None` when the time is over.
    body: Option<Body>,
    end: Pin<Box<Sleep>>,
    allowed: Duration,
}

impl HttpBody for EndingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        // The time is checked first, as a stream may always have a next message.
        if this.end.as_mut().poll(cx).is_ready() {
            this.body = None;
            let mut trailers = HeaderMap::new();
            let ended = over(this.allowed).add_header(&mut trailers);
            return Poll::Ready(Some(ended.map(|()| Frame::trailers(trailers))));
        }
        Pin::new(body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use http::Response;
    use http_body_util::BodyExt;
    use tonic::Code;
    use tonic_types::StatusExt;
    use tower_service::Service;

    use super::*;

    /// What a service does with a call.
    #[derive(Clone, Copy, Debug)]
    enum Inner {
        Silent,
        /// It sends messages, and never ends.
        Streaming,
        Answering,
    }

    impl Service<Request<Body>> for Inner {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Answer;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Answer {
            assert!(!request.headers().contains_key(HEADER));
            let inner = *self;
            Box::pin(async move {
                match inner {
                    Self::Silent => pending().await,
                    Self::Streaming => Ok(Response::new(Body::new(Endless))),
                    Self::Answering => Ok(Status::ok("").into_http()),
                }
            })
        }
    }

    /// A body with a message whenever there is room for one.
    struct Endless;

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"message")))))
        }
    }

    async fn call(mut inner: Inner, timeout: &str) -> Response<Body> {
        let request = Request::builder().header(HEADER, timeout);
        let request = request.body(Body::empty()).unwrap();
        Deadlines.on_call(request, &mut inner).await.unwrap()
    }

    async fn status(inner: Inner, timeout: &str) -> Status {
        let answer = call(inner, timeout).await;
        Status::from_header_map(answer.headers()).unwrap()
    }

    #[tokio::test]
    async fn a_call_that_is_not_answered_in_its_time_ends_with_deadline_exceeded() {
        let before = Instant::now();
        let status = status(Inner::Silent, "20m").await;
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(before.elapsed() >= Duration::from_millis(20));
        assert!(status.message().contains("20ms"), "{status}");
    }

    #[tokio::test]
    async fn a_stream_that_always_has_a_message_ends_with_its_time() {
        let answer = call(Inner::Streaming, "20m").await;
        let mut body = answer.into_body();
        let first = body.frame().await.unwrap().unwrap();
        assert!(first.is_data());
        let mut last = first;
        while last.is_data() {
            last = body.frame().await.unwrap().unwrap();
            tokio::task::yield_now().await;
        }
        let status = Status::from_header_map(last.trailers_ref().unwrap()).unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(body.is_end_stream() && body.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_call_without_any_time_is_not_even_begun() {
        for timeout in ["0S", "00000000H", "0n"] {
            let status = status(Inner::Answering, timeout).await;
            assert_eq!(status.code(), Code::DeadlineExceeded, "{timeout}");
        }
    }

    #[tokio::test]
    async fn the_longest_time_that_can_be_given_is_no_overflow() {
        let status = status(Inner::Answering, "99999999H").await;
        assert_eq!(status.code(), Code::Ok);
        let answer = call(Inner::Streaming, "99999999H").await;
        assert!(answer.into_body().frame().await.unwrap().unwrap().is_data());
    }

    #[test]
    fn each_unit_of_time_is_known() {
        for (text, time) in [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("4S", Duration::from_secs(4)),
            ("5m", Duration::from_millis(5)),
            ("6u", Duration::from_micros(6)),
            ("00000007n", Duration::from_nanos(7)),
        ] {
            assert_eq!(parse(text), Some(time), "{text}");
        }
    }

    #[tokio::test]
    async fn what_is_no_time_is_refused_by_its_header() {
        for timeout in ["", "5", "S", "5 S", "-1S", "123456789S", "5s", "1é", "+1S"] {
            let status = status(Inner::Answering, timeout).await;
            assert_eq!(status.code(), Code::InvalidArgument, "{timeout:?}");
            let details = status.get_details_bad_request().unwrap();
            assert_eq!(details.field_violations[0].field, HEADER);
        }
    }
}
