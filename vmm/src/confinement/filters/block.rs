//! The system calls of a thread that serves a disk.

use libc::{
    SYS_fallocate, SYS_fdatasync, SYS_fstat, SYS_fsync, SYS_ftruncate, SYS_io_uring_enter,
    SYS_lseek, SYS_pread64, SYS_preadv, SYS_pwrite64, SYS_pwritev, SYS_statx, SYS_timerfd_create,
    SYS_timerfd_settime,
};

use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::any(SYS_timerfd_create, "rate limits"),
    Rule::any(SYS_timerfd_settime, "rate limits"),
    Rule::any(
        SYS_io_uring_enter,
        "transfers of a raw image: of a ring that takes reads, writes and flushes of this file alone",
    ),
    Rule::any(SYS_pread64, "reads of the disk"),
    Rule::any(SYS_preadv, "reads of the disk"),
    Rule::any(SYS_pwrite64, "writes to the disk"),
    Rule::any(SYS_pwritev, "writes to the disk"),
    Rule::any(SYS_fdatasync, "flushes"),
    Rule::any(SYS_fsync, "flushes"),
    Rule::any(SYS_fallocate, "discards and zeroes"),
    Rule::any(SYS_ftruncate, "a qcow2 file grows"),
    Rule::any(SYS_lseek, "the length of an image"),
    Rule::any(SYS_fstat, "the length of an image"),
    Rule::any(SYS_statx, "the length of an image"),
];
