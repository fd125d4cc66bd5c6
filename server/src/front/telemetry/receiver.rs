//! A receiver, as seen by one of the two tasks.

use std::sync::Arc;

use vmprobe_otlp::{
    Accepted, Change, OtlpError, OtlpOptions, SendError, Sender, Signal as Request, Standing,
};

use crate::front::sent::{Count, Signal};

/// Sends, counts, and logs when the receiver's state changes.
#[derive(Debug)]
pub struct Receiver {
    sender: Sender,
    signal: Signal,
    count: Arc<Count>,
    standing: Standing,
    /// How many items had been dropped when the receiver last took something.
    dropped_before: u64,
}

impl Receiver {
    /// Makes a receiver for items of this kind.
    ///
    /// # Errors
    /// See [`OtlpError`].
    pub fn new(
        options: &OtlpOptions,
        signal: Signal,
        count: Arc<Count>,
    ) -> Result<Self, OtlpError> {
        Ok(Self {
            sender: Sender::new(options)?,
            signal,
            count,
            standing: Standing::default(),
            dropped_before: 0,
        })
    }

    /// Sends a request with this number of data points or records. Refused ones are counted as dropped.
    /// `dropped_elsewhere` is the number that was dropped before they came here.
    ///
    /// # Errors
    /// The receiver hasn't taken the request.
    pub async fn send(
        &mut self,
        request: impl Request,
        items: u64,
        dropped_elsewhere: u64,
    ) -> Result<(), SendError> {
        let sent = self.sender.send(request).await;
        match &sent {
            Ok(Accepted { refused, message }) => {
                let refused = (*refused).min(items);
                self.count.add_sent(items - refused);
                self.count.add_dropped(refused);
                if refused > 0 {
                    tracing::debug!("{} refuses {refused} of {items}: {message:?}", self.sender);
                }
            }
            Err(SendError::Refused { .. }) => self.count.add_dropped(items),
            Err(SendError::Away { .. }) => {}
        }
        let change = self.standing.learn(&sent);
        self.count.set_taken(self.standing.is_taking());
        self.tell(change, sent.as_ref().err(), dropped_elsewhere);
        sent.map(drop)
    }

    /// Counts items that are given up.
    pub fn give_up(&self, items: u64) {
        self.count.add_dropped(items);
    }

    fn tell(&mut self, change: Option<Change>, error: Option<&SendError>, elsewhere: u64) {
        let (signal, receiver) = (self.signal.name(), &self.sender);
        let why = error.map(ToString::to_string).unwrap_or_default();
        let dropped = self.count.dropped() + elsewhere;
        match change {
            Some(Change::Away) => tracing::warn!("{receiver} takes no {signal}: {why}"),
            Some(Change::Refusing) => tracing::warn!("{receiver} refuses {signal}: {why}"),
            Some(Change::Back) => {
                let lost = dropped - self.dropped_before;
                tracing::warn!("{receiver} takes {signal} again; {lost} were dropped meanwhile");
            }
            None => {}
        }
        if self.standing.is_taking() {
            self.dropped_before = dropped;
        }
    }

    /// Logs how many items are left at the end.
    pub fn tell_left(&self, items: u64) {
        if items > 0 {
            let (signal, receiver) = (self.signal.name(), &self.sender);
            tracing::warn!("{receiver} did not take the last {items} of {signal}");
        }
    }
}
