//! The actions of probes.

use std::sync::Arc;

use probe_engine::action::{HitAction, Pointer, Target};
use vmprobe_proto::v1;
use vmprobe_proto::v1::action::Action as Kind;
use vmprobe_spec::names;

/// A wrong field of an action (an empty path if the action itself is missing), and what is wrong
/// with it.
pub type WrongAction = (&'static str, String);

/// Returns the engine's form of actions.
///
/// # Errors
/// The index of the first wrong action, and the reason.
pub fn actions(actions: &[v1::Action]) -> Result<Vec<HitAction>, (usize, WrongAction)> {
    let actions = actions.iter().enumerate();
    let actions = actions.map(|(index, action)| one(action).map_err(|wrong| (index, wrong)));
    actions.collect()
}

fn one(action: &v1::Action) -> Result<HitAction, WrongAction> {
    Ok(match &action.action {
        Some(Kind::SetRegister(set)) => {
            let known = v1::Register::try_from(set.register).ok();
            let target = known.and_then(names::number).and_then(Target::numbered);
            let target = target.ok_or_else(|| unknown("set_register.register", set.register))?;
            HitAction::SetRegister {
                target,
                value: set.value,
            }
        }
        Some(Kind::OverrideReturn(v1::OverrideReturn { value })) => {
            HitAction::Override { value: *value }
        }
        Some(Kind::WriteMemory(write)) => HitAction::WriteMemory {
            at: Pointer {
                register: base(write.base)?,
                offset: write.address,
            },
            bytes: Arc::from(&*write.data),
        },
        Some(Kind::Pause(v1::PauseGuest {})) => HitAction::Pause,
        None => return Err(("", "what is to be done is missing".to_owned())),
    })
}

/// Returns the general register that an address is based on, if there is one.
fn base(register: i32) -> Result<Option<u8>, WrongAction> {
    let known = v1::Register::try_from(register);
    match known {
        Ok(v1::Register::Unspecified) => Ok(None),
        Ok(register) => match names::number(register).filter(|number| *number < 16) {
            Some(number) => Ok(Some(number)),
            None => Err(unknown("write_memory.base", register.into())),
        },
        Err(_) => Err(unknown("write_memory.base", register)),
    }
}

fn unknown(field: &'static str, register: i32) -> WrongAction {
    (field, format!("{register} is no register that this can be"))
}

/// Returns the protocol's form of actions.
pub fn told_actions(actions: &[HitAction]) -> Vec<v1::Action> {
    actions.iter().map(told).collect()
}

fn told(action: &HitAction) -> v1::Action {
    let register = |number| i32::from(names::numbered(number).unwrap_or_default());
    let action = match action {
        HitAction::SetRegister { target, value } => Kind::SetRegister(v1::SetRegister {
            register: register(target.number()),
            value: *value,
        }),
        HitAction::Override { value } => Kind::OverrideReturn(v1::OverrideReturn { value: *value }),
        HitAction::WriteMemory { at, bytes } => Kind::WriteMemory(v1::WriteMemory {
            base: at.register.map_or(0, register),
            address: at.offset,
            data: bytes.to_vec(),
        }),
        HitAction::Pause => Kind::Pause(v1::PauseGuest {}),
    };
    v1::Action {
        action: Some(action),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(register: v1::Register) -> Kind {
        Kind::SetRegister(v1::SetRegister {
            register: register.into(),
            value: 7,
        })
    }

    fn write(base: v1::Register) -> Kind {
        Kind::WriteMemory(v1::WriteMemory {
            base: base.into(),
            address: 8,
            data: vec![1, 2],
        })
    }

    fn asked(kind: Option<Kind>) -> v1::Action {
        v1::Action { action: kind }
    }

    #[test]
    fn what_a_client_asks_for_is_what_it_is_told() {
        let asked: Vec<_> = [
            set(v1::Register::Rdi),
            set(v1::Register::Rip),
            set(v1::Register::Rflags),
            Kind::OverrideReturn(v1::OverrideReturn { value: u64::MAX }),
            write(v1::Register::Unspecified),
            write(v1::Register::R15),
            Kind::Pause(v1::PauseGuest {}),
        ]
        .into_iter()
        .map(|kind| asked(Some(kind)))
        .collect();
        let found = actions(&asked).unwrap();
        assert_eq!(told_actions(&found), asked);
        let changes: Vec<bool> = found.iter().map(HitAction::changes_guest).collect();
        assert_eq!(changes, [true, true, true, true, true, true, false]);
    }

    #[test]
    fn a_wrong_action_names_its_place_and_field() {
        for (wrong, field) in [
            (None, ""),
            (
                Some(set(v1::Register::Unspecified)),
                "set_register.register",
            ),
            (Some(write(v1::Register::Rip)), "write_memory.base"),
            (Some(write(v1::Register::Rflags)), "write_memory.base"),
        ] {
            let right = asked(Some(Kind::Pause(v1::PauseGuest {})));
            let (index, (found, _)) = actions(&[right, asked(wrong)]).unwrap_err();
            assert_eq!((index, found), (1, field));
        }
    }
}
