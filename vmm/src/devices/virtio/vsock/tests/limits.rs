//! What a guest and processes can take at most.

use super::*;
use crate::devices::virtio::vsock::multiplexer::MAX_RESETS;

#[test]
fn beyond_the_limit_a_guest_is_refused_and_a_process_waits() {
    const LIMIT: u32 = 4;
    let mut guest = Guest::with_limit(LIMIT as usize);
    let listener = guest.listen(SERVICE);
    let mut streams: Vec<_> = (0..LIMIT)
        .map(|port| guest.connect(port, &listener))
        .collect();
    guest.send(&header(Op::Request, LIMIT, SERVICE), &[]);
    assert_eq!(guest.expect(Op::Reset).dst_port, LIMIT);
    let waiting = guest.call(PORT);
    drop(streams.pop());
    let end = guest.expect(Op::Shutdown);
    assert_eq!(end.dst_port, LIMIT - 1);
    let host = guest.expect(Op::Request).src_port;
    guest.send(&header(Op::Response, PORT, host), &[]);
    assert_eq!(line(&waiting), format!("OK {host}"));
}

#[test]
fn a_guest_can_have_as_many_connections_as_there_are_at_most() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let mut streams: Vec<_> = (0..MAX_CONNECTIONS as u32)
        .map(|port| guest.connect(port, &listener))
        .collect();
    guest.send(&header(Op::Request, PORT * 2, SERVICE), &[]);
    guest.expect(Op::Reset);
    for (stream, port) in streams.iter_mut().zip(0u32..) {
        guest.send(&data(port, SERVICE, 4), &port.to_le_bytes());
        assert_eq!(read(stream, 4), port.to_le_bytes());
    }
}

#[test]
fn a_guest_that_takes_no_answers_is_not_heard_until_it_does() {
    let mut guest = Guest::idle(MAX_CONNECTIONS);
    guest.driver.start();
    for port in 0..MAX_RESETS as u32 {
        guest.send(&header(Op::Data, port, SERVICE), &[]);
    }
    // This one stays in its queue, and isn't lost.
    guest.put(&header(Op::Data, MAX_RESETS as u32, SERVICE), &[]);
    guest.give_buffers();
    for port in 0..=MAX_RESETS as u32 {
        assert_eq!(guest.expect(Op::Reset).dst_port, port);
    }
}

#[test]
fn connections_that_are_opened_and_reset_again_and_again_leave_nothing() {
    let mut guest = Guest::idle(2);
    guest.driver.start();
    let listener = guest.listen(SERVICE);
    // The guest gives no buffer, so it is told of none of these connections.
    for port in 0..2000 {
        guest.send(&header(Op::Request, port, SERVICE), &[]);
        drop(listener.accept().unwrap());
        guest.send(&header(Op::Reset, port, SERVICE), &[]);
    }
    guest.give_buffers();
    guest.connect(PORT, &listener);
}
