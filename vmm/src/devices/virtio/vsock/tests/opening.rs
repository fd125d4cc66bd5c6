//! How connections come about.

use super::*;

#[test]
fn a_process_that_names_a_port_is_connected_to_it() {
    let mut guest = Guest::new();
    let (mut stream, host) = guest.answer();
    stream.write_all(b"to the guest").unwrap();
    assert_eq!(guest.expect_data(12), b"to the guest");
    guest.send(&data(PORT, host, 11), b"to the host");
    assert_eq!(read(&mut stream, 11), b"to the host");
}

#[test]
fn a_guest_is_connected_to_the_process_that_listens_for_its_port() {
    let mut guest = Guest::new();
    let listener = guest.listen(SERVICE);
    let mut stream = guest.connect(PORT, &listener);
    guest.send(&data(PORT, SERVICE, 11), b"to the host");
    assert_eq!(read(&mut stream, 11), b"to the host");
    stream.write_all(b"to the guest").unwrap();
    assert_eq!(guest.expect_data(12), b"to the guest");
}

#[test]
fn bytes_behind_the_line_of_a_process_are_for_the_guest() {
    let mut guest = Guest::new();
    let mut stream = guest.call(PORT);
    stream.write_all(b"early").unwrap();
    let host = guest.expect(Op::Request).src_port;
    guest.send(&header(Op::Response, PORT, host), &[]);
    assert_eq!(guest.expect_data(5), b"early");
    assert_eq!(line(&stream), format!("OK {host}"));
}

#[test]
fn processes_that_want_the_same_port_have_ports_of_their_own() {
    let mut guest = Guest::new();
    let (mut first, first_port) = guest.answer();
    let (mut second, second_port) = guest.answer();
    assert_ne!(first_port, second_port);
    guest.send(&data(PORT, second_port, 1), b"2");
    guest.send(&data(PORT, first_port, 1), b"1");
    assert_eq!(read(&mut first, 1), b"1");
    assert_eq!(read(&mut second, 1), b"2");
}

#[test]
fn a_guest_is_refused_where_nobody_listens() {
    let mut guest = Guest::new();
    guest.send(&header(Op::Request, PORT, SERVICE), &[]);
    let reset = guest.expect(Op::Reset);
    assert_eq!((reset.src_port, reset.dst_port), (SERVICE, PORT));
    // A socket whose process has gone.
    drop(guest.listen(SERVICE));
    guest.send(&header(Op::Request, PORT, SERVICE), &[]);
    guest.expect(Op::Reset);
}

#[test]
fn a_process_whose_port_the_guest_refuses_finds_its_connection_closed() {
    let mut guest = Guest::new();
    let mut stream = guest.call(PORT);
    let host = guest.expect(Op::Request).src_port;
    guest.send(&header(Op::Reset, PORT, host), &[]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_process_that_names_no_port_finds_its_connection_closed() {
    let guest = Guest::new();
    let mut stream = UnixStream::connect(guest.path()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\n").unwrap();
    // What it wrote behind its line was not read.
    let end = stream.read(&mut [0]);
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

#[test]
fn a_process_that_gives_up_waiting_ends_the_guest_s_connection() {
    let mut guest = Guest::new();
    let stream = guest.call(PORT);
    let host = guest.expect(Op::Request).src_port;
    drop(stream);
    assert_eq!(guest.expect(Op::Reset).src_port, host);
}

#[test]
fn a_process_that_calls_before_the_driver_starts_waits_for_it() {
    let mut guest = Guest::idle(MAX_CONNECTIONS);
    let stream = guest.call(PORT);
    guest.start();
    let host = guest.expect(Op::Request).src_port;
    guest.send(&header(Op::Response, PORT, host), &[]);
    assert_eq!(line(&stream), format!("OK {host}"));
}

#[test]
fn a_driver_finds_its_cid_in_the_configuration() {
    let guest = Guest::new();
    assert_eq!(guest.driver.get::<8>(0x2000), GUEST_CID.to_le_bytes());
}

#[test]
fn a_cid_that_is_reserved_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for cid in [0, 1, 2, u32::MAX] {
        let path = folder.path().join("vsock").into();
        let refused = VsockDevice::open(&Vsock { path, cid }).err().unwrap();
        assert!(refused.to_string().contains(&cid.to_string()), "{refused}");
        assert_eq!(refused.field(), "devices.vsock.cid");
    }
}
