//! What the service manager that has started this process is told, if one has (`sd_notify(3)`).

use std::io;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Tells it that clients can connect, and from then on, as often as it wants to know, that the process is alive.
#[derive(Debug)]
pub struct Told(Option<JoinHandle<()>>);

impl Told {
    /// Begins.
    ///
    /// # Errors
    /// There is one, and it can't be told.
    pub fn ready() -> io::Result<Self> {
        sd_notify::notify(&[NotifyState::Ready])?;
        Ok(Self(sd_notify::watchdog_enabled().map(|patience| {
            // Twice in that time, as sd_watchdog_enabled(3) advises.
            let mut ticks = interval(patience / 2);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // A task of the runtime that answers clients: it is alive as long as that is.
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

    /// Tells it that the process ends, and goes on to tell that it is alive until this is dropped.
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
