//! The report port: a serial line that passes all bytes unchanged.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use lab_init::Frame;

/// An open serial port in raw mode.
#[derive(Debug)]
pub struct Port {
    file: File,
}

impl Port {
    /// Opens the port and switches off all that a terminal does to the bytes (no line feed
    /// becomes carriage return and line feed, no control character acts).
    pub fn open(path: &Path) -> io::Result<Self> {
        // Without O_NONBLOCK it would wait for the carrier, which not every emulated line has.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        let fd = file.as_raw_fd();
        let mut termios = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: `fd` is open and the pointer is to memory of the struct's size.
        check(unsafe { libc::tcgetattr(fd, termios.as_mut_ptr()) })?;
        // SAFETY: tcgetattr succeeded, so it filled in the whole struct.
        let mut termios = unsafe { termios.assume_init() };
        // SAFETY: it only changes fields of the struct that it is given.
        unsafe { libc::cfmakeraw(&mut termios) };
        termios.c_cflag = (termios.c_cflag & !libc::CBAUD) | libc::B115200 | libc::CLOCAL;
        // SAFETY: `fd` is open and the struct is initialized.
        check(unsafe { libc::tcsetattr(fd, libc::TCSANOW, &termios) })?;
        // SAFETY: `fd` is open; the flags are those of `open`, without O_NONBLOCK from now on.
        check(unsafe { libc::fcntl(fd, libc::F_SETFL, 0) })?;
        Ok(Self { file })
    }

    /// Sends one frame. Callers on several threads must not send at the same time.
    pub fn send(&self, frame: &Frame) -> io::Result<()> {
        (&self.file).write_all(&frame.encode())
    }

    /// Waits until every byte has left the port.
    pub fn drain(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open; no memory is involved.
        check(unsafe { libc::tcdrain(self.file.as_raw_fd()) })
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
