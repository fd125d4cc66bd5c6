//! The answer to requests that are longer than the server accepts.

use http::Response;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::status;

/// The beginning of tonic's message about a message that is too long (`tonic::codec::decode`).
const TOO_LONG: &str = "Error, decoded message length too large: ";

/// Returns the answer. If a request is refused for its length, the answer names the limit, instead of tonic's
/// `OUT_OF_RANGE`.
pub fn with_limit(answer: Response<Body>) -> Response<Body> {
    let status = Status::from_header_map(answer.headers());
    match status.as_ref().and_then(named) {
        Some(refused) => refused.into_http(),
        None => answer,
    }
}

fn named(status: &Status) -> Option<Status> {
    let lengths = status.message().strip_prefix(TOO_LONG)?;
    (status.code() == Code::OutOfRange).then(|| {
        let why = format!(
            "the request is too long ({lengths}): send less at a time, or start vmprobed with a larger --max-request"
        );
        status::exhausted("--max-request", why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_for_a_length_gets_the_name_of_the_limit() {
        let code = |status: Status| {
            let answer = with_limit(status.into_http());
            Status::from_header_map(answer.headers()).map(|status| status.code())
        };
        let long = Status::out_of_range(format!("{TOO_LONG}found 9 bytes, the limit is: 8 bytes"));
        assert_eq!(code(long), Some(Code::ResourceExhausted));
        let other = Status::out_of_range("the events are no longer kept");
        assert_eq!(code(other), Some(Code::OutOfRange));
        assert_eq!(code(Status::ok("")), Some(Code::Ok));
    }
}
