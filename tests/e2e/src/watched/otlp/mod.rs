//! A server that sends its metrics and its log to a receiver, and a command that sends events there.

mod away;
mod events;
mod read;
mod receiver;
mod same;
mod stored;

pub use away::AWAY;
pub use events::EVENTS;
pub use same::SAME;
pub use stored::STORED;
