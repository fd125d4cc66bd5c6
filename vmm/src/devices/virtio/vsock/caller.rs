//! A process of the host that has connected and not said yet which port of the guest it wants.

use std::{
    io::{self, Read},
    os::unix::net::UnixStream,
};

/// Bytes before the end of the longest line, `CONNECT 4294967295\r`.
const MAX_LINE: usize = 19;

/// The process.
pub(super) struct Caller {
    stream: UnixStream,
    line: Vec<u8>,
}

/// What is known of a caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Its line has not ended.
    Unknown,
    /// It wants this port.
    Port(u32),
    /// Its line is another one, or it has gone.
    None,
}

impl Caller {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            line: Vec::new(),
        }
    }

    /// Reads as much of its line as there is, and nothing of what is behind it.
    pub(super) fn read_line(&mut self) -> Wish {
        while self.line.len() <= MAX_LINE {
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(0) => return Wish::None,
                Ok(_) if byte == *b"\n" => return wish(&self.line),
                Ok(_) => self.line.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Wish::Unknown,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Wish::None,
            }
        }
        Wish::None
    }

    pub(super) fn into_stream(self) -> UnixStream {
        self.stream
    }
}

/// What a line without its end says. The word may be in lower case too, and a return may be behind the port,
/// as terminals send it.
fn wish(line: &[u8]) -> Wish {
    let port = str::from_utf8(line).ok().and_then(|line| {
        let (word, port) = line.split_once(' ')?;
        let port = port.strip_suffix('\r').unwrap_or(port);
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        (word.eq_ignore_ascii_case("CONNECT") && is_number).then(|| port.parse().ok())?
    });
    port.map_or(Wish::None, Wish::Port)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_line_names_a_port_and_all_else_nothing() {
        for (line, expected) in [
            ("CONNECT 0", Wish::Port(0)),
            ("connect 4294967295", Wish::Port(u32::MAX)),
            ("CONNECT 52\r", Wish::Port(52)),
            ("CONNECT 4294967296", Wish::None),
            ("CONNECT +5", Wish::None),
            ("CONNECT ", Wish::None),
            ("CONNECT  5", Wish::None),
            ("CONNECT", Wish::None),
            ("GET / HTTP/1.1", Wish::None),
            ("", Wish::None),
        ] {
            assert_eq!(wish(line.as_bytes()), expected, "{line:?}");
        }
        assert_eq!(wish(b"CONNECT \xff"), Wish::None);
    }

    #[test]
    fn a_line_may_come_in_pieces_and_what_is_behind_it_stays_in_the_stream() {
        let (mut process, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut caller = Caller::new(stream);
        assert_eq!(caller.read_line(), Wish::Unknown);
        process.write_all(b"CONN").unwrap();
        assert_eq!(caller.read_line(), Wish::Unknown);
        process.write_all(b"ECT 7\nbytes").unwrap();
        assert_eq!(caller.read_line(), Wish::Port(7));
        let mut rest = [0; 5];
        caller.into_stream().read_exact(&mut rest).unwrap();
        assert_eq!(rest, *b"bytes");
    }

    #[test]
    fn a_line_without_end_and_one_that_breaks_off_are_no_wish() {
        for text in [&b"CONNECT 00000000000000000000001\n"[..], b"CONNECT 5"] {
            let (mut process, stream) = UnixStream::pair().unwrap();
            process.write_all(text).unwrap();
            drop(process);
            assert_eq!(Caller::new(stream).read_line(), Wish::None);
        }
    }
}
