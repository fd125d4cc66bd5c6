//! Metrics about sending to a receiver.

use std::fmt;

use super::encoder::{Encoder, Labels, plain};
use crate::front::sent::{Counts, Told};

/// Writes them. There are no samples if nothing is sent.
pub(super) fn encode(to: &mut Encoder<'_>, sent: &Counts) -> fmt::Result {
    fn of<T>(sent: &Counts, value: fn(Told) -> T) -> impl Iterator<Item = (Labels<'static>, T)> {
        let told = sent.told();
        told.map(move |told| (vec![("signal", told.signal)], value(told)))
    }
    to.gauge(
        plain(
            "vmprobe_otlp_up",
            "Whether the receiver of --otlp has taken what it was sent last",
        ),
        of(sent, |told| f64::from(told.is_taken)),
    )?;
    to.counter(
        plain(
            "vmprobe_otlp_sent",
            "Samples and log records that the receiver of --otlp has taken",
        ),
        of(sent, |told| told.sent),
    )?;
    to.counter(
        plain(
            "vmprobe_otlp_dropped",
            "Samples and log records that were given up, as the receiver of --otlp was away for too long or refused them",
        ),
        of(sent, |told| told.dropped),
    )?;
    let waiting = sent.waiting().map(|count| (Labels::new(), count as f64));
    to.gauge(
        plain(
            "vmprobe_otlp_queue_length",
            "Log records that wait for the receiver of --otlp",
        ),
        waiting,
    )
}
