//! Questions by HTTP/1.1 in plain text.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test::{Failure, wrong};

/// The answer to a GET, which must be a good one.
///
/// # Errors
/// If it isn't.
pub async fn get(address: &str, path: &str) -> Result<String, Failure> {
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    let io = || Failure::io(format!("ask {address}"));
    let mut stream = TcpStream::connect(address).await.map_err(io())?;
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

/// A text as a part of a query.
pub fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
