//! `EventService`: what probes see, followed.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::event_service_server::EventService;
use vmprobe_proto::v1::stream_events_response::Message;
use vmprobe_proto::v1::{Ended, StreamEventsRequest, StreamEventsResponse, Subscribed};

use crate::fanout::Subscription;
use crate::machine::Machine;
use crate::one_vm::OneVm;

/// Batches on their way to a client beside those that gRPC holds; the rest waits, bounded and
/// counted, in the subscription.
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
        let StreamEventsRequest { vm, probe_ids } = request.into_inner();
        let machine = self.0.get(&vm)?;
        machine.check_probes(&probe_ids)?;
        // Before `subscribed` is sent, so that the client's next call can't make a hit that this
        // stream doesn't see.
        let subscription = machine.events().subscribe(probe_ids);

        let (sender, stream) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            tokio::select! {
                () = follow(&machine, subscription, &sender) => {}
                () = sender.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Sends until the guest has ended or the client has gone.
async fn follow(machine: &Machine, mut subscription: Subscription, to: &Sender) {
    let subscribed = Message::Subscribed(Subscribed {
        tsc_hz: machine.tsc_hz(),
    });
    if send(to, subscribed).await.is_err() {
        return;
    }
    while let Some(batch) = subscription.next().await {
        if send(to, Message::Batch(batch)).await.is_err() {
            return;
        }
    }
    let ending = Some(machine.ended().await);
    // Whoever has gone needs no ending.
    let _ = send(to, Message::Ended(Ended { ending })).await;
}

async fn send(to: &Sender, message: Message) -> Result<(), ()> {
    let response = StreamEventsResponse {
        message: Some(message),
    };
    to.send(Ok(response)).await.map_err(|_| ())
}
