//! Our probes beside the guest's tools.

use super::super::guest::{Guest, VM};
use super::super::jumps::settle;
use super::theirs::{At, Theirs};
use crate::test::{Failure, check_eq};

/// What our probe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ours {
    Breakpoint,
    Jump,
    ReturnBreakpoint,
    ReturnJump,
    /// On data that the function writes, once a call.
    Watchpoint,
}

/// What switching it off means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The probe is disabled.
    Disable,
    /// All probes are disarmed.
    Disarm,
    /// The probe may not be a jump.
    Breakpoint,
}

/// Its name.
pub const NAME: &str = "ours";

impl Ours {
    pub const ALL: [Self; 5] = [
        Self::Breakpoint,
        Self::Jump,
        Self::ReturnBreakpoint,
        Self::ReturnJump,
        Self::Watchpoint,
    ];

    /// The changes that can be made to it.
    pub fn changes(self) -> &'static [Change] {
        match self {
            Self::Breakpoint | Self::ReturnBreakpoint | Self::Watchpoint => {
                &[Change::Disable, Change::Disarm]
            }
            Self::Jump | Self::ReturnJump => &[Change::Disable, Change::Disarm, Change::Breakpoint],
        }
    }

    /// Returns true if it can be at the place of the guest's tool.
    pub fn is_at(self, theirs: &Theirs) -> bool {
        self != Self::Watchpoint || matches!(theirs.at, At::Function | At::Same)
    }

    /// Its text form; `data` is the address that a watchpoint is on.
    pub fn text(self, theirs: &Theirs, data: u64) -> String {
        let function = theirs.function();
        // Only names of this process count.
        let only = match theirs.at {
            At::Event(_) => " if=tgid==1",
            _ => "",
        };
        match self {
            Self::Breakpoint => format!("{NAME}={function} nojump{only}"),
            Self::Jump => format!("{NAME}={function}{only}"),
            Self::ReturnBreakpoint => format!("r64:{NAME} {function} nojump{only}"),
            Self::Watchpoint => format!("w:{NAME} {data:#x}/4"),
            Self::ReturnJump => format!("r64:{NAME} {function}{only}"),
        }
    }
}

/// Registers it, and waits until it is settled whether it is a jump.
pub async fn come(guest: &Guest, text: &str) -> Result<(), Failure> {
    guest.probe(text).await?;
    settle(guest, &[NAME]).await.map(drop)
}

/// Switches it off.
pub async fn off(guest: &Guest, change: Change) -> Result<(), Failure> {
    let names = || vec![NAME.to_owned()];
    let client = &guest.client;
    match change {
        Change::Disable => drop(client.disable_probes(VM, Vec::new(), names()).await?),
        Change::Disarm => drop(client.disarm_probes(VM).await?),
        Change::Breakpoint => drop(client.keep_breakpoints(VM, Vec::new(), names()).await?),
    }
    Ok(())
}

/// Switches it on again, and waits until it is settled.
pub async fn on(guest: &Guest, change: Change) -> Result<(), Failure> {
    let names = || vec![NAME.to_owned()];
    let client = &guest.client;
    match change {
        Change::Disable => drop(client.enable_probes(VM, Vec::new(), names()).await?),
        Change::Disarm => drop(client.arm_probes(VM).await?),
        Change::Breakpoint => drop(client.optimize_probes(VM, Vec::new(), names()).await?),
    }
    settle(guest, &[NAME]).await.map(drop)
}

/// Hits so far. None may be missed.
pub async fn hits(guest: &Guest) -> Result<u64, Failure> {
    let probe = guest.listed(NAME).await?;
    check_eq!(probe.missed, 0, "missed hits of ours");
    Ok(probe.hits)
}

/// Removes it, and returns its hits.
pub async fn go(guest: &Guest) -> Result<u64, Failure> {
    let removed = guest.remove(&[NAME]).await?;
    check_eq!(removed[0].missed, 0, "missed hits of ours at its removal");
    // Undoes the other changes, for the next probe.
    guest.client.arm_probes(VM).await?;
    Ok(removed[0].hits)
}
