//! The lab machine's report channel: frames over a raw serial line.
//!
//! A frame is one byte of kind, the payload's length as a little-endian `u32`, and the payload.

/// The longest payload that a frame may have, in bytes.
pub const MAX_PAYLOAD: usize = 64 * 1024;

const HEADER: usize = 5;

const OUTPUT: u8 = b'O';
const RESULTS: u8 = b'R';
const EXIT: u8 = b'X';
const FAILED: u8 = b'F';

const EXIT_BY_CODE: u8 = 0;
const EXIT_BY_SIGNAL: u8 = 1;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this exit code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Exit {
    /// Returns true if it is exit code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }
}

/// One message from PID 1 of the lab machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Bytes that the command wrote to its standard output or error.
    Output(Vec<u8>),
    /// The next bytes of the command's results file.
    Results(Vec<u8>),
    /// The command has ended; the last frame.
    Exit(Exit),
    /// The command could not be run, for this reason; the last frame.
    Failed(String),
}

/// A stream that isn't one of frames.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// The kind is none of ours.
    #[error("unknown frame kind {0:#04x}: something else writes to the report channel")]
    UnknownKind(u8),
    /// The length is more than [`MAX_PAYLOAD`].
    #[error("frame of {0} bytes, more than {MAX_PAYLOAD}: the report channel is garbled")]
    TooLong(usize),
    /// The payload doesn't fit its kind.
    #[error("frame of kind {kind:?} with a bad payload of {len} bytes: host and PID 1 differ")]
    BadPayload {
        /// The frame's kind.
        kind: char,
        /// The payload's length in bytes.
        len: usize,
    },
}

impl Frame {
    /// Encodes the frame. The caller must split a payload over [`MAX_PAYLOAD`] by [`Frame::split`];
    /// a text over it is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Output(bytes) => encode(OUTPUT, bytes),
            Self::Results(bytes) => encode(RESULTS, bytes),
            Self::Failed(reason) => encode(FAILED, reason.as_bytes()),
            Self::Exit(exit) => {
                let (tag, value) = match exit {
                    Exit::Code(code) => (EXIT_BY_CODE, code),
                    Exit::Signal(signal) => (EXIT_BY_SIGNAL, signal),
                };
                let mut payload = vec![tag];
                payload.extend_from_slice(&value.to_le_bytes());
                encode(EXIT, &payload)
            }
        }
    }

    /// Splits bytes of any length into frames made by `kind`: [`Frame::Output`] or
    /// [`Frame::Results`].
    pub fn split(bytes: &[u8], kind: fn(Vec<u8>) -> Self) -> impl Iterator<Item = Self> {
        bytes
            .chunks(MAX_PAYLOAD)
            .map(move |chunk| kind(chunk.to_vec()))
    }

    fn decode(kind: u8, payload: Vec<u8>) -> Result<Self, FrameError> {
        let bad = FrameError::BadPayload {
            kind: char::from(kind),
            len: payload.len(),
        };
        match kind {
            OUTPUT => Ok(Self::Output(payload)),
            RESULTS => Ok(Self::Results(payload)),
            FAILED => String::from_utf8(payload)
                .map(Self::Failed)
                .map_err(|_| bad),
            EXIT => {
                let [tag, value @ ..] = payload.as_slice() else {
                    return Err(bad);
                };
                let Ok(value) = value.try_into().map(i32::from_le_bytes) else {
                    return Err(bad);
                };
                match *tag {
                    EXIT_BY_CODE => Ok(Self::Exit(Exit::Code(value))),
                    EXIT_BY_SIGNAL => Ok(Self::Exit(Exit::Signal(value))),
                    _ => Err(bad),
                }
            }
            _ => Err(FrameError::UnknownKind(kind)),
        }
    }
}

fn encode(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut end = payload.len().min(MAX_PAYLOAD);
    // Only a text can be too long here; don't cut it inside a character.
    while end < payload.len() && payload[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    let payload = &payload[..end];
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.push(kind);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Puts frames together from bytes that arrive in pieces of any size.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Adds bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more bytes are pushed.
    ///
    /// # Errors
    /// If the bytes are no frame. There is no way to go on after that.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let [kind, a, b, c, d, rest @ ..] = self.pending.as_slice() else {
            return Ok(None);
        };
        let kind = *kind;
        if ![OUTPUT, RESULTS, EXIT, FAILED].contains(&kind) {
            return Err(FrameError::UnknownKind(kind));
        }
        let len = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        if len > MAX_PAYLOAD {
            return Err(FrameError::TooLong(len));
        }
        let Some(payload) = rest.get(..len).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.pending.drain(..HEADER + len);
        Frame::decode(kind, payload).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        vec![
            Frame::Output(b"line\r\n\0\xff\x03\x11\x13".to_vec()),
            Frame::Output(Vec::new()),
            Frame::Results((0..=255).cycle().take(MAX_PAYLOAD).collect()),
            Frame::Failed("no /dev/kvm: é".into()),
            Frame::Exit(Exit::Code(-7)),
            Frame::Exit(Exit::Signal(11)),
        ]
    }

    #[test]
    fn frames_come_back_whole_whatever_the_pieces() {
        let bytes: Vec<u8> = frames().iter().flat_map(Frame::encode).collect();
        for piece in [1, 2, 5, 7, 4096, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for chunk in bytes.chunks(piece) {
                decoder.push(chunk);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, frames(), "pieces of {piece}");
        }
    }

    #[test]
    fn long_bytes_are_split_and_come_back_in_order() {
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * MAX_PAYLOAD + 5).collect();
        let mut decoder = Decoder::default();
        for frame in Frame::split(&bytes, Frame::Results) {
            decoder.push(&frame.encode());
        }
        let mut back = Vec::new();
        while let Some(Frame::Results(part)) = decoder.next_frame().unwrap() {
            back.extend(part);
        }
        assert_eq!(back, bytes);
    }

    #[test]
    fn a_reason_that_is_too_long_is_cut_between_characters() {
        let mut decoder = Decoder::default();
        decoder.push(&Frame::Failed("é".repeat(MAX_PAYLOAD) + "x").encode());
        let Some(Frame::Failed(reason)) = decoder.next_frame().unwrap() else {
            panic!("not a failure");
        };
        assert_eq!(reason.len(), MAX_PAYLOAD);
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused_with_the_reason() {
        let cases: [(&[u8], FrameError); 4] = [
            (b"Linux", FrameError::UnknownKind(b'L')),
            (b"O\xff\xff\xff\xff", FrameError::TooLong(0xffff_ffff)),
            (
                b"X\x02\0\0\0ab",
                FrameError::BadPayload { kind: 'X', len: 2 },
            ),
            (
                b"F\x01\0\0\0\xff",
                FrameError::BadPayload { kind: 'F', len: 1 },
            ),
        ];
        for (bytes, error) in cases {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            assert_eq!(decoder.next_frame(), Err(error));
        }
    }
}
