//! Frames over a stream socket, each behind its length: 32 bits, the most significant byte first, as passt and QEMU's
//! `-netdev stream` have them.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixStream,
    },
};

use super::{
    HEADER_LEN, MAX_FRAME, MIN_FRAME,
    backend::{Backend, Lost},
};

/// Bytes of a frame's length.
const LEN: usize = size_of::<u32>();
/// Bytes of what is read at a time: the longest frame at least.
const BUFFER: usize = 128 << 10;

/// The socket.
pub(super) struct FrameStream {
    socket: UnixStream,
    /// What was read and not yet received: this part of the buffer.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The rest of a frame that the socket has not taken yet. It has to follow, whatever happens to the device.
    unsent: Vec<u8>,
}

impl FrameStream {
    /// Frames over a socket that doesn't block.
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            buffer: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
            unsent: Vec::new(),
        }
    }

    /// The socket.
    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// The length of the next frame, and where it ends in the buffer, if all of it is there.
    fn next_frame(&self) -> Result<Option<(usize, usize)>, Lost> {
        let unread = &self.buffer[self.start..self.end];
        let Some((len, rest)) = unread.split_first_chunk::<LEN>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes(*len) as usize;
        if !(MIN_FRAME..=MAX_FRAME).contains(&len) {
            return Err(Lost(format!(
                "the process at the other end has sent a frame of {len} bytes: {MIN_FRAME} to {MAX_FRAME} make sense"
            )));
        }
        Ok((rest.len() >= len).then_some((len, self.start + LEN + len)))
    }

    /// Reads some more. Returns false if there is nothing at the moment.
    fn read_more(&mut self) -> Result<bool, Lost> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            match self.socket.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(closed()),
                Ok(count) => {
                    self.end += count;
                    return Ok(true);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(false),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(failed(&error)),
                },
            }
        }
    }

    /// Writes as much as the socket takes. Returns how much that is.
    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, Lost> {
        let mut written = 0;
        while written < bytes.len() {
            match self.socket.write(&bytes[written..]) {
                Ok(0) => return Err(closed()),
                Ok(count) => written += count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::BrokenPipe => return Err(closed()),
                    _ => return Err(failed(&error)),
                },
            }
        }
        Ok(written)
    }
}

impl Drop for FrameStream {
    fn drop(&mut self) {
        // A process that was forked off meanwhile may have inherited the socket: closing it here then ends no
        // connection, and the process at the other end is to end with that.
        let _it_may_be_closed = self.socket.shutdown(Shutdown::Both);
    }
}

impl Backend for FrameStream {
    fn file(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn receive(&mut self, packet: &mut [u8]) -> Result<Option<usize>, Lost> {
        loop {
            if let Some((len, end)) = self.next_frame()? {
                // No work is left to the guest.
                packet[..HEADER_LEN].fill(0);
                packet[HEADER_LEN..HEADER_LEN + len].copy_from_slice(&self.buffer[end - len..end]);
                self.start = end;
                return Ok(Some(HEADER_LEN + len));
            }
            if !self.read_more()? {
                return Ok(None);
            }
        }
    }

    fn can_send(&mut self) -> Result<bool, Lost> {
        if !self.unsent.is_empty() {
            let unsent = std::mem::take(&mut self.unsent);
            let written = self.write_some(&unsent)?;
            self.unsent.extend_from_slice(&unsent[written..]);
        }
        Ok(self.unsent.is_empty())
    }

    fn send(&mut self, packet: &[u8]) -> Result<(), Lost> {
        let frame = packet.get(HEADER_LEN..).unwrap_or_default();
        let mut unsent = std::mem::take(&mut self.unsent);
        unsent.extend((frame.len() as u32).to_be_bytes());
        unsent.extend_from_slice(frame);
        let written = self.write_some(&unsent)?;
        unsent.drain(..written);
        self.unsent = unsent;
        Ok(())
    }
}

fn closed() -> Lost {
    Lost("the process at the other end has closed the socket".to_owned())
}

fn failed(error: &io::Error) -> Lost {
    Lost(format!("the socket has failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::virtio::net::MAX_PACKET;

    fn pair() -> (FrameStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (FrameStream::new(ours), theirs)
    }

    fn framed(frame: &[u8]) -> Vec<u8> {
        [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
    }

    fn packet(frame: &[u8]) -> Vec<u8> {
        [&[0; HEADER_LEN], frame].concat()
    }

    #[test]
    fn frames_are_received_however_the_stream_is_cut() {
        let frames = [vec![1; 14], vec![2; 60], vec![3; 1514]];
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        for piece in [1, 3, 17, 1000, bytes.len()] {
            let (mut stream, mut theirs) = pair();
            let mut received = Vec::new();
            for part in bytes.chunks(piece) {
                theirs.write_all(part).unwrap();
                let mut packet = vec![0xee; MAX_PACKET];
                while let Some(len) = stream.receive(&mut packet).unwrap() {
                    received.push(packet[..len].to_vec());
                }
            }
            assert_eq!(received, frames.each_ref().map(|frame| packet(frame)));
        }
    }

    #[test]
    fn a_frame_that_the_socket_takes_in_parts_arrives_whole() {
        let (mut stream, mut theirs) = pair();
        let frame: Vec<u8> = (0..MAX_FRAME).map(|at| (at / 7) as u8).collect();
        let mut sent = 0;
        while stream.can_send().unwrap() {
            stream.send(&packet(&frame)).unwrap();
            sent += 1;
        }
        assert!(!stream.unsent.is_empty());
        // Not even a reset of the device cuts the frame.
        stream.reset();
        for _ in 0..sent {
            let mut read = vec![0; LEN + frame.len()];
            let mut at = 0;
            while at < read.len() {
                stream.can_send().unwrap();
                at += theirs.read(&mut read[at..]).unwrap();
            }
            assert!(read == framed(&frame));
        }
        assert!(stream.can_send().unwrap());
    }

    #[test]
    fn lengths_that_make_no_sense_and_an_end_are_told() {
        for len in [0u32, 13, MAX_FRAME as u32 + 1, u32::MAX] {
            let (mut stream, mut theirs) = pair();
            theirs.write_all(&len.to_be_bytes()).unwrap();
            let lost = stream.receive(&mut [0; MAX_PACKET]).unwrap_err();
            assert!(lost.to_string().contains(&format!("{len} bytes")), "{lost}");
        }
        let (mut stream, theirs) = pair();
        drop(theirs);
        assert!(stream.receive(&mut [0; MAX_PACKET]).is_err());
        assert!(stream.send(&packet(&[0; 60])).is_err());
    }
}
