//! One connection: its two ends, its flow control, and what is to be told of it.
//!
//! Both sides count the bytes that they have sent and given on, and say how much they have room for; neither
//! sends more than the other has room for (5.10.6.3). What the guest has sent waits in a buffer here while
//! the host's process takes nothing. What the process has sent waits in its socket while the guest has no
//! room.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
};

use vmm_sys_util::epoll::EventSet;

use super::{
    BUFFER,
    packet::{Header, NO_MORE_RECEIVED, NO_MORE_SENT, Op, Ports},
};

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The host wants it, and the guest is to be asked.
    Wanted,
    /// The guest has been asked.
    Asked,
    /// The guest wanted it, and is to be told that it has it.
    Accepted,
    /// Both have it.
    Open,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    /// It is over for the guest, but the host's process has not taken all yet.
    Lingers,
    /// It is over, and the guest knows.
    Ends,
    /// It is over, and the guest is to be told.
    Resets,
}

/// What can be sent to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Request,
    Response,
    CreditUpdate,
    CreditRequest,
    /// What the process has sent, if there is something.
    Data,
    /// These flags.
    Shutdown(u32),
}

/// A packet for the guest, without what is the same in all of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) op: Op,
    pub(super) flags: u32,
    pub(super) len: u32,
}

pub(super) struct Connection {
    ports: Ports,
    stage: Stage,
    stream: UnixStream,
    /// The socket may have something to read, or take something: it has not said otherwise since it was last
    /// reported to be ready.
    readable: bool,
    writable: bool,
    /// The process sends no more: all that it sent has been read.
    host_is_silent: bool,
    /// The process has closed its socket, or takes no more.
    host_is_gone: bool,
    /// The guest sends no more, takes no more, and knows nothing of the connection any more.
    guest_is_silent: bool,
    guest_is_deaf: bool,
    guest_has_reset: bool,

    /// What the guest has sent and the process has not taken.
    to_host: VecDeque<u8>,
    /// Bytes of the guest's that were given on, and how many of them it has been told of; modulo 2^32.
    given_on: u32,
    given_on_told: u32,
    update_wanted: bool,

    /// Bytes sent to the guest, and what its last packet said of its room; modulo 2^32.
    sent: u32,
    guest_buf_alloc: u32,
    guest_fwd_cnt: u32,
    credit_asked: bool,
    /// Flags of the last [`Op::Shutdown`] that the guest got.
    shutdown_told: u32,
}

impl Connection {
    /// A connection that a process of the host wants. Its end of it is `stream`.
    pub(super) fn wanted_by_host(ports: Ports, stream: UnixStream) -> Self {
        Self::new(ports, stream, Stage::Wanted)
    }

    /// A connection that the guest asks for with `request`. A process of the host has `stream`'s other end.
    pub(super) fn wanted_by_guest(ports: Ports, stream: UnixStream, request: &Header) -> Self {
        let mut connection = Self::new(ports, stream, Stage::Accepted);
        connection.take_credit(request);
        connection
    }

    fn new(ports: Ports, stream: UnixStream, stage: Stage) -> Self {
        Self {
            ports,
            stage,
            stream,
            readable: true,
            writable: true,
            host_is_silent: false,
            host_is_gone: false,
            guest_is_silent: false,
            guest_is_deaf: false,
            guest_has_reset: false,
            to_host: VecDeque::new(),
            given_on: 0,
            given_on_told: 0,
            update_wanted: false,
            sent: 0,
            guest_buf_alloc: 0,
            guest_fwd_cnt: 0,
            credit_asked: false,
            shutdown_told: 0,
        }
    }

    pub(super) fn ports(&self) -> Ports {
        self.ports
    }

    /// Bytes of the guest's that were given on, for a header.
    pub(super) fn given_on(&self) -> u32 {
        self.given_on
    }

    /// Takes a packet of the guest's. `data` is what is behind the header, as far as it is no longer than
    /// [`BUFFER`].
    pub(super) fn take(&mut self, header: &Header, data: &[u8]) -> Fate {
        self.take_credit(header);
        match (Op::from_number(header.op), self.stage) {
            (Some(Op::Reset), _) => {
                self.guest_has_reset = true;
                // A guest that has shut down, and has waited for us for long, gives up waiting. It doesn't
                // take back what it has sent.
                let is_orderly = self.guest_is_silent && !self.to_host.is_empty();
                return if is_orderly {
                    Fate::Lingers
                } else {
                    Fate::Ends
                };
            }
            (Some(Op::Response), Stage::Asked) => {
                self.stage = Stage::Open;
                // There is room in a socket that nothing was written to.
                let line = format!("OK {}\n", self.ports.host);
                if self.stream.write_all(line.as_bytes()).is_err() {
                    return Fate::Resets;
                }
            }
            (Some(Op::Data), Stage::Open) => {
                let room = BUFFER - self.to_host.len();
                if self.guest_is_silent || header.len as usize > room {
                    return Fate::Resets;
                }
                self.give_on(data);
            }
            (Some(Op::Shutdown), Stage::Open) => {
                self.guest_is_silent |= header.flags & NO_MORE_SENT != 0;
                if header.flags & NO_MORE_RECEIVED != 0 && !self.guest_is_deaf {
                    self.guest_is_deaf = true;
                    self.shut(Shutdown::Read);
                }
                if self.to_host.is_empty() && self.guest_is_silent {
                    self.shut(Shutdown::Write);
                }
            }
            (Some(Op::CreditUpdate), Stage::Open) => {}
            (Some(Op::CreditRequest), Stage::Open) => self.update_wanted = true,
            _ => return Fate::Resets,
        }
        self.fate()
    }

    /// Takes in that its socket has become ready for something.
    pub(super) fn socket_ready(&mut self, events: EventSet) -> Fate {
        let is_over = events.intersects(EventSet::ERROR | EventSet::HANG_UP);
        self.readable |= is_over || events.intersects(EventSet::IN | EventSet::READ_HANG_UP);
        self.writable |= is_over || events.contains(EventSet::OUT);
        if events.contains(EventSet::HANG_UP) {
            self.lose_host();
        }
        self.flush();
        self.fate()
    }

    /// Returns true if there may be something to send to the guest.
    pub(super) fn has_packet(&self) -> bool {
        self.due().is_some()
    }

    /// The next packet for the guest, if there is one; the first `len` bytes of `data` are behind its header.
    /// The guest's buffer has room for as many as `data`, which are some.
    pub(super) fn next_packet(&mut self, data: &mut [u8]) -> (Option<Packet>, Fate) {
        while let Some(due) = self.due() {
            let packet = |op| Packet {
                op,
                flags: 0,
                len: 0,
            };
            let packet = match due {
                Due::Request => {
                    self.stage = Stage::Asked;
                    packet(Op::Request)
                }
                Due::Response => {
                    self.stage = Stage::Open;
                    packet(Op::Response)
                }
                Due::CreditUpdate => packet(Op::CreditUpdate),
                Due::CreditRequest => {
                    self.credit_asked = true;
                    packet(Op::CreditRequest)
                }
                Due::Data => match self.read(data) {
                    Ok(0) => continue,
                    Ok(len) => Packet {
                        len,
                        ..packet(Op::Data)
                    },
                    Err(_) => return (None, Fate::Resets),
                },
                Due::Shutdown(flags) => {
                    self.shutdown_told = flags;
                    Packet {
                        flags,
                        ..packet(Op::Shutdown)
                    }
                }
            };
            // Every header tells the guest this count.
            self.given_on_told = self.given_on;
            self.update_wanted = false;
            return (Some(packet), self.fate());
        }
        (None, self.fate())
    }

    fn due(&self) -> Option<Due> {
        if self.guest_has_reset {
            return None;
        }
        match self.stage {
            Stage::Wanted => return Some(Due::Request),
            Stage::Accepted => return Some(Due::Response),
            Stage::Asked => return None,
            Stage::Open => {}
        }
        // The guest is told before it can have used up what it knows of.
        let untold = self.given_on.wrapping_sub(self.given_on_told) as usize;
        if self.update_wanted || untold >= BUFFER / 2 {
            return Some(Due::CreditUpdate);
        }
        let is_silent = self.host_is_silent || self.host_is_gone && self.guest_is_deaf;
        if self.readable && !is_silent && !self.guest_is_deaf {
            return match self.guest_room() {
                0 => (!self.credit_asked).then_some(Due::CreditRequest),
                _ => Some(Due::Data),
            };
        }
        let mut flags = 0;
        if is_silent {
            flags |= NO_MORE_SENT;
            if self.host_is_gone {
                flags |= NO_MORE_RECEIVED;
            }
        }
        (flags != self.shutdown_told).then_some(Due::Shutdown(flags))
    }

    /// What becomes of the connection in its present state.
    fn fate(&self) -> Fate {
        let all_given_on = self.guest_is_silent && self.to_host.is_empty();
        if self.guest_has_reset {
            let lingers = !self.to_host.is_empty() && !self.host_is_gone;
            return if lingers { Fate::Lingers } else { Fate::Ends };
        }
        match self.stage {
            Stage::Wanted if self.host_is_gone => Fate::Ends,
            Stage::Asked if self.host_is_gone => Fate::Resets,
            // The guest waits for this before it forgets the connection.
            Stage::Open if all_given_on && self.guest_is_deaf => Fate::Resets,
            // The guest can do nothing with it any more but read what it has got.
            Stage::Open if self.shutdown_told == NO_MORE_SENT | NO_MORE_RECEIVED => Fate::Ends,
            _ => Fate::Stays,
        }
    }

    fn take_credit(&mut self, header: &Header) {
        self.guest_buf_alloc = header.buf_alloc;
        self.guest_fwd_cnt = header.fwd_cnt;
        // A guest answers at once, also that it has no room yet. It tells by itself when it has.
        if self.guest_room() > 0 {
            self.credit_asked = false;
        }
    }

    /// Bytes that the guest has room for; 0 where it says that it has given on more than it got.
    fn guest_room(&self) -> u32 {
        let under_way = self.sent.wrapping_sub(self.guest_fwd_cnt);
        self.guest_buf_alloc.saturating_sub(under_way)
    }

    /// Reads what the process has sent. Returns 0 if there is nothing now, or nothing more at all.
    fn read(&mut self, data: &mut [u8]) -> io::Result<u32> {
        let len = data.len().min(self.guest_room() as usize);
        match self.stream.read(&mut data[..len]) {
            Ok(0) => self.host_is_silent = true,
            Ok(len) => {
                self.sent = self.sent.wrapping_add(len as u32);
                return Ok(len as u32);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(0)
    }

    /// Gives `data` to the process, and keeps what it doesn't take now.
    fn give_on(&mut self, data: &[u8]) {
        let taken = match self.to_host.is_empty() {
            true => self.write(data),
            false => 0,
        };
        self.to_host.extend(&data[taken..]);
    }

    /// Gives on what was kept.
    fn flush(&mut self) {
        while !self.to_host.is_empty() {
            let kept = std::mem::take(&mut self.to_host);
            let taken = self.write(kept.as_slices().0);
            self.to_host = kept;
            self.to_host.drain(..taken);
            if taken == 0 {
                return;
            }
            if self.to_host.is_empty() {
                // Most connections never keep anything.
                self.to_host = VecDeque::new();
                if self.guest_is_silent {
                    self.shut(Shutdown::Write);
                }
            }
        }
    }

    /// Writes to the socket. Returns how many bytes were taken, from the first one on: all if the process has
    /// gone.
    fn write(&mut self, data: &[u8]) -> usize {
        let mut taken = 0;
        while self.writable && !self.host_is_gone && taken < data.len() {
            match self.stream.write(&data[taken..]) {
                Ok(len) => taken += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.lose_host(),
            }
        }
        if self.host_is_gone {
            taken = data.len();
        }
        self.given_on = self.given_on.wrapping_add(taken as u32);
        taken
    }

    /// The process takes no more. What it has sent can be read still.
    fn lose_host(&mut self) {
        self.host_is_gone = true;
        self.readable = true;
    }

    fn shut(&mut self, how: Shutdown) {
        if let Err(error) = self.stream.shutdown(how) {
            // The process has closed its end.
            tracing::trace!("a host's socket is shut already: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_bytes_wrap_around() {
        let (mut process, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let near_end = u32::MAX - 3;
        let packet = |op, len, fwd_cnt| Header {
            op: op as u16,
            len,
            buf_alloc: 6,
            fwd_cnt,
            ..Header::default()
        };
        let request = packet(Op::Request, 0, near_end);
        let ports = Ports { guest: 1, host: 2 };
        let mut connection = Connection::wanted_by_guest(ports, stream, &request);
        (connection.sent, connection.given_on) = (near_end, near_end);
        connection.next_packet(&mut [0]);
        process.write_all(b"0123456789").unwrap();
        let mut data = [0; 10];
        let (sent, _) = connection.next_packet(&mut data);
        assert_eq!(sent.unwrap().len, 6);
        assert_eq!((&data[..6], connection.sent), (&b"012345"[..], 2));
        // The guest has given on what it got before the count wrapped.
        let fate = connection.take(&packet(Op::Data, 8, u32::MAX), b"to host!");
        assert_eq!((fate, connection.given_on()), (Fate::Stays, 4));
        let (sent, _) = connection.next_packet(&mut data);
        assert_eq!((sent.unwrap().len, &data[..3]), (3, &b"678"[..]));
    }
}
