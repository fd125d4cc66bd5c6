//! Reading an event stream.

use std::time::Duration;

use tokio::time::timeout;
use vmprobe_client::v1::Event;
use vmprobe_client::{EventStream, Message};

use crate::test::{Failure, check_eq, wrong};

/// Longer than anything on its way takes.
const LONG: Duration = Duration::from_secs(60);

/// Returns all events until the guest has ended.
///
/// # Errors
/// If one was lost, or the stream breaks.
pub async fn all(stream: &mut EventStream) -> Result<Vec<Event>, Failure> {
    let mut all = Vec::new();
    while let Some(message) = stream.next().await? {
        if let Message::Batch { lost, events } = message {
            check_eq!(lost, 0, "lost events");
            all.extend(events);
        }
    }
    Ok(all)
}

/// Takes the next `count` events, those that this client lost included. Returns those that came,
/// and how many were lost.
///
/// # Errors
/// If they don't come, or the stream breaks.
pub async fn next(stream: &mut EventStream, count: u64) -> Result<(Vec<Event>, u64), Failure> {
    let (mut all, mut lost) = (Vec::new(), 0);
    while all.len() as u64 + lost < count {
        let so_far = all.len();
        let message = timeout(LONG, stream.next()).await;
        let message = message.map_err(|_| wrong!("only {so_far} of {count} events came"))??;
        match message {
            Some(Message::Batch { lost: some, events }) => {
                lost += some;
                all.extend(events);
            }
            _ => return Err(wrong!("the stream ended after {so_far} of {count} events")),
        }
    }
    Ok((all, lost))
}
