//! Sending by gRPC (OTLP specification, "OTLP/gRPC").

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

use crate::dial::Dialer;
use crate::error::{OtlpError, SendError};
use crate::headers::Header;
use crate::options::OtlpOptions;
use crate::send::{Accepted, Signal};

/// The most bytes of an answer: a message, which mostly has no bytes.
const ANSWER: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Grpc(Channel);

impl Grpc {
    pub(crate) fn new(options: &OtlpOptions) -> Result<Self, OtlpError> {
        let dialer = Dialer::new(options, b"h2")?;
        // The connector does TLS. tonic only learns the scheme that requests name.
        let endpoint = Endpoint::from_static("http://receiver").origin(options.endpoint.clone());
        let endpoint = endpoint
            .user_agent(concat!("vmprobe/", env!("CARGO_PKG_VERSION")))
            .unwrap_or_else(|_| Endpoint::from_static("http://receiver"));
        let connector = tower::service_fn(move |_: Uri| {
            let dialer = dialer.clone();
            async move { dialer.dial().await.map(TokioIo::new) }
        });
        Ok(Self(endpoint.connect_with_connector_lazy(connector)))
    }

    pub(crate) async fn send<S: Signal>(
        &mut self,
        message: S,
        headers: &[Header],
    ) -> Result<Accepted, SendError> {
        let mut client = tonic::client::Grpc::new(self.0.clone()).max_decoding_message_size(ANSWER);
        client
            .ready()
            .await
            .map_err(|error| SendError::lost(&error))?;
        let mut request = Request::new(message);
        let fields = headers
            .iter()
            .map(|header| (header.name.clone(), header.value.clone()));
        let added = MetadataMap::from_headers(fields.collect());
        for field in added.iter() {
            match field {
                KeyAndValueRef::Ascii(key, value) => {
                    request.metadata_mut().append(key, value.clone());
                }
                KeyAndValueRef::Binary(key, value) => {
                    request.metadata_mut().append_bin(key, value.clone());
                }
            }
        }
        let path = PathAndQuery::from_static(S::CALL);
        let codec = ProstCodec::<S, S::Answer>::default();
        let answer = client.unary(request, path, codec).await;
        match answer {
            Ok(answer) => Ok(S::accepted(answer.into_inner())),
            Err(status) => Err(failed(&status)),
        }
    }
}

/// Decides whether a request should be sent again, by the specification's table ("Failures").
fn failed(status: &Status) -> SendError {
    let again = status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay);
    let is_away = match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => true,
        Code::ResourceExhausted => again.is_some(),
        // Errors on the way have a source, and those that a receiver answers have none.
        _ => std::error::Error::source(status).is_some(),
    };
    if !is_away {
        return SendError::Refused {
            why: format!("{:?}: {}", status.code(), status.message()),
        };
    }
    match SendError::lost(status) {
        SendError::Away { why, .. } => SendError::Away { why, again },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn a_receiver_that_is_full_is_away_only_if_it_says_when_to_come_again() {
        let full = Status::resource_exhausted("full");
        assert!(matches!(failed(&full), SendError::Refused { .. }));
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(7)));
        let later = Status::with_error_details(Code::ResourceExhausted, "full", details);
        assert!(
            matches!(failed(&later), SendError::Away { again: Some(again), .. } if again.as_secs() == 7)
        );
    }

    #[test]
    fn what_a_receiver_refuses_does_not_come_again() {
        for (status, is_away) in [
            (Status::unavailable("it restarts"), true),
            (Status::unauthenticated("who are you?"), false),
            (Status::invalid_argument("what is this?"), false),
            (Status::unimplemented("no logs here"), false),
        ] {
            let failure = failed(&status);
            assert_eq!(
                matches!(failure, SendError::Away { .. }),
                is_away,
                "{failure}"
            );
            assert!(failure.to_string().contains(status.message()), "{failure}");
        }
    }
}
