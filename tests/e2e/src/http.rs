//! Questions by HTTP/1.1 in plain text.

use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::test::{Failure, wrong};

/// Returns the body of the answer to a GET, which must be a success.
///
/// # Errors
/// If it isn't one.
pub async fn get(address: &str, path: &str) -> Result<String, Failure> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(Failure::io(format!("ask {address}")))?;
    get_by(stream, address, path).await
}

/// As [`get`], by a Unix socket.
///
/// # Errors
/// If the answer isn't a success.
pub async fn get_by_socket(socket: &Path, path: &str) -> Result<String, Failure> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(Failure::io(format!("ask {}", socket.display())))?;
    get_by(stream, "localhost", path).await
}

async fn get_by(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: &str,
    path: &str,
) -> Result<String, Failure> {
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    let io = || Failure::io(format!("ask {address}"));
    stream.write_all(request.as_bytes()).await.map_err(io())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(io())?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| wrong!("{address} answered {answer:?}"))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(wrong!("{address} answered {head:?} to {path}: {body:?}")),
    }
}

/// Encodes a text as a part of a query.
pub fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
