//! A server that sends its metrics and its log to a receiver.

mod away;
mod read;
mod receiver;
mod same;
mod stored;

pub use away::AWAY;
pub use same::SAME;
pub use stored::STORED;
