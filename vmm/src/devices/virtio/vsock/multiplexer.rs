//! All connections of a device, their sockets, and the packets that wait for room in the guest.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixStream,
    },
};

use vmm_sys_util::{
    epoll::{ControlOperation, Epoll, EpollEvent, EventSet},
    eventfd::EventFd,
};

use super::{
    BUFFER, HOST_CID,
    caller::{Caller, Wish},
    connection::{Connection, Fate, Packet},
    host_socket::HostSocket,
    packet::{Header, Op, Ports, STREAM},
};

/// Most resets that wait for room in the guest. While there are so many, no packet of the guest's is taken,
/// as each could ask for another (5.10.6.1).
pub(super) const MAX_RESETS: usize = 256;
/// Most events that are looked at, and processes that are accepted, before the queues have their turn.
const EVENTS: usize = 64;
/// The first of the ports that processes of the host get. Those below are for the ones that a guest names.
const FIRST_CALLER_PORT: u32 = 1 << 30;

/// Data of the events of the listening socket and of [`Multiplexer::again`]. Connections have numbers below.
const LISTENER: u64 = u64::MAX;
const AGAIN: u64 = u64::MAX - 1;

/// All that can happen to a socket. Each is told once when it becomes so, so that a connection whose turn
/// hasn't come doesn't keep the thread awake.
fn all_edges() -> EventSet {
    EventSet::IN | EventSet::OUT | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED
}

/// A process of the host that has connected, or was connected to.
enum Peer {
    Caller(Caller),
    Connected(Connection),
}

/// A peer, by its number.
struct Entry {
    peer: Peer,
    /// The peer is among those that may have a packet for the guest.
    is_queued: bool,
}

pub(super) struct Multiplexer {
    guest_cid: u64,
    socket: HostSocket,
    /// Watches all sockets.
    epoll: Epoll,
    again: EventFd,
    /// A process may wait to be accepted.
    may_accept: bool,
    entries: HashMap<u64, Entry>,
    /// Most entries.
    limit: usize,
    by_ports: HashMap<Ports, u64>,
    /// The peers that may have a packet for the guest. They have a turn each.
    queued: VecDeque<u64>,
    resets: VecDeque<Header>,
    next_number: u64,
    next_port: u32,
}

impl Multiplexer {
    /// Makes a multiplexer without a connection, which takes at most `limit`; processes of the host connect to
    /// `socket`.
    ///
    /// # Errors
    /// The host has no more files.
    pub(super) fn new(guest_cid: u32, socket: HostSocket, limit: usize) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let again = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        for (file, data) in [
            (socket.listener().as_raw_fd(), LISTENER),
            (again.as_raw_fd(), AGAIN),
        ] {
            let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, data);
            epoll.ctl(ControlOperation::Add, file, event)?;
        }
        Ok(Self {
            guest_cid: guest_cid.into(),
            socket,
            epoll,
            again,
            may_accept: true,
            entries: HashMap::new(),
            limit,
            by_ports: HashMap::new(),
            queued: VecDeque::new(),
            resets: VecDeque::new(),
            next_number: 0,
            next_port: FIRST_CALLER_PORT,
        })
    }

    /// The file that is readable as long as [`poll`](Self::poll) has something to look at.
    pub(super) fn file(&self) -> &impl AsRawFd {
        &self.epoll
    }

    /// Makes [`file`](Self::file) readable.
    pub(super) fn wake(&self) {
        if let Err(error) = self.again.write(1) {
            tracing::error!("the thread of a socket device can't be woken: {error}");
        }
    }

    /// Ends all connections without a word to the guest.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.by_ports.clear();
        self.queued.clear();
        self.resets.clear();
        self.may_accept = true;
    }

    /// Looks at what has happened to sockets, and accepts processes that connect.
    pub(super) fn poll(&mut self) {
        let mut events = [EpollEvent::default(); EVENTS];
        let count = match self.epoll.wait(0, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => {
                tracing::error!("the sockets of a guest can't be watched: {error}");
                0
            }
        };
        for event in &events[..count] {
            match event.data() {
                LISTENER => self.may_accept = true,
                AGAIN => {}
                number => self.socket_ready(number, event.event_set()),
            }
        }
        for _ in 0..EVENTS {
            if !self.can_accept() {
                break;
            }
            self.accept();
        }
    }

    /// Returns true if [`poll`](Self::poll) would accept a process. While there are too many connections,
    /// processes that connect wait.
    pub(super) fn can_accept(&self) -> bool {
        self.may_accept && self.entries.len() < self.limit
    }

    /// Connections, and processes that have not said yet which one they want.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if a packet of the guest's can be taken.
    pub(super) fn has_room(&self) -> bool {
        self.resets.len() < MAX_RESETS
    }

    /// Takes a packet of the guest's. `data` is what is behind the header, as far as it is no longer than
    /// [`BUFFER`].
    pub(super) fn take(&mut self, header: &Header, data: &[u8]) {
        if header.src_cid != self.guest_cid {
            // No answer would reach the sender.
            return;
        }
        let op = Op::from_number(header.op);
        let ports = Ports {
            guest: header.src_port,
            host: header.dst_port,
        };
        let is_known = header.dst_cid == HOST_CID && header.kind == STREAM;
        let number = is_known.then(|| self.by_ports.get(&ports)).flatten();
        let entry = number.and_then(|number| Some((*number, self.entries.get_mut(number)?)));
        match entry {
            Some((number, entry)) => {
                if let Peer::Connected(connection) = &mut entry.peer {
                    let fate = connection.take(header, data);
                    self.settle(number, fate);
                }
            }
            None if op == Some(Op::Request) && is_known => {
                if let Err(error) = self.connect(ports, header) {
                    tracing::debug!(
                        port = ports.host,
                        "a guest's connection is refused: {error}"
                    );
                    self.resets.push_back(header.reset());
                }
            }
            None if op == Some(Op::Reset) => {}
            None => self.resets.push_back(header.reset()),
        }
    }

    /// Returns true if there may be a packet for the guest.
    pub(super) fn has_packet(&self) -> bool {
        !self.resets.is_empty() || !self.queued.is_empty()
    }

    /// The next packet for the guest, if there is one; the first `len` bytes of `data` are behind it. The
    /// guest's buffer has room for as many as `data`, which are some.
    pub(super) fn next_packet(&mut self, data: &mut [u8]) -> Option<Header> {
        loop {
            if let Some(reset) = self.resets.pop_front() {
                return Some(reset);
            }
            let number = self.queued.pop_front()?;
            let Some(entry) = self.entries.get_mut(&number) else {
                continue;
            };
            entry.is_queued = false;
            let Peer::Connected(connection) = &mut entry.peer else {
                continue;
            };
            let (packet, fate) = connection.next_packet(data);
            let header = packet.map(|packet| header(self.guest_cid, connection, &packet));
            self.settle(number, fate);
            if header.is_some() {
                return header;
            }
        }
    }

    fn socket_ready(&mut self, number: u64, events: EventSet) {
        // The peer may have ended since the event.
        let Some(entry) = self.entries.get_mut(&number) else {
            return;
        };
        match &mut entry.peer {
            Peer::Caller(_) => self.hear(number),
            Peer::Connected(connection) => {
                let fate = connection.socket_ready(events);
                self.settle(number, fate);
            }
        }
    }

    /// Does what is to be done about a connection after something has happened to it.
    fn settle(&mut self, number: u64, fate: Fate) {
        let Some(entry) = self.entries.get_mut(&number) else {
            return;
        };
        let Peer::Connected(connection) = &entry.peer else {
            return;
        };
        match fate {
            Fate::Stays => {
                if connection.has_packet() && !entry.is_queued {
                    entry.is_queued = true;
                    self.queued.push_back(number);
                }
            }
            Fate::Lingers => {
                let ports = connection.ports();
                self.give_back(ports, number);
            }
            Fate::Ends => self.remove(number),
            Fate::Resets => {
                let reset = Packet {
                    op: Op::Reset,
                    flags: 0,
                    len: 0,
                };
                let reset = header(self.guest_cid, connection, &reset);
                self.resets.push_back(reset);
                self.remove(number);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(entry) = self.entries.remove(&number) else {
            return;
        };
        if let Peer::Connected(connection) = entry.peer {
            self.give_back(connection.ports(), number);
        }
        if entry.is_queued {
            self.queued.retain(|queued| *queued != number);
        }
        // There may have been too few files to accept a process.
        self.may_accept = true;
    }

    /// Lets other connections than this one have the ports. One that lingers has given them back already, and
    /// they may be another one's.
    fn give_back(&mut self, ports: Ports, number: u64) {
        if self.by_ports.get(&ports) == Some(&number) {
            self.by_ports.remove(&ports);
        }
    }

    /// Connects the guest to a process of the host, as it asks with `request`.
    fn connect(&mut self, ports: Ports, request: &Header) -> io::Result<()> {
        if self.entries.len() >= self.limit {
            return Err(io::Error::other("there are too many connections already"));
        }
        let stream = self.socket.connect(ports.host)?;
        let number = self.watch(stream.as_raw_fd())?;
        let connection = Connection::wanted_by_guest(ports, stream, request);
        self.insert(number, Peer::Connected(connection));
        self.by_ports.insert(ports, number);
        self.settle(number, Fate::Stays);
        Ok(())
    }

    fn accept(&mut self) {
        match self.socket.accept() {
            Ok(stream) => self.accepted(stream),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                io::ErrorKind::WouldBlock => self.may_accept = false,
                // Too few files, as a rule: it is tried again when a connection has ended.
                _ => {
                    tracing::warn!("a process can't be connected to a guest: {error}");
                    self.may_accept = false;
                }
            },
        }
    }

    fn accepted(&mut self, stream: UnixStream) {
        match self.watch(stream.as_raw_fd()) {
            Ok(number) => self.insert(number, Peer::Caller(Caller::new(stream))),
            Err(error) => tracing::warn!("a process can't be connected to a guest: {error}"),
        }
    }

    /// Reads what a caller says, and asks the guest for the port that it wants.
    fn hear(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else {
            return;
        };
        let Peer::Caller(caller) = &mut entry.peer else {
            return;
        };
        match caller.read_line() {
            Wish::Unknown => {}
            Wish::None => self.remove(number),
            Wish::Port(guest) => {
                let Some(Entry {
                    peer: Peer::Caller(caller),
                    ..
                }) = self.entries.remove(&number)
                else {
                    return;
                };
                let ports = self.free_ports(guest);
                let connection = Connection::wanted_by_host(ports, caller.into_stream());
                self.insert(number, Peer::Connected(connection));
                self.by_ports.insert(ports, number);
                self.settle(number, Fate::Stays);
            }
        }
    }

    /// The ports of a new connection to the guest's port `guest`. There are fewer connections than ports.
    fn free_ports(&mut self, guest: u32) -> Ports {
        loop {
            let host = self.next_port;
            self.next_port = host.checked_add(1).unwrap_or(FIRST_CALLER_PORT);
            let ports = Ports { guest, host };
            if !self.by_ports.contains_key(&ports) {
                return ports;
            }
        }
    }

    /// Watches the socket of a new peer. Closing the socket ends the watch.
    fn watch(&mut self, socket: RawFd) -> io::Result<u64> {
        let number = self.next_number;
        let event = EpollEvent::new(all_edges(), number);
        self.epoll.ctl(ControlOperation::Add, socket, event)?;
        self.next_number += 1;
        Ok(number)
    }

    fn insert(&mut self, number: u64, peer: Peer) {
        let is_queued = false;
        self.entries.insert(number, Entry { peer, is_queued });
    }
}

/// The header of a connection's packet.
fn header(guest_cid: u64, connection: &Connection, packet: &Packet) -> Header {
    let ports = connection.ports();
    Header {
        src_cid: HOST_CID,
        dst_cid: guest_cid,
        src_port: ports.host,
        dst_port: ports.guest,
        len: packet.len,
        kind: STREAM,
        op: packet.op as u16,
        flags: packet.flags,
        buf_alloc: BUFFER as u32,
        fwd_cnt: connection.given_on(),
    }
}
