//! The guest's side of the serial console: reports out, lines in.

use std::io::{self, BufRead, Write};

use serde_json::Value;

/// What every report starts with.
const PREFIX: &str = "@guest ";

/// Writes one report as one line; returns when the serial port has sent it.
///
/// `fields` is a JSON object.
pub fn report(event: &str, mut fields: Value) {
    fields["event"] = event.into();
    let line = format!("{PREFIX}{fields}\n");
    let mut console = io::stdout().lock();
    // A failure could only be reported by this console.
    let _ = console
        .write_all(line.as_bytes())
        .and_then(|()| console.flush());
    // Otherwise what the kernel prints next would overtake the end of the line.
    // SAFETY: no memory is involved.
    unsafe { libc::tcdrain(libc::STDOUT_FILENO) };
}

/// Switches off the terminal's own echo of input, which would mix with the reports.
pub fn no_echo() -> io::Result<()> {
    // SAFETY: a termios of zeros is valid: integers only.
    let mut termios: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the struct lives for the call.
    if unsafe { libc::tcgetattr(libc::STDIN_FILENO, &mut termios) } != 0 {
        return Err(io::Error::last_os_error());
    }
    termios.c_lflag &= !(libc::ECHO | libc::ECHONL);
    // SAFETY: the struct is initialized and lives for the call.
    if unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &termios) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Waits for a line of input and returns it without its end.
pub fn line() -> io::Result<String> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Returns true if a line of input waits to be read.
pub fn has_input() -> io::Result<bool> {
    let mut poll = libc::pollfd {
        fd: libc::STDIN_FILENO,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives for the call.
    match unsafe { libc::poll(&mut poll, 1, 0) } {
        -1 => Err(io::Error::last_os_error()),
        ready => Ok(ready > 0),
    }
}
