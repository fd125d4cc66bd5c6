//! Checks whether a probe can have the actions that are asked for.

use crate::action::{ACTIONS_MAX, ActionRefusal, HitAction, Target, WRITE_MAX};
use crate::probe::ProbeKind;

/// RSP's number.
const RSP: u8 = 4;

/// Checks the actions of a probe of a kind. `beyond_entry` is how many bytes of its function are executed before it;
/// `None` where it is at the entry.
///
/// # Errors
/// The first that can't be done.
pub(crate) fn check(
    actions: &[HitAction],
    kind: ProbeKind,
    beyond_entry: Option<u64>,
) -> Result<(), ActionRefusal> {
    if actions.len() > ACTIONS_MAX {
        return Err(ActionRefusal::TooMany(actions.len()));
    }
    actions
        .iter()
        .try_for_each(|action| check_one(action, kind, beyond_entry))
}

fn check_one(
    action: &HitAction,
    kind: ProbeKind,
    beyond_entry: Option<u64>,
) -> Result<(), ActionRefusal> {
    let registers = match action {
        HitAction::SetRegister {
            target: Target::General(number),
            ..
        } => Some(*number),
        HitAction::WriteMemory { at, .. } => at.register,
        _ => None,
    };
    if let Some(number) = registers.filter(|number| *number > 15) {
        return Err(ActionRefusal::Register(number));
    }
    if let HitAction::WriteMemory { bytes, .. } = action
        && !(1..=WRITE_MAX).contains(&bytes.len())
    {
        return Err(ActionRefusal::Bytes(bytes.len()));
    }
    match (kind, action) {
        (ProbeKind::Watch { .. }, HitAction::Pause) => Ok(()),
        (ProbeKind::Watch { .. }, _) => Err(ActionRefusal::Watchpoint),
        (
            ProbeKind::Return { .. } | ProbeKind::Exits { .. },
            HitAction::SetRegister {
                target: Target::Rip | Target::General(RSP),
                ..
            },
        ) => Err(ActionRefusal::Returning),
        (ProbeKind::Instruction { .. }, HitAction::Override { .. }) => match beyond_entry {
            None => Ok(()),
            Some(bytes) => Err(ActionRefusal::NotEntry(bytes)),
        },
        _ => Ok(()),
    }
}
