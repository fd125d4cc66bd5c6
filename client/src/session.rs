//! A client's stay at a VM.

use std::time::Duration;

use tonic::Streaming;
use vmprobe_proto::v1::open_session_response::Message;
use vmprobe_proto::v1::session_service_client::SessionServiceClient;
use vmprobe_proto::v1::{
    Ended, Ending, OpenSessionRequest, OpenSessionResponse, Probe, ProbeSpec, SessionOpened,
};

use crate::client::millis;
use crate::{Client, ClientError, ProbeBatch};

/// A stay at a VM. Probes that are registered through it go when it is dropped, and when this process dies.
#[derive(Debug)]
pub struct Session {
    client: Client,
    vm: String,
    name: String,
    probe_ids: Vec<u64>,
    stream: Streaming<OpenSessionResponse>,
}

impl Client {
    /// Opens a session at a VM. The probes of one whose connection breaks stay for `linger`, at most 10 minutes.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is no such VM.
    pub async fn open_session(&self, vm: &str, linger: Duration) -> Result<Session, ClientError> {
        self.resume_session(vm, linger, "").await
    }

    /// Goes on with the session of this name, whose connection has broken.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when it has ended; its probes are gone then.
    pub async fn resume_session(
        &self,
        vm: &str,
        linger: Duration,
        name: &str,
    ) -> Result<Session, ClientError> {
        let request = OpenSessionRequest {
            vm: vm.into(),
            linger_ms: millis(linger),
            resume: name.into(),
        };
        let mut service = SessionServiceClient::new(self.channel());
        let mut stream = service.open_session(request).await?.into_inner();
        match stream.message().await?.and_then(|answer| answer.message) {
            Some(Message::Opened(SessionOpened { session, probe_ids })) => Ok(Session {
                client: self.clone(),
                vm: vm.into(),
                name: session,
                probe_ids,
                stream,
            }),
            _ => Err(ClientError::Protocol("session")),
        }
    }
}

impl Session {
    /// Its name, by which it can be resumed.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The probes that went with it when it was opened or resumed.
    #[must_use]
    pub fn probe_ids(&self) -> &[u64] {
        &self.probe_ids
    }

    /// As [`Client::register_probes`], for as long as this session lasts.
    pub async fn register_probes(&self, probes: Vec<ProbeSpec>) -> Result<Vec<Probe>, ClientError> {
        Ok(self.register_batch(probes).await?.probes)
    }

    /// As [`Client::register_batch`], for as long as this session lasts.
    pub async fn register_batch(&self, probes: Vec<ProbeSpec>) -> Result<ProbeBatch, ClientError> {
        self.client
            .register_with(&self.vm, probes, &self.name)
            .await
    }

    /// Waits for the guest's end.
    ///
    /// # Errors
    /// [`ClientError::Other`] with `ABORTED` when somebody else has resumed the session;
    /// [`ClientError::Disconnected`] when the connection is broken.
    pub async fn guest_ended(&mut self) -> Result<Ending, ClientError> {
        match self.stream.message().await? {
            Some(OpenSessionResponse {
                message: Some(Message::Ended(Ended { ending })),
            }) => Ok(ending.unwrap_or_default()),
            _ => Err(ClientError::Protocol("end")),
        }
    }
}
