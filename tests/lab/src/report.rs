//! Reading what PID 1 of the lab machine sends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use lab_init::{Decoder, Exit, Frame, FrameError, MAX_PAYLOAD};

/// Why a report has no exit status.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The time was up first.
    #[error("the time limit has passed")]
    Deadline,
    /// The line ended before the last frame.
    #[error("the machine ended before its report did")]
    Ended,
    /// PID 1 couldn't run the program.
    #[error("{0}")]
    NotRun(String),
    /// The bytes are no frames.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The line failed.
    #[error("can't read the report")]
    Read(#[source] io::Error),
    /// The program's output can't be passed on.
    #[error("can't write the program's output")]
    Output(#[source] io::Error),
}

/// How the program ended, and its results.
pub(crate) type Ending = (Exit, Vec<u8>);

/// Follows the report to its last frame: passes output on at once and collects results.
pub(crate) fn read(
    line: OwnedFd,
    deadline: Instant,
    output: &mut dyn Write,
) -> Result<Ending, ReportError> {
    // `File` reads from any descriptor.
    let mut line = File::from(line);
    let mut decoder = Decoder::default();
    let mut results = Vec::new();
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        while let Some(frame) = decoder.next_frame()? {
            match frame {
                Frame::Output(bytes) => {
                    let written = output.write_all(&bytes).and_then(|()| output.flush());
                    written.map_err(ReportError::Output)?;
                }
                Frame::Results(bytes) => results.extend(bytes),
                Frame::Exit(exit) => return Ok((exit, results)),
                Frame::Failed(reason) => return Err(ReportError::NotRun(reason)),
            }
        }
        if !readable(&line, deadline).map_err(ReportError::Read)? {
            return Err(ReportError::Deadline);
        }
        match line.read(&mut buffer) {
            Ok(0) => return Err(ReportError::Ended),
            Ok(n) => decoder.push(&buffer[..n]),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::ConnectionReset => return Err(ReportError::Ended),
                _ => return Err(ReportError::Read(error)),
            },
        }
    }
}

/// Waits until a read returns something, or the end. Returns false if the time is up first.
fn readable(line: &File, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut wanted = libc::pollfd {
            fd: line.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // Rounded up, so that the last part of a millisecond isn't spent spinning.
        let millis = left.as_millis().saturating_add(1);
        let millis = i32::try_from(millis).unwrap_or(i32::MAX);
        // SAFETY: it is given one structure, which lives for the call.
        match unsafe { libc::poll(&raw mut wanted, 1, millis) } {
            0 => {}
            1.. => return Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    fn report(frames: &[Frame], open: bool) -> (Result<Ending, ReportError>, Vec<u8>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for frame in frames {
            theirs.write_all(&frame.encode()).unwrap();
        }
        let kept = open.then_some(theirs);
        let mut output = Vec::new();
        let limit = Duration::from_millis(if open { 50 } else { 60_000 });
        let result = read(ours.into(), Instant::now() + limit, &mut output);
        drop(kept);
        (result, output)
    }

    #[test]
    fn output_results_and_exit_each_go_their_own_way() {
        let frames = [
            Frame::Output(b"a".to_vec()),
            Frame::Results(b"1".to_vec()),
            Frame::Output(b"b".to_vec()),
            Frame::Results(b"2".to_vec()),
            Frame::Exit(Exit::Code(3)),
        ];
        let (result, output) = report(&frames, true);
        assert_eq!(result.unwrap(), (Exit::Code(3), b"12".to_vec()));
        assert_eq!(output, b"ab");
    }

    #[test]
    fn a_machine_that_ends_early_is_told_from_one_that_is_late() {
        let frames = [Frame::Output(b"a".to_vec())];
        assert!(matches!(report(&frames, false).0, Err(ReportError::Ended)));
        assert!(matches!(
            report(&frames, true).0,
            Err(ReportError::Deadline)
        ));
    }

    #[test]
    fn a_program_that_could_not_run_gives_its_reason() {
        let (result, _) = report(&[Frame::Failed("no kvm".into())], true);
        assert_eq!(result.unwrap_err().to_string(), "no kvm");
    }
}
