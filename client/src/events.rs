//! The stream of a VM's events.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::{Status, Streaming};
use vmprobe_proto::v1::stream_events_response::Message as Wire;
use vmprobe_proto::v1::{Ending, Event, EventCursor, StreamEventsResponse, Subscribed};

use crate::{ClientError, HostClock};

/// One message of an [`EventStream`].
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Hits, in the order in which the server saw them.
    Batch {
        /// Hits that were lost just before the first of these, because this client read too slowly.
        lost: u64,
        /// The hits; empty when the last ones before the guest's end were lost.
        events: Vec<Event>,
    },
    /// All events up to this value of the guest's time stamp counter have arrived. Only sent if the client asked for
    /// it.
    Progress {
        /// The value.
        tsc: u64,
    },
    /// The guest has ended; the last message.
    Ended(Ending),
}

/// Events of one VM, from the moment of the subscription on. Dropping it ends the subscription.
#[derive(Debug)]
pub struct EventStream {
    stream: Streaming<StreamEventsResponse>,
    tsc_hz: u64,
    clock: Option<HostClock>,
    lost: u64,
    cursor: EventCursor,
}

impl EventStream {
    /// Waits until the server confirms the subscription.
    pub(crate) async fn subscribed(
        mut stream: Streaming<StreamEventsResponse>,
    ) -> Result<Self, ClientError> {
        match stream.message().await?.and_then(|answer| answer.message) {
            Some(Wire::Subscribed(Subscribed {
                tsc_hz,
                stream: name,
                clock,
            })) => Ok(Self {
                stream,
                tsc_hz,
                clock: clock.map(|sample| HostClock::new(sample, tsc_hz)),
                lost: 0,
                cursor: EventCursor {
                    stream: name,
                    batch: 0,
                },
            }),
            _ => Err(ClientError::Protocol("subscription")),
        }
    }

    /// Sets the number of the last batch that arrived before the stream broke.
    pub(crate) fn behind(mut self, batch: u64) -> Self {
        self.cursor.batch = batch;
        self
    }

    /// Frequency of the guest's time stamp counter in hertz, to turn event times into seconds; 0
    /// when the server doesn't know it.
    #[must_use]
    pub fn tsc_hz(&self) -> u64 {
        self.tsc_hz
    }

    /// Returns the clock that converts times of events to those of the server's host.
    #[must_use]
    pub fn clock(&self) -> Option<HostClock> {
        self.clock
    }

    /// Hits that this stream has lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns where the stream can be resumed if it breaks: behind the last message that was taken. Only a stream of
    /// [`Client::events_to_resume`](crate::Client::events_to_resume) can be resumed.
    #[must_use]
    pub fn cursor(&self) -> &EventCursor {
        &self.cursor
    }

    /// Returns the next message, or `None` after [`Message::Ended`].
    ///
    /// # Errors
    /// [`ClientError::Disconnected`] when the server goes away before the guest's end.
    pub async fn next(&mut self) -> Result<Option<Message>, ClientError> {
        let answer = self.stream.message().await?;
        answer.map(|answer| self.read(answer)).transpose()
    }

    fn read(&mut self, answer: StreamEventsResponse) -> Result<Message, ClientError> {
        match answer.message {
            Some(Wire::Batch(batch)) => {
                let lost = batch.lost;
                self.lost += lost;
                self.cursor.batch = batch.number;
                let events = batch
                    .into_events()
                    .map_err(|error| Status::internal(error.to_string()))?;
                Ok(Message::Batch { lost, events })
            }
            Some(Wire::Progress(progress)) => Ok(Message::Progress { tsc: progress.tsc }),
            Some(Wire::Ended(ended)) => Ok(Message::Ended(ended.ending.unwrap_or_default())),
            Some(Wire::Subscribed(_)) | None => Err(ClientError::Protocol("message")),
        }
    }
}

impl Stream for EventStream {
    type Item = Result<Message, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(context).map(|answer| {
            answer.map(|answer| {
                answer
                    .map_err(ClientError::from)
                    .and_then(|answer| self.read(answer))
            })
        })
    }
}
