//! The system calls of the thread that serves the socket device.

use libc::{
    SYS_accept4, SYS_connect, SYS_getsockopt, SYS_ioctl, SYS_openat, SYS_readv, SYS_recvfrom,
    SYS_recvmsg, SYS_sendmsg, SYS_sendto, SYS_setsockopt, SYS_shutdown, SYS_socket, SYS_writev,
};

use super::condition::Condition;
use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::any(SYS_accept4, "processes of the host connect"),
    Rule::only(
        SYS_socket,
        Condition::AF_UNIX,
        "the guest connects to a socket of the host",
    ),
    Rule::any(
        SYS_openat,
        "a socket of the host is found; landlock keeps it from files",
    ),
    Rule::any(SYS_connect, "the guest connects to a socket of the host"),
    Rule::any(SYS_shutdown, "one side has no more to say"),
    Rule::any(SYS_recvfrom, "bytes for the guest"),
    Rule::any(SYS_recvmsg, "bytes for the guest"),
    Rule::any(SYS_readv, "bytes for the guest"),
    Rule::any(SYS_sendto, "bytes from the guest"),
    Rule::any(SYS_sendmsg, "bytes from the guest"),
    Rule::any(SYS_writev, "bytes from the guest"),
    Rule::any(SYS_getsockopt, "whether a connection has come about"),
    Rule::any(SYS_setsockopt, "sockets don't block"),
    Rule::only(SYS_ioctl, Condition::FIONBIO, "sockets don't block"),
];
