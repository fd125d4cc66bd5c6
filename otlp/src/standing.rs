//! How a receiver stands, so that what changes is told once.

use crate::error::SendError;

/// What a receiver did last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It took what it was sent, or nothing was sent yet.
    #[default]
    Taking,
    /// It couldn't be reached, or couldn't take it.
    Away,
    /// It refused it.
    Refusing,
}

/// What has changed about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It can't be reached any more.
    Away,
    /// It refuses what it is sent.
    Refusing,
    /// It takes it again.
    Back,
}

impl Standing {
    /// Whether it took what it was sent last.
    #[must_use]
    pub fn is_taking(self) -> bool {
        self == Self::Taking
    }

    /// Something was sent. Says what has changed by it.
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
