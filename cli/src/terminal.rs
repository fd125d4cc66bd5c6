//! The user's terminal as a guest's console.

use std::io;

use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

use crate::failure::Failure;

/// Ctrl-], which telnet and virsh also take for leaving.
pub const ESCAPE: u8 = 0x1d;

/// What standard input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A terminal that this process may read.
    Terminal,
    /// A terminal that another job has: reading it would stop this process.
    Background,
    /// A file or a pipe.
    Stream,
}

pub fn input() -> Input {
    if !isatty(stdin()) {
        return Input::Stream;
    }
    match tcgetpgrp(stdin()) {
        Ok(group) if group == getpgrp() => Input::Terminal,
        _ => Input::Background,
    }
}

/// Returns columns and rows of the terminal, if standard input is one that knows them.
pub fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(stdin()).ok()?;
    Some((size.ws_col, size.ws_row))
}

/// Keys go to the guest one by one, unechoed, Ctrl-C included, until this is dropped.
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    pub fn enter() -> Result<Self, Failure> {
        let failed = |error| Failure::Terminal(io::Error::from(error));
        let before = tcgetattr(stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        // Event lines on the same terminal end in a bare line feed.
        raw.output_modes |= before.output_modes & (OutputModes::OPOST | OutputModes::ONLCR);
        tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing else can be done about a terminal that has gone.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
    }
}
