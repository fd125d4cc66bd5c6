//! Hits that wait for this client's answer.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use vmprobe_proto::v1::handle_hits_request::Request;
use vmprobe_proto::v1::handle_hits_response::Response;
use vmprobe_proto::v1::hit_service_client::HitServiceClient;
use vmprobe_proto::v1::{
    Action, AnswerHit, BeginHits, Ending, HandleHitsRequest, HandleHitsResponse, HeldHit,
    HitsBegun, ProbeSelector, ReadHitMemory, WriteHitMemory,
};

use crate::ClientError;
use crate::connection::Connection;

/// Requests on their way.
const AHEAD: usize = 16;

/// One message of [`HeldHits`].
#[derive(Clone, Debug, PartialEq)]
pub enum HitMessage {
    /// A vCPU stands still until [`HeldHits::answer`].
    Hit(Box<HeldHit>),
    /// The guest has ended; the last message.
    Ended(Ending),
}

/// The hits of some probes, each of which waits for an answer. Dropping it lets the guest go on.
#[derive(Debug)]
pub struct HeldHits {
    requests: mpsc::Sender<HandleHitsRequest>,
    stream: Streaming<HandleHitsResponse>,
    /// Responses that arrived before the awaited answer.
    early: VecDeque<Response>,
    tsc_hz: u64,
}

impl HeldHits {
    pub(crate) async fn begin(
        service: &mut HitServiceClient<Connection>,
        vm: &str,
        probes: ProbeSelector,
        time: Duration,
    ) -> Result<Self, ClientError> {
        let (requests, queue) = mpsc::channel(AHEAD);
        let begin = BeginHits {
            vm: vm.to_owned(),
            probes: Some(probes),
            answer_ms: u32::try_from(time.as_millis()).unwrap_or(u32::MAX),
        };
        let begin = HandleHitsRequest {
            request: Some(Request::Begin(begin)),
        };
        // The queue is new and has room; it can't be closed while `queue` lives.
        let _ = requests.send(begin).await;
        let stream = service.handle_hits(ReceiverStream::new(queue)).await?;
        let mut hits = Self {
            requests,
            stream: stream.into_inner(),
            early: VecDeque::new(),
            tsc_hz: 0,
        };
        match hits.receive().await? {
            Some(Response::Begun(HitsBegun { tsc_hz, .. })) => hits.tsc_hz = tsc_hz,
            _ => return Err(ClientError::Protocol("beginning")),
        }
        Ok(hits)
    }

    /// Frequency of the guest's time stamp counter in hertz, to turn event times into seconds.
    #[must_use]
    pub fn tsc_hz(&self) -> u64 {
        self.tsc_hz
    }

    /// Returns the next hit, or `None` after [`HitMessage::Ended`].
    ///
    /// # Errors
    /// [`ClientError::Timeout`] when a hit was not answered in time.
    pub async fn next(&mut self) -> Result<Option<HitMessage>, ClientError> {
        let response = match self.early.pop_front() {
            Some(early) => Some(early),
            None => self.receive().await?,
        };
        match response {
            None => Ok(None),
            Some(Response::Hit(hit)) => Ok(Some(HitMessage::Hit(Box::new(hit)))),
            Some(Response::Ended(ended)) => {
                let ending = ended.ending.unwrap_or_default();
                Ok(Some(HitMessage::Ended(ending)))
            }
            Some(_) => Err(ClientError::Protocol("message")),
        }
    }

    /// Returns guest memory as the vCPU of a hit sees it, up to the first page that isn't mapped.
    pub async fn read_memory(
        &mut self,
        hit: u64,
        address: u64,
        length: u32,
    ) -> Result<Vec<u8>, ClientError> {
        let asked = ReadHitMemory {
            hit,
            address,
            length,
        };
        self.send(Request::ReadMemory(asked)).await?;
        loop {
            match self.answered().await? {
                Response::Memory(memory) => return Ok(memory.data),
                other => self.early.push_back(other),
            }
        }
    }

    /// Writes guest memory as the vCPU of a hit sees it.
    ///
    /// # Errors
    /// [`ClientError::FailedPrecondition`] with the reason why it can't be written; the hit still waits then.
    pub async fn write_memory(
        &mut self,
        hit: u64,
        address: u64,
        data: Vec<u8>,
    ) -> Result<(), ClientError> {
        let asked = WriteHitMemory { hit, address, data };
        self.send(Request::WriteMemory(asked)).await?;
        loop {
            match self.answered().await? {
                Response::Written(written) if written.failure.is_empty() => return Ok(()),
                Response::Written(written) => {
                    return Err(ClientError::FailedPrecondition(written.failure));
                }
                other => self.early.push_back(other),
            }
        }
    }

    /// Lets the vCPU of a hit go on after these actions. If the server refuses the answer, [`HeldHits::next`] returns
    /// the error.
    pub async fn answer(&mut self, hit: u64, actions: Vec<Action>) -> Result<(), ClientError> {
        self.send(Request::Answer(AnswerHit { hit, actions })).await
    }

    async fn send(&self, request: Request) -> Result<(), ClientError> {
        let request = HandleHitsRequest {
            request: Some(request),
        };
        let sent = self.requests.send(request).await;
        sent.map_err(|_| ClientError::Disconnected("the stream of hits has ended".into()))
    }

    async fn receive(&mut self) -> Result<Option<Response>, ClientError> {
        match self.stream.message().await? {
            None => Ok(None),
            Some(message) => match message.response {
                Some(response) => Ok(Some(response)),
                None => Err(ClientError::Protocol("message")),
            },
        }
    }

    async fn answered(&mut self) -> Result<Response, ClientError> {
        let ended = || ClientError::Disconnected("the stream of hits has ended".into());
        self.receive().await?.ok_or_else(ended)
    }
}
