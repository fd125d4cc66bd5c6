//! The output of a job's command.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, DuplexStream, duplex};
use vmprobe_kernel_log::ktap::{self, Results};
use vmprobe_kernel_log::{Lines, MAX_LINE};

use super::artifacts::Artifact;
use super::progress::JobProgress;
use crate::failure::Failure;
use crate::tail::Tail;

/// Lines of the output that a report shows.
const TAIL: usize = 200;
/// Bytes between the guest's stream and what reads it here.
const BUFFER: usize = 1 << 16;

/// What a command has printed.
#[derive(Debug, Default)]
pub struct Printed {
    pub tests: Results,
    pub tail: Vec<String>,
}

/// Returns the two ends that the command's streams are written to, and the two that are read.
pub fn streams() -> (DuplexStream, DuplexStream, [DuplexStream; 2]) {
    let ((output, from_output), (errors, from_errors)) = (duplex(BUFFER), duplex(BUFFER));
    (output, errors, [from_output, from_errors])
}

/// Reads both streams to their ends. Results of tests are read from the first.
///
/// # Errors
/// What is printed can't be kept.
pub async fn watch(
    [output, errors]: [DuplexStream; 2],
    progress: JobProgress,
    mut file: Artifact,
) -> Result<Printed, Failure> {
    let (mut output, mut errors) = (Printing::new(output), Printing::new(errors));
    let mut parser = ktap::Parser::new();
    let mut tail = Tail::new(TAIL);
    while !output.ended || !errors.ended {
        let (lines, is_output) = tokio::select! {
            lines = output.next(), if !output.ended => (lines, true),
            lines = errors.next(), if !errors.ended => (lines, false),
        };
        for line in lines {
            if is_output {
                parser.line(&line);
            }
            file.line(&line)?;
            progress.output(&line);
            tail.push(line);
        }
    }
    file.finish()?;
    Ok(Printed {
        tests: parser.finish(),
        tail: tail.into_lines(),
    })
}

/// A stream that is read line by line.
struct Printing<R> {
    from: BufReader<R>,
    lines: Lines,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Printing<R> {
    fn new(from: R) -> Self {
        Self {
            from: BufReader::with_capacity(MAX_LINE, from),
            lines: Lines::new(),
            ended: false,
        }
    }

    /// Returns the lines that have become whole.
    async fn next(&mut self) -> Vec<String> {
        match self.from.fill_buf().await {
            Ok(bytes) if !bytes.is_empty() => {
                let (lines, read) = (self.lines.push(bytes), bytes.len());
                self.from.consume(read);
                lines
            }
            // The other end has gone with the guest.
            Ok(_) | Err(_) => {
                self.ended = true;
                self.lines.finish().into_iter().collect()
            }
        }
    }
}
