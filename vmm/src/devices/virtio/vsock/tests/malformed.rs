//! What makes no sense.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::devices::virtio::{
    driver::CONFIG_INTERRUPT,
    vsock::{
        host_socket::HostSocket,
        multiplexer::{MAX_RESETS, Multiplexer},
    },
};

const NEEDS_RESET: u8 = 0x40;

#[test]
fn packets_for_others_of_other_types_and_of_no_operation_are_reset() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let base = header(Op::Request, PORT, SERVICE);
    for wrong in [
        Header { dst_cid: 9, ..base },
        Header { kind: 2, ..base },
        Header { kind: 0, ..base },
        Header { op: 8, ..base },
        Header { op: 0, ..base },
        header(Op::Response, PORT, SERVICE),
        header(Op::CreditUpdate, PORT, SERVICE),
    ] {
        guest.send(&wrong, &[]);
        let (reset, _) = guest.receive();
        assert_eq!(reset, wrong.reset(), "{wrong:?}");
    }
    // No guest is at the first one's address, and a reset is never answered.
    guest.send(&Header { src_cid: 9, ..base }, &[]);
    guest.send(&header(Op::Reset, PORT, SERVICE), &[]);
    let _stream = guest.connect(PORT, &listener);
    // The same two ports can't have a second connection.
    guest.send(&base, &[]);
    guest.expect(Op::Reset);
}

#[test]
fn packets_that_are_none_need_a_reset_of_the_device() {
    let mut guest = Guest::idle(MAX_CONNECTIONS);
    let listener = guest.listen(SERVICE);
    let short = |len| Buffer {
        at: TX_AT,
        len,
        writable: false,
    };
    let breaks: [&dyn Fn(&mut Guest); 4] = [
        // Shorter than a header.
        &|guest| {
            guest
                .driver
                .offer_from(TX, 0, &[short(HEADER_LEN as u32 - 1)]);
        },
        // Shorter than its header says.
        &|guest| {
            let packet = data(PORT, SERVICE, 10).to_bytes();
            guest.driver.set_bytes(TX_AT, &packet);
            let len = HEADER_LEN as u32 + 9;
            guest.driver.offer_from(TX, 0, &[short(len)]);
        },
        // A buffer to write in place of one to read.
        &|guest| {
            let buffer = Buffer {
                writable: true,
                ..short(100)
            };
            guest.driver.offer_from(TX, 0, &[buffer]);
        },
        // No room for what the device would send.
        &|guest| {
            for _ in 0..RX_BUFFERS {
                guest.driver.finished_in(RX);
            }
            let buffer = Buffer {
                writable: true,
                ..short(HEADER_LEN as u32)
            };
            guest.driver.offer_from(RX, 0, &[buffer]);
            guest.put(&header(Op::Data, PORT + 1, SERVICE), &[]);
        },
    ];
    for break_it in breaks {
        guest.start();
        let mut stream = guest.connect(PORT, &listener);
        for _ in 0..RX_BUFFERS {
            guest.send(&header(Op::Data, PORT + 1, SERVICE), &[]);
        }
        break_it(&mut guest);
        guest.driver.events.wait_for(CONFIG_INTERRUPT);
        assert_eq!(guest.driver.status() & NEEDS_RESET, NEEDS_RESET);
        guest.driver.reset();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

/// A packet of a guest that knows some ports, and says anything about the rest.
fn any_packet() -> impl Strategy<Value = Header> {
    let cid = |likely: u64| prop_oneof![9 => Just(likely), 1 => any::<u64>()];
    // The host listens at the first two, and the third is that of the first process that calls.
    let host_port = prop_oneof![
        Just(SERVICE),
        Just(SERVICE + 1),
        Just(1 << 30),
        any::<u32>()
    ];
    let number = || prop_oneof![Just(0), 0..100_000u32, any::<u32>()];
    let addresses = (cid(GUEST_CID), cid(HOST_CID), PORT..PORT + 3, host_port);
    let kind = prop_oneof![9 => Just(STREAM), 1 => any::<u16>()];
    let op = prop_oneof![9 => 0..9u16, 1 => any::<u16>()];
    let rest = (number(), kind, op, number(), number(), number());
    (addresses, rest).prop_map(|(addresses, rest)| {
        let (src_cid, dst_cid, src_port, dst_port) = addresses;
        let (len, kind, op, flags, buf_alloc, fwd_cnt) = rest;
        Header {
            src_cid,
            dst_cid,
            src_port,
            dst_port,
            len,
            kind,
            op,
            flags,
            buf_alloc,
            fwd_cnt,
        }
    })
}

/// What a guest does, or a process.
#[derive(Clone, Debug)]
enum Step {
    Send(Header),
    Receive(usize),
    Call(u32),
    /// A process that was accepted, or has called, writes, reads or closes.
    Write(usize),
    Read(usize),
    Close(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_packet().prop_map(Step::Send),
        4 => (1..5000usize).prop_map(Step::Receive),
        1 => (PORT..PORT + 3).prop_map(Step::Call),
        1 => any::<usize>().prop_map(Step::Write),
        1 => any::<usize>().prop_map(Step::Read),
        1 => any::<usize>().prop_map(Step::Close),
    ]
}

proptest! {
    #[test]
    fn whatever_a_guest_sends_harms_nobody_else(steps in vec(any_step(), 1..100)) {
        const LIMIT: usize = 8;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vsock");
        let listeners = [SERVICE, SERVICE + 1].map(|port| {
            let path = folder.path().join(format!("vsock_{port}"));
            let listener = UnixListener::bind(path).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        });
        let socket = HostSocket::new(&path.as_path().into()).unwrap();
        let mut multiplexer = Multiplexer::new(GUEST_CID as u32, socket, LIMIT).unwrap();
        let bytes = vec![0xaa; BUFFER];
        let mut room = vec![0; BUFFER];
        let mut processes = Vec::new();
        for step in steps {
            match step {
                Step::Send(header) => {
                    let len = (header.len as usize).min(BUFFER);
                    if multiplexer.has_room() {
                        multiplexer.take(&header, &bytes[..len]);
                    }
                }
                Step::Receive(len) => {
                    if let Some(header) = multiplexer.next_packet(&mut room[..len]) {
                        prop_assert!(header.len as usize <= len);
                    }
                }
                Step::Call(port) => {
                    let mut stream = UnixStream::connect(&path).unwrap();
                    writeln!(stream, "CONNECT {port}").unwrap();
                    processes.push(stream);
                }
                _ if processes.is_empty() => {}
                Step::Write(nth) => {
                    let at = nth % processes.len();
                    let stream: &mut UnixStream = &mut processes[at];
                    stream.set_nonblocking(true).unwrap();
                    let _it_may_have_been_closed = stream.write(&bytes);
                }
                Step::Read(nth) => {
                    let at = nth % processes.len();
                    let stream: &mut UnixStream = &mut processes[at];
                    stream.set_nonblocking(true).unwrap();
                    let _there_may_be_nothing = stream.read(&mut [0; 40_000]);
                }
                Step::Close(nth) => drop(processes.swap_remove(nth % processes.len())),
            }
            multiplexer.poll();
            prop_assert!(multiplexer.connections() <= LIMIT);
            let accepted = listeners.iter().filter_map(|listener| listener.accept().ok());
            processes.extend(accepted.map(|(stream, _)| stream));
        }
        // When all processes have gone and all resets are received, the device has its resources back, but
        // for connections whose end the guest hasn't taken room for.
        drop(processes);
        let mut packets = 0;
        while multiplexer.has_packet() {
            multiplexer.poll();
            multiplexer.next_packet(&mut room);
            packets += 1;
            prop_assert!(packets < 10 * (MAX_RESETS + LIMIT), "it sends for ever");
        }
    }
}
