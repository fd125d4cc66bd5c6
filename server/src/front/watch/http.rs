//! The HTTP server of metrics and the status page: who may ask, and for what.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;

use super::Watch;
use super::metrics;
use super::page;
use crate::access::Caller;
use crate::front::connection::{self, Connection, Listener, Peer};

/// Connections at the same time. Further ones wait.
const CONNECTIONS: usize = 64;
/// How long a client may take to send a request, and how long it may be silent between two requests.
const HEADERS: Duration = Duration::from_secs(30);
/// How long a connection lasts at most. A browser makes another one by itself.
const CONNECTION: Duration = Duration::from_secs(600);
/// Bytes of a request's line and headers.
const REQUEST: usize = 16 << 10;

type Answer = Response<Full<Bytes>>;

impl Watch {
    /// Answers requests on these listeners, until the returned set is dropped.
    pub fn serve(self: Arc<Self>, listeners: Vec<Listener>) -> JoinSet<()> {
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let count = self.counters.connections("http");
            let (_accepting, mut found) = connection::incoming(listeners, &count);
            let places = Arc::new(Semaphore::new(CONNECTIONS));
            let mut connections = JoinSet::new();
            while let (Ok(place), Some(Ok(connection))) = (
                Arc::clone(&places).acquire_owned().await,
                found.recv().await,
            ) {
                while connections.try_join_next().is_some() {}
                let watch = Arc::clone(&self);
                connections.spawn(async move {
                    watch.talk(connection).await;
                    drop(place);
                });
            }
        });
        serving
    }

    async fn talk(self: Arc<Self>, connection: Connection) {
        let peer = connection.peer().clone();
        let service = service_fn(|request| {
            let (watch, peer) = (Arc::clone(&self), peer.clone());
            async move { Ok::<_, Infallible>(watch.answer(&peer, &request).await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .max_buf_size(REQUEST);
        let talk = http.serve_connection(TokioIo::new(connection), service);
        if let Ok(Err(error)) = timeout(CONNECTION, talk).await {
            tracing::debug!("{peer} watches no more: {error}");
        }
    }

    async fn answer(&self, peer: &Peer, request: &Request<Incoming>) -> Answer {
        let mut answer = self.find(peer, request).await;
        let headers = answer.headers_mut();
        for (name, value) in [
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    async fn find(&self, peer: &Peer, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allowed);
            return answer;
        }
        if matches!(peer, Peer::PlainText(_)) && !is_of_this_host(request.headers()) {
            return text(
                StatusCode::MISDIRECTED_REQUEST,
                "this address is asked by its number or as localhost, so that no page of another site can read it",
            );
        }
        let path = request.uri().path();
        if path == "/healthz" {
            return text(StatusCode::OK, "ok");
        }
        let caller = match self.authorize.observer(peer, request.headers()) {
            Ok(caller) => caller,
            Err(status) => {
                tracing::warn!("{peer} is refused: {}", status.message());
                return refusal(&status);
            }
        };
        match path {
            "/" => shown(),
            "/metrics" => self.told(&caller, request.headers()).await,
            "/api/status" => self.status_of(&caller, request.uri().query()).await,
            _ => text(
                StatusCode::NOT_FOUND,
                "there is /, /metrics, /api/status and /healthz",
            ),
        }
    }

    async fn told(&self, caller: &Caller, headers: &HeaderMap) -> Answer {
        match metrics::tell(self, caller, headers).await {
            Ok((format, told)) => body(format, told),
            // Writing to a string doesn't fail.
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    async fn status_of(&self, caller: &Caller, query: Option<&str>) -> Answer {
        let vm = query.and_then(|query| query.strip_prefix("vm="));
        let status = self.status(caller, vm).await;
        match serde_json::to_vec(&status) {
            Ok(json) => body("application/json", json),
            // Strings and numbers always serialize.
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

/// Returns true if the request's host name can only be this host's. Another name in a browser's address line may be one
/// that another site has pointed at this host (DNS rebinding): that site's page could read the answer.
fn is_of_this_host(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    host.is_some_and(|host| {
        let name = host.host();
        let number = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || number.parse::<std::net::IpAddr>().is_ok()
    })
}

fn shown() -> Answer {
    let page = page::page();
    let mut answer = body("text/html; charset=utf-8", page.html.clone());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, page.policy.clone());
    answer
}

fn refusal(status: &tonic::Status) -> Answer {
    match status.code() {
        Code::Unauthenticated => {
            let mut answer = text(StatusCode::UNAUTHORIZED, status.message());
            let how = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, how);
            answer
        }
        _ => text(StatusCode::FORBIDDEN, status.message()),
    }
}

fn text(code: StatusCode, line: &str) -> Answer {
    let mut answer = body("text/plain; charset=utf-8", format!("{line}\n"));
    *answer.status_mut() = code;
    answer
}

fn body(kind: &'static str, bytes: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(bytes.into()));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_this_host_is_asked_by_a_number_or_as_localhost() {
        let is_ours = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            is_of_this_host(&headers)
        };
        for host in ["127.0.0.1:9464", "[::1]:9464", "localhost", "localhost:1"] {
            assert!(is_ours(host), "{host}");
        }
        for host in [
            "rebound.example:9464",
            "localhost.example",
            "127.0.0.1.nip.io",
            "",
        ] {
            assert!(!is_ours(host), "{host}");
        }
        assert!(!is_of_this_host(&HeaderMap::new()));
    }
}
