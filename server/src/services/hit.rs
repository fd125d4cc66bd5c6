//! `HitService`: hits that wait for a client's answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};
use vmprobe_proto::v1::handle_hits_request::Request as Asked;
use vmprobe_proto::v1::handle_hits_response::Response as Answer;
use vmprobe_proto::v1::hit_service_server::HitService;
use vmprobe_proto::v1::{BeginHits, Ended, HandleHitsRequest, HandleHitsResponse, HitsBegun};

use crate::blocking::blocking;
use crate::machine::{Attendance, Machine, Told};
use crate::one_vm::OneVm;
use crate::status::Reason;
use crate::{limits, status};

/// Messages on their way to a client, besides those that gRPC holds. They are more than a guest has vCPUs, so that a
/// client that reads nothing doesn't keep its own stream from ending.
const AHEAD: usize = 64;

/// The service.
#[derive(Debug)]
pub struct Hits(pub Arc<OneVm>);

type Sender = mpsc::Sender<Result<HandleHitsResponse, Status>>;

#[async_trait]
impl HitService for Hits {
    type HandleHitsStream = ReceiverStream<Result<HandleHitsResponse, Status>>;

    async fn handle_hits(
        &self,
        request: Request<Streaming<HandleHitsRequest>>,
    ) -> Result<Response<Self::HandleHitsStream>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?.and_then(|first| first.request);
        let Some(Asked::Begin(begin)) = first else {
            let why = "the first request says whose hits are to be answered";
            return Err(status::invalid("begin", why));
        };
        let BeginHits {
            vm,
            probes,
            answer_ms,
        } = begin;
        let machine = self.0.get(&vm)?;
        if !limits::ANSWER_MS.contains(&answer_ms) {
            let (least, most) = (limits::ANSWER_MS.start(), limits::ANSWER_MS.end());
            let why = format!("an answer may take {least} to {most} ms, not {answer_ms}");
            return Err(status::invalid("begin.answer_ms", why));
        }
        let time = Duration::from_millis(answer_ms.into());
        let probes = probes.unwrap_or_default();
        let there = Arc::clone(&machine);
        let (attendance, told) = blocking(move || there.attend(&probes, time)).await?;

        let (sender, stream) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let attendance = Arc::new(attendance);
            let end = tokio::select! {
                end = attend(&machine, &attendance, told, requests, &sender) => end,
                () = sender.closed() => Ok(()),
            };
            if let Err(status) = end {
                let why = status.message();
                tracing::warn!(vm = machine.name(), "a client is asked no more: {why}");
                // If the client has gone, it needs no reason.
                let _ = sender.try_send(Err(status));
            }
            drop(sender);
            let end = move || {
                attendance.end();
                Ok(())
            };
            // The guest goes on in any case.
            let _ = blocking(end).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Passes hits and answers on until the guest has ended, the client has gone, or the client does something wrong.
async fn attend(
    machine: &Machine,
    attendance: &Arc<Attendance>,
    mut told: UnboundedReceiver<Told>,
    mut requests: Streaming<HandleHitsRequest>,
    to: &Sender,
) -> Result<(), Status> {
    let begun = Answer::Begun(HitsBegun {
        tsc_hz: machine.tsc_hz(),
        probe_ids: attendance.probe_ids(),
    });
    send(to, begun).await;
    loop {
        tokio::select! {
            // Messages of hits are handled before the guest's end: a hit's time may end right before the guest does.
            biased;
            told = told.recv() => match told {
                Some(Told::Hit(hit)) => send(to, Answer::Hit(*hit)).await,
                Some(Told::Late) => return Err(status::because(
                    Reason::TimeOver,
                    "a hit was not answered in its time: the guest has gone on without an answer, and no more \
                     hits wait for this client",
                )),
                None => return Ok(()),
            },
            request = requests.message() => match request {
                Ok(Some(request)) => {
                    if let Some(answer) = answer(attendance, request).await? {
                        send(to, answer).await;
                    }
                }
                // The client has gone, or asks for nothing more.
                Ok(None) | Err(_) => return Ok(()),
            },
            ending = machine.ended() => {
                send(to, Answer::Ended(Ended { ending: Some(ending) })).await;
                return Ok(());
            }
        }
    }
}

/// Does what a request asks for. Returns the answer, if there is one.
async fn answer(
    attendance: &Arc<Attendance>,
    request: HandleHitsRequest,
) -> Result<Option<Answer>, Status> {
    let attendance = Arc::clone(attendance);
    match request.request {
        Some(Asked::Answer(answer)) => {
            attendance.answer(&answer)?;
            Ok(None)
        }
        Some(Asked::ReadMemory(asked)) => {
            if asked.length > limits::HIT_READ_BYTES {
                let most = limits::HIT_READ_BYTES;
                let why = format!("at most {most} bytes at a time");
                return Err(status::invalid("read_memory.length", why));
            }
            let read = blocking(move || attendance.read(&asked)).await?;
            Ok(Some(Answer::Memory(read)))
        }
        Some(Asked::WriteMemory(asked)) => {
            if !limits::HIT_WRITE_BYTES.contains(&asked.data.len()) {
                let most = limits::HIT_WRITE_BYTES.end();
                let why = format!("1 to {most} bytes at a time");
                return Err(status::invalid("write_memory.data", why));
            }
            let written = blocking(move || attendance.write(&asked)).await?;
            Ok(Some(Answer::Written(written)))
        }
        Some(Asked::Begin(_)) => Err(status::invalid("begin", "the stream has begun already")),
        None => Err(status::invalid(
            "request",
            "it is none that this server knows",
        )),
    }
}

/// Sends a response. If the client has gone, that is noticed elsewhere.
async fn send(to: &Sender, response: Answer) {
    let response = HandleHitsResponse {
        response: Some(response),
    };
    let _ = to.send(Ok(response)).await;
}
