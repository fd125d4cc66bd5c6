//! How connections end.

use super::*;

const BOTH: u32 = NO_MORE_SENT | NO_MORE_RECEIVED;

#[test]
fn a_process_that_has_no_more_to_send_still_gets_what_the_guest_sends() {
    let mut guest = Guest::new();
    let (mut stream, host) = guest.answer();
    stream.write_all(b"last").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(guest.expect_data(4), b"last");
    assert_eq!(guest.expect(Op::Shutdown).flags, NO_MORE_SENT);
    guest.send(&data(PORT, host, 6), b"answer");
    assert_eq!(read(&mut stream, 6), b"answer");
    drop(stream);
    assert_eq!(guest.expect(Op::Shutdown).flags, BOTH);
}

#[test]
fn a_guest_that_has_no_more_to_send_still_gets_what_the_process_sends() {
    let mut guest = Guest::new();
    let (mut stream, host) = guest.answer();
    guest.send(&data(PORT, host, 4), b"last");
    guest.send(&shutdown(PORT, host, NO_MORE_SENT), &[]);
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last");
    stream.write_all(b"answer").unwrap();
    assert_eq!(guest.expect_data(6), b"answer");
    // The guest may not begin to send again.
    guest.send(&data(PORT, host, 4), b"more");
    guest.expect(Op::Reset);
}

#[test]
fn a_guest_that_takes_no_more_ends_what_the_process_sends() {
    let mut guest = Guest::new();
    let (mut stream, host) = guest.answer();
    guest.send(&shutdown(PORT, host, NO_MORE_RECEIVED), &[]);
    guest.send(&data(PORT, host, 5), b"still");
    assert_eq!(read(&mut stream, 5), b"still");
    assert!(stream.write_all(b"too late").is_err());
    drop(stream);
    assert_eq!(guest.expect(Op::Shutdown).flags, BOTH);
}

#[test]
fn a_guest_that_closes_is_told_when_the_process_has_all_that_it_sent() {
    let mut guest = Guest::new();
    let (mut stream, host) = guest.answer();
    guest.send(&data(PORT, host, 4), b"last");
    guest.send(&shutdown(PORT, host, BOTH), &[]);
    assert_eq!(guest.expect(Op::Reset).dst_port, PORT);
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last");
}

#[test]
fn what_a_guest_sent_before_it_closed_reaches_a_process_that_reads_late() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let mut stream = guest.connect(PORT, &listener);
    let bytes = pattern(64 << 10);
    let (mut sent, mut fwd_cnt) = (0, 0);
    // Until the process's socket takes no more, and some of it is in the device.
    while sent == fwd_cnt {
        let piece = &bytes[..16 << 10];
        guest.send(&data(PORT, SERVICE, piece.len()), piece);
        sent += piece.len() as u32;
        guest.send(&header(Op::CreditRequest, PORT, SERVICE), &[]);
        for update in guest.receive_all() {
            assert_eq!(update.op, Op::CreditUpdate as u16);
            fwd_cnt = update.fwd_cnt;
        }
    }
    guest.send(&shutdown(PORT, SERVICE, BOTH), &[]);
    // The guest has waited for the answer for long enough. The ports may be used again.
    guest.send(&header(Op::Reset, PORT, SERVICE), &[]);
    let mut next = guest.connect(PORT, &listener);
    // Something happens to the one that lingers.
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    guest.send(&data(PORT, SERVICE, 4), b"next");
    assert_eq!(read(&mut next, 4), b"next");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), sent as usize);
}

#[test]
fn a_guest_s_reset_in_the_midst_of_a_transfer_ends_the_process_s_connection() {
    let mut guest = Guest::new();
    let (mut stream, host) = guest.answer();
    stream.write_all(&pattern(100_000)).unwrap();
    guest.receive();
    guest.send(&header(Op::Reset, PORT, host), &[]);
    let end = stream.read(&mut [0]);
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    // A late packet is answered by a reset, behind what was on its way.
    guest.send(&data(PORT, host, 1), b"x");
    while guest.receive().0.op != Op::Reset as u16 {}
}

#[test]
fn a_process_that_closes_with_bytes_unread_resets_the_guest_s_connection() {
    let mut guest = Guest::new();
    let (stream, host) = guest.answer();
    guest.send(&data(PORT, host, 6), b"unread");
    drop(stream);
    assert_eq!(guest.expect(Op::Reset).src_port, host);
}

#[test]
fn a_reset_of_the_device_ends_all_connections_and_it_serves_again() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let mut first = guest.connect(PORT, &listener);
    let (mut second, _) = guest.answer();
    guest.driver.reset();
    for stream in [&mut first, &mut second] {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    // This one connects while the device is reset.
    let waiting = guest.call(PORT);
    guest.start();
    let host = guest.expect(Op::Request).src_port;
    guest.send(&header(Op::Response, PORT, host), &[]);
    assert_eq!(line(&waiting), format!("OK {host}"));
    guest.connect(PORT, &listener);
}
