//! Sending by HTTP/1.1 (OTLP specification, "OTLP/HTTP").

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use prost::Message;

use crate::dial::Dialer;
use crate::error::{OtlpError, SendError};
use crate::headers::Header;
use crate::options::OtlpOptions;
use crate::send::{Accepted, Signal};

/// Bytes of an answer.
const ANSWER: usize = 64 << 10;
/// Characters of a receiver's message that are shown.
const SHOWN: usize = 200;
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");

#[derive(Debug)]
pub(crate) struct Http {
    dialer: Dialer,
    /// The value of the `Host` header.
    host: HeaderValue,
    /// The URL's path, without a slash at its end.
    base: String,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Http {
    pub(crate) fn new(options: &OtlpOptions) -> Result<Self, OtlpError> {
        let uri = &options.endpoint;
        let host = uri.authority().map_or("", |authority| authority.as_str());
        Ok(Self {
            dialer: Dialer::new(options, b"http/1.1")?,
            // An authority consists of characters that are valid in headers.
            host: HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static("")),
            base: uri.path().trim_end_matches('/').to_owned(),
            connection: None,
        })
    }

    pub(crate) async fn send<S: Signal>(
        &mut self,
        message: S,
        headers: &[Header],
    ) -> Result<Accepted, SendError> {
        // If the receiver doesn't answer in time, the connection is dropped with the answer under way, and isn't used
        // again.
        let mut connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => self.connect().await?,
        };
        let body = Bytes::from(message.encode_to_vec());
        let mut request = Request::post(format!("{}/{}", self.base, S::PATH))
            .body(Full::new(body))
            .map_err(|error| SendError::lost(&error))?;
        let fields = request.headers_mut();
        for header in headers {
            fields.append(header.name.clone(), header.value.clone());
        }
        let agent = HeaderValue::from_static(concat!("vmprobe/", env!("CARGO_PKG_VERSION")));
        fields.insert(USER_AGENT, agent);
        fields.insert(HOST, self.host.clone());
        fields.insert(CONTENT_TYPE, PROTOBUF);
        let lost = |error: hyper::Error| SendError::lost(&error);
        connection.ready().await.map_err(lost)?;
        let (head, body) = connection
            .send_request(request)
            .await
            .map_err(lost)?
            .into_parts();
        let body = Limited::new(body, ANSWER).collect().await;
        let body = body.map_err(|error| SendError::lost(&*error))?.to_bytes();
        self.connection = Some(connection);
        match head.status.is_success() {
            true => S::Answer::decode(body)
                .map(S::accepted)
                .map_err(|error| SendError::lost(&error)),
            false => Err(failed(head.status, &head.headers, &body)),
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, SendError> {
        let dialed = self.dialer.dial().await;
        let stream = dialed.map_err(|error| SendError::lost(&error))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| SendError::lost(&error))?;
        // The request that uses the connection learns how it ends.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// Decides whether a request should be sent again, by the specification ("Retryable Response Codes").
fn failed(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> SendError {
    let said = String::from_utf8_lossy(body);
    let said: String = said.trim().chars().take(SHOWN).collect();
    let why = format!("{status} {said}").trim().escape_debug().to_string();
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            let again = headers.get(RETRY_AFTER);
            let again = again.and_then(|again| again.to_str().ok()?.parse().ok());
            SendError::Away {
                why,
                again: again.map(Duration::from_secs),
            }
        }
        _ => SendError::Refused { why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_says_when_to_come_again() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("3"));
        let busy = failed(StatusCode::TOO_MANY_REQUESTS, &headers, b"slower\n");
        assert!(
            matches!(busy, SendError::Away { ref why, again: Some(again) } if again.as_secs() == 3 && why.ends_with("slower"))
        );
        let wrong = failed(StatusCode::NOT_FOUND, &headers, b"\x1b[31mred\xff");
        assert!(
            matches!(wrong, SendError::Refused { ref why } if !why.contains('\x1b')),
            "{wrong}"
        );
    }
}
