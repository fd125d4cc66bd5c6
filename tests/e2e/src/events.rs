//! Reading an event stream to its end.

use vmprobe_client::v1::Event;
use vmprobe_client::{EventStream, Message};

use crate::test::{Failure, check_eq};

/// All events until the guest has ended.
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
