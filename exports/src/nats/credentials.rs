//! This client's credentials for NATS, and the certificates that it trusts.

use async_nats::{ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;

use super::options::NatsOptions;

/// Makes the options of the library's client, which doesn't read an address's user by itself.
///
/// # Errors
/// A file can't be read, or an address has a user that isn't text.
pub(super) async fn connect_options(
    options: &NatsOptions,
    servers: &[ServerAddr],
) -> Result<ConnectOptions, String> {
    let mut connect = ConnectOptions::new();
    if let Some(named) = servers.iter().find(|server| server.has_user_pass()) {
        let user = decode(named.username().unwrap_or_default())?;
        connect = match named.password() {
            Some(password) => connect.user_and_password(user, decode(password)?),
            // A user without a password is a token, as in all clients of NATS.
            None => connect.token(user),
        };
    }
    if let Some(file) = &options.credentials {
        let read = connect.credentials_file(file).await;
        connect = read.map_err(|error| format!("can't read {}: {error}", file.display()))?;
    }
    if let Some(seed) = &options.nkey {
        connect = connect.nkey(seed.clone());
    }
    if let Some(token) = &options.token {
        connect = connect.token(token.clone());
    }
    if let Some(ca) = &options.ca {
        connect = connect.add_root_certificates(ca.clone()).require_tls(true);
    }
    if let Some((certificate, key)) = &options.identity {
        connect = connect.add_client_certificate(certificate.clone(), key.clone());
    }
    Ok(connect)
}

fn decode(part: &str) -> Result<String, String> {
    let decoded = percent_decode_str(part).decode_utf8();
    let decoded = decoded.map_err(|_| "the user or the password in the address is no text")?;
    Ok(decoded.into_owned())
}
