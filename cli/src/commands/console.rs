//! `vmprobe console`, and the copying between terminal and console that `vmprobe run` shares with it.

use std::io::{self, Write};

use tokio::io::{AsyncRead, AsyncReadExt};
use vmprobe_client::{ConsoleInput, ConsoleOutput};

use super::session::{interrupted, reach};
use crate::cli::TargetArgs;
use crate::failure::Failure;
use crate::output::note;
use crate::terminal::{self, ESCAPE, Input, RawTerminal};

pub async fn console(target: &TargetArgs) -> Result<(), Failure> {
    let (client, vm) = reach(target).await?;
    let (input, output) = client.attach_console(&vm).await?;
    tokio::select! {
        result = copy_out(output) => result,
        failure = interrupted() => Err(failure),
        () = keyboard(input)? => Ok(()),
    }
}

/// Copies standard input to the console; completes only when the user presses Ctrl-] on a terminal.
/// The terminal is raw until the future is dropped.
pub fn keyboard(input: ConsoleInput) -> Result<impl Future<Output = ()>, Failure> {
    let kind = terminal::input();
    let raw = match kind {
        Input::Terminal => {
            note("connected to the guest's console; Ctrl-] leaves it");
            Some(RawTerminal::enter()?)
        }
        Input::Background | Input::Stream => None,
    };
    Ok(async move {
        let _raw = raw;
        let escaped = match kind {
            Input::Background => false,
            Input::Terminal => copy_in(tokio::io::stdin(), &input, true).await,
            Input::Stream => copy_in(tokio::io::stdin(), &input, false).await,
        };
        if !escaped {
            // The end of the input isn't the end of the console.
            std::future::pending::<()>().await;
        }
    })
}

/// Copies until the end of the input or of the console. Returns true if it was the escape key.
async fn copy_in(mut from: impl AsyncRead + Unpin, to: &ConsoleInput, escape: bool) -> bool {
    let mut buffer = [0; 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return false;
        };
        let bytes = &buffer[..length];
        let end = bytes.iter().position(|&byte| escape && byte == ESCAPE);
        let bytes = &bytes[..end.unwrap_or(length)];
        if !bytes.is_empty() && to.send(bytes.to_vec()).await.is_err() {
            return false;
        }
        if end.is_some() {
            return true;
        }
    }
}

/// Copies the console to standard output until the guest has ended.
pub async fn copy_out(mut console: ConsoleOutput) -> Result<(), Failure> {
    while let Some(chunk) = console.next().await? {
        if chunk.dropped > 0 {
            note(format!(
                "{} bytes of console output are lost here",
                chunk.dropped
            ));
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(&chunk.output).map_err(Failure::Output)?;
        stdout.flush().map_err(Failure::Output)?;
    }
    Ok(())
}
