//! `EventService`: streams of probes' events.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::batch::EventBatch;
use vmprobe_proto::v1::event_service_server::EventService;
use vmprobe_proto::v1::stream_events_response::Message;
use vmprobe_proto::v1::{
    Ended, EventCursor, StreamEventsRequest, StreamEventsResponse, Subscribed,
};

use crate::fanout::Subscription;
use crate::held::Held;
use crate::limits;
use crate::machine::Machine;
use crate::one_vm::OneVm;
use crate::resumable::ResumableEvents;
use crate::services::milestones::Milestones;
use crate::status::{self, Reason};

/// Batches on their way to a client, besides those that gRPC holds. The rest waits, bounded and counted, in the
/// subscription.
const AHEAD: usize = 2;

/// The service.
#[derive(Debug)]
pub struct Events(pub Arc<OneVm>);

type Sender = mpsc::Sender<Result<StreamEventsResponse, Status>>;

#[async_trait]
impl EventService for Events {
    type StreamEventsStream = ReceiverStream<Result<StreamEventsResponse, Status>>;

    async fn stream_events(
        &self,
        request: Request<StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let StreamEventsRequest {
            vm,
            probe_ids,
            linger_ms,
            resume,
            progress_ms,
        } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let linger = limits::linger(linger_ms)?;
        let every = limits::progress(progress_ms)?;
        machine.check_probes(&probe_ids)?;
        let (sender, stream) = mpsc::channel(AHEAD);
        // The subscription is made before `subscribed` is sent, so that the client's next call can't make a hit that
        // this stream doesn't see.
        let subscribe = || machine.events().subscribe(probe_ids.clone());
        if resume.is_none() && linger.is_zero() {
            let mut events = Source::Plain(subscribe());
            tokio::spawn(async move {
                tokio::select! {
                    () = follow(&machine, "", &mut events, every, &sender) => {}
                    () = sender.closed() => {}
                }
            });
            return Ok(Response::new(ReceiverStream::new(stream)));
        }
        let (held, events) = match resume {
            None => {
                let streams = machine.event_streams();
                let (held, events) = streams.add(subscribe, self.0.max_streams())?;
                (held, events.lock_owned().await)
            }
            Some(_) if !probe_ids.is_empty() => {
                let why = "a stream that is resumed has the probes that it was begun with";
                return Err(status::invalid("probe_ids", why));
            }
            Some(cursor) => resumed(&machine, &cursor).await?,
        };
        tokio::spawn(keep(machine, held, events, linger, every, sender));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Returns the stream of a cursor, at the cursor's place.
async fn resumed(
    machine: &Machine,
    cursor: &EventCursor,
) -> Result<(Held, OwnedMutexGuard<ResumableEvents>), Status> {
    let (held, events) = machine.event_streams().take(&cursor.stream)?;
    // If another stream has it, that stream lets it go at once.
    let mut events = events.lock_owned().await;
    match events.go_on_behind(cursor.batch) {
        Ok(()) => Ok((held, events)),
        Err(refused) => {
            machine.event_streams().end(&held);
            Err(refused)
        }
    }
}

/// Follows events for a resumable stream, and keeps the events for a while after the stream has broken.
async fn keep(
    machine: Arc<Machine>,
    mut held: Held,
    events: OwnedMutexGuard<ResumableEvents>,
    linger: Duration,
    every: Option<Duration>,
    sender: Sender,
) {
    let mut events = Source::Kept(events);
    let is_taken = tokio::select! {
        () = follow(&machine, &held.name, &mut events, every, &sender) => false,
        () = sender.closed() => false,
        _ = &mut held.taken => true,
    };
    drop(events);
    if is_taken {
        let why = "another stream has resumed this one";
        let _whoever_has_gone_needs_no_reason =
            sender.try_send(Err(status::because(Reason::ResumedElsewhere, why)));
        return;
    }
    drop(sender);
    let streams = Arc::clone(machine.event_streams());
    // The VM may be deleted in the meantime.
    drop(machine);
    tokio::time::sleep(linger).await;
    streams.end(&held);
}

/// The source of a stream's events.
enum Source {
    Plain(Subscription),
    Kept(OwnedMutexGuard<ResumableEvents>),
}

impl Source {
    async fn next(&mut self) -> Option<EventBatch> {
        match self {
            Self::Plain(subscription) => subscription.next().await,
            Self::Kept(events) => events.next().await,
        }
    }

    /// Returns how many events wait to be sent.
    fn waiting(&self) -> usize {
        match self {
            Self::Plain(subscription) => subscription.waiting(),
            Self::Kept(events) => events.waiting(),
        }
    }
}

/// Sends events until the guest has ended or the client has gone. Reports the progress as often as `every` says.
async fn follow(
    machine: &Machine,
    name: &str,
    events: &mut Source,
    every: Option<Duration>,
    to: &Sender,
) {
    let subscribed = Message::Subscribed(Subscribed {
        tsc_hz: machine.tsc_hz(),
        stream: name.to_owned(),
        clock: machine.clock(),
    });
    if send(to, subscribed).await.is_err() {
        return;
    }
    let mut milestones = Milestones::new(every);
    loop {
        let sent = tokio::select! {
            batch = events.next() => match batch {
                Some(batch) => {
                    milestones.sent(batch.len());
                    send(to, Message::Batch(batch)).await
                }
                None => break,
            },
            () = milestones.tick() => {
                milestones.set(machine.clock().map(|clock| clock.tsc), events.waiting());
                Ok(())
            }
        };
        let told = match milestones.reached() {
            Some(progress) => send(to, Message::Progress(progress)).await,
            None => Ok(()),
        };
        if sent.and(told).is_err() {
            return;
        }
    }
    let ending = Some(machine.ended().await);
    // If the client has gone, it needs no ending.
    let _ = send(to, Message::Ended(Ended { ending })).await;
}

async fn send(to: &Sender, message: Message) -> Result<(), ()> {
    let response = StreamEventsResponse {
        message: Some(message),
    };
    to.send(Ok(response)).await.map_err(|_| ())
}
