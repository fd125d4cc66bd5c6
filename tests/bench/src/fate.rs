//! The outcome of a probe on an instruction.

use guest_state::GuestVirtAddr;
use probe_engine::engine::Engine;
use probe_engine::error::{ChangeError, RegisterError};
use probe_engine::probe::{Options, Place, ProbeInfo, ProbeKind, ProbeSpec, Strategy};

use crate::guest::Guest;

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It was registered.
    Probed(Box<ProbeInfo>),
    /// It was refused; a short form of the reason.
    Refused(String),
}

/// A probe on the instruction at this address.
pub fn spec(at: GuestVirtAddr) -> ProbeSpec {
    ProbeSpec {
        name: None,
        place: Place::Address(at),
        kind: ProbeKind::PRE,
        enabled: true,
        options: Options::default(),
    }
}

/// Registers a probe and removes it.
///
/// # Errors
/// It can't be removed.
pub fn of_instruction(
    engine: &Engine,
    guest: &Guest,
    at: GuestVirtAddr,
) -> Result<Fate, ChangeError> {
    match register(engine, guest, at) {
        Ok(probe) => {
            engine.unregister(guest, &[probe.id])?;
            Ok(Fate::Probed(Box::new(probe)))
        }
        Err(error) => Ok(Fate::Refused(refusal(&error))),
    }
}

/// As [`of_instruction`], for the function that begins there: a probe on its entry goes behind the
/// instructions that have to stay as they are.
///
/// # Errors
/// It can't be removed.
pub fn of_entry(engine: &Engine, guest: &Guest, at: GuestVirtAddr) -> Result<Fate, ChangeError> {
    match register(engine, guest, at) {
        Err(RegisterError::ReservedEntry { next, .. }) => of_instruction(engine, guest, next),
        Err(error) => Ok(Fate::Refused(refusal(&error))),
        Ok(probe) => {
            engine.unregister(guest, &[probe.id])?;
            Ok(Fate::Probed(Box::new(probe)))
        }
    }
}

fn register(engine: &Engine, guest: &Guest, at: GuestVirtAddr) -> Result<ProbeInfo, RegisterError> {
    let mut probes = engine.register(guest, &[spec(at)])?;
    probes.pop().ok_or(RegisterError::EmptyFunction {
        symbol: at.to_string(),
    })
}

/// Returns true if a hit costs one exit.
pub fn is_one_exit(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::Emulate | Strategy::Boost)
}

/// The kind of a refusal, without the place.
fn refusal(error: &RegisterError) -> String {
    match error {
        RegisterError::Blacklisted { kind, .. } => (*kind).to_owned(),
        RegisterError::Unsupported { why, .. } => (*why).to_owned(),
        RegisterError::ReservedEntry { what, .. } => (*what).to_owned(),
        RegisterError::Trap { .. } => "int3 or ud".to_owned(),
        RegisterError::EmptyFunction { .. } => "nothing after the entry".to_owned(),
        RegisterError::InsideInstruction { .. } => "inside an instruction".to_owned(),
        RegisterError::GuestBreakpoint { .. } => "behind an int3 of the guest".to_owned(),
        RegisterError::Undecodable { .. } => "no instruction".to_owned(),
        RegisterError::InitTextFreed { .. } => "init text, freed".to_owned(),
        RegisterError::NotText { .. } | RegisterError::NotLoaded { .. } => {
            "not in the image's text".to_owned()
        }
        other => other.to_string(),
    }
}
