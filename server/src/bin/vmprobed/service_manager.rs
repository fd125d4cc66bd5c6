//! Messages to the service manager that has started this process, if one has (`sd_notify(3)`).

use std::io;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Tells the service manager that clients can connect, and then, as often as it asks for, that the process is alive.
#[derive(Debug)]
pub struct Told(Option<JoinHandle<()>>);

impl Told {
    /// Sends the first message, and starts to send the others.
    ///
    /// # Errors
    /// There is a service manager, and the message can't be sent to it.
    pub fn ready() -> io::Result<Self> {
        sd_notify::notify(&[NotifyState::Ready])?;
        Ok(Self(sd_notify::watchdog_enabled().map(|patience| {
            // Twice in that time, as sd_watchdog_enabled(3) advises.
            let mut ticks = interval(patience / 2);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // This is a task of the runtime that answers clients: it runs as long as the runtime does.
            tokio::spawn(async move {
                loop {
                    ticks.tick().await;
                    if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
                        tracing::warn!("can't tell the service manager of being alive: {error}");
                    }
                }
            })
        })))
    }

    /// Tells the service manager that the process ends. Until this is dropped, it is still told that the process is
    /// alive.
    pub fn stopping(&self) {
        if let Err(error) = sd_notify::notify(&[NotifyState::Stopping]) {
            tracing::warn!("can't tell the service manager of the end: {error}");
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}
