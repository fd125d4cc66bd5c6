//! A client's connection to a server, and its credentials.

use std::fmt::{Debug, Formatter};
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};
use vmprobe_proto::socket::default_socket;

use crate::ClientError;
use crate::error::innermost;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the client checks that the server is still there; the server has 20 s for its answer.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// The prefix of a Unix socket's address.
const UNIX: &str = "unix:";

/// The channel of calls to a server.
pub(crate) type Connection = InterceptedService<Channel, Token>;

/// Returns the server's default address: a Unix socket.
pub fn default_endpoint() -> String {
    format!("{UNIX}{}", default_socket().display())
}

/// How a client recognizes a server by TLS, and how the server recognizes the client.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Certificates in PEM that must have signed the server's certificate.
    pub ca: Option<Vec<u8>>,
    /// The client's certificate and its private key, in PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// A token.
    pub token: Option<String>,
}

impl Debug for Credentials {
    /// Leaves the secrets out.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("has_ca", &self.ca.is_some())
            .field("has_identity", &self.identity.is_some())
            .field("has_token", &self.token.is_some())
            .finish()
    }
}

/// Adds a token to each call, if there is one.
#[derive(Clone)]
pub(crate) struct Token(Option<MetadataValue<Ascii>>);

impl Debug for Token {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            let metadata = request.metadata_mut();
            metadata.insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// # Errors
/// The text isn't an address, the credentials can't be used, or nothing answers there within 5
/// seconds.
pub(crate) async fn connect(
    endpoint: &str,
    credentials: &Credentials,
) -> Result<Connection, ClientError> {
    let bad = |reason: String| ClientError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason,
    };
    let (url, scheme) = url(endpoint)?;
    let mut to = Endpoint::from_shared(url.clone()).map_err(|error| bad(innermost(&error)))?;
    if scheme == Scheme::Https {
        let mut tls = ClientTlsConfig::new();
        if let Some(ca) = &credentials.ca {
            tls = tls.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some((certificate, key)) = &credentials.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        to = to.tls_config(tls).map_err(|error| bad(innermost(&error)))?;
    }
    let token = match (&credentials.token, scheme) {
        (None, _) => None,
        (Some(_), Scheme::Http) => {
            return Err(bad(
                "a token is a secret, and isn't sent in plain text".to_owned()
            ));
        }
        (Some(token), Scheme::Https | Scheme::Unix) => {
            let value = MetadataValue::try_from(format!("Bearer {token}"));
            let mut value =
                value.map_err(|_| bad("the token has characters that no token has".to_owned()))?;
            value.set_sensitive(true);
            Some(value)
        }
    };
    to = to
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true);
    let channel = to.connect().await.map_err(|error| ClientError::NoServer {
        endpoint: url,
        reason: innermost(&error),
    })?;
    Ok(InterceptedService::new(channel, Token(token)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
    Unix,
}

/// Returns the URL of an endpoint that may lack its scheme.
fn url(endpoint: &str) -> Result<(String, Scheme), ClientError> {
    let bad = |reason: &str| ClientError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason: reason.to_owned(),
    };
    if let Some(path) = endpoint.strip_prefix(UNIX) {
        let path = path.strip_prefix("//").unwrap_or(path);
        return match path.is_empty() {
            true => Err(bad("the path of its socket is missing")),
            false => Ok((format!("{UNIX}{path}"), Scheme::Unix)),
        };
    }
    match endpoint.split_once("://") {
        Some(("http", _)) => Ok((endpoint.to_owned(), Scheme::Http)),
        Some(("https", _)) => Ok((endpoint.to_owned(), Scheme::Https)),
        Some(_) => Err(bad("its scheme is none of https, http and unix")),
        None if endpoint.is_empty() => Err(bad("it is empty")),
        None => Ok((format!("http://{endpoint}"), Scheme::Http)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_may_lack_its_scheme() {
        let url = |endpoint| url(endpoint).unwrap();
        let plain = |text: &str| (text.to_owned(), Scheme::Http);
        assert_eq!(url("127.0.0.1:7070"), plain("http://127.0.0.1:7070"));
        assert_eq!(url("http://[::1]:1"), plain("http://[::1]:1"));
        let tls = ("https://a:1".to_owned(), Scheme::Https);
        assert_eq!(url("https://a:1"), tls);
        let socket = ("unix:/run/a.sock".to_owned(), Scheme::Unix);
        assert_eq!(url("unix:/run/a.sock"), socket);
        assert_eq!(url("unix:///run/a.sock"), socket);
    }

    #[test]
    fn an_endpoint_with_another_scheme_is_refused() {
        for endpoint in ["ftp://a", "unix:", ""] {
            let error = url(endpoint).unwrap_err();
            assert!(matches!(error, ClientError::Endpoint { .. }), "{endpoint}");
        }
    }

    #[tokio::test]
    async fn a_token_does_not_go_in_plain_text_and_is_not_shown() {
        let credentials = Credentials {
            token: Some("hunter2".to_owned()),
            ..Credentials::default()
        };
        assert!(!format!("{credentials:?}").contains("hunter2"));
        let error = connect("http://127.0.0.1:1", &credentials)
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("plain text") && !text.contains("hunter2"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn connecting_where_nothing_listens_says_what_to_do() {
        // A listener that is closed again leaves a port where nothing answers.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        for endpoint in [&*closed, "unix:/nowhere/vmprobed.sock"] {
            let error = connect(endpoint, &Credentials::default())
                .await
                .unwrap_err();
            let text = error.to_string();
            assert!(text.contains(endpoint), "{text}");
            assert!(text.contains("start one there with `vmprobed`"), "{text}");
        }
    }
}
