//! The state of a receiver, so that each change is reported once.

use crate::error::SendError;

/// What happened to the last request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// The receiver took it, or nothing was sent yet.
    #[default]
    Taking,
    /// The receiver couldn't be reached, or couldn't take it.
    Away,
    /// The receiver refused it.
    Refusing,
}

/// A change of the receiver's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The receiver can't be reached any more.
    Away,
    /// The receiver refuses requests.
    Refusing,
    /// The receiver takes requests again.
    Back,
}

impl Standing {
    /// Returns true if the receiver took the last request.
    #[must_use]
    pub fn is_taking(self) -> bool {
        self == Self::Taking
    }

    /// Notes the result of a request. Returns the change of state, if there is one.
    pub fn learn<T>(&mut self, sent: &Result<T, SendError>) -> Option<Change> {
        let (next, change) = match sent {
            Ok(_) => (Self::Taking, Change::Back),
            Err(SendError::Away { .. }) => (Self::Away, Change::Away),
            Err(SendError::Refused { .. }) => (Self::Refusing, Change::Refusing),
        };
        let before = std::mem::replace(self, next);
        (before != next).then_some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once() {
        let away = || {
            Err(SendError::Away {
                why: String::new(),
                again: None,
            })
        };
        let refused = || Err(SendError::Refused { why: String::new() });
        let mut standing = Standing::default();
        for (sent, change) in [
            (Ok(()), None),
            (away(), Some(Change::Away)),
            (away(), None),
            (refused(), Some(Change::Refusing)),
            (Ok(()), Some(Change::Back)),
            (Ok(()), None),
        ] {
            assert_eq!(standing.learn(&sent), change);
        }
    }
}
