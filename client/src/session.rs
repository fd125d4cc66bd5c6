//! A client's session at a VM.

use std::time::Duration;

use tonic::Streaming;
use vmprobe_proto::v1::open_session_response::Message;
use vmprobe_proto::v1::probe_spec::Place;
use vmprobe_proto::v1::session_service_client::SessionServiceClient;
use vmprobe_proto::v1::{
    Ended, Ending, OpenSessionRequest, OpenSessionResponse, Probe, ProbeSpec, SessionOpened,
};
use vmprobe_spec::{is_enabled, is_pattern};

use crate::client::millis;
use crate::{Client, ClientError, ProbeBatch};

/// A session at a VM. Probes that are registered through it go when it is dropped, and when this process dies.
#[derive(Debug)]
pub struct Session {
    client: Client,
    vm: String,
    name: String,
    probe_ids: Vec<u64>,
    stream: Streaming<OpenSessionResponse>,
}

/// Registered probes, none of which is enabled yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DisabledProbes {
    /// The probes.
    pub probes: Vec<Probe>,
    /// The ids of those that are to be enabled.
    pub enable: Vec<u64>,
}

impl Client {
    /// Opens a session at a VM. If its connection breaks, its probes stay for `linger`, at most 10 minutes.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is no such VM.
    pub async fn open_session(&self, vm: &str, linger: Duration) -> Result<Session, ClientError> {
        self.resume_session(vm, linger, "").await
    }

    /// Goes on with the session of this name, whose connection has broken.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when the session has ended; its probes are gone then.
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
        let mut service = SessionServiceClient::new(self.connection());
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
    /// Returns the session's name, by which it can be resumed.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the probes that went with the session when it was opened or resumed.
    #[must_use]
    pub fn probe_ids(&self) -> &[u64] {
        &self.probe_ids
    }

    /// Does as [`Client::register_probes`], for as long as this session lasts.
    pub async fn register_probes(&self, probes: Vec<ProbeSpec>) -> Result<Vec<Probe>, ClientError> {
        Ok(self.register_batch(probes).await?.probes)
    }

    /// Does as [`Client::register_batch`], for as long as this session lasts.
    pub async fn register_batch(&self, probes: Vec<ProbeSpec>) -> Result<ProbeBatch, ClientError> {
        self.client
            .register_with(&self.vm, probes, &self.name)
            .await
    }

    /// Does as [`register_probes`](Self::register_probes), without enabling the probes. A client that wants to see
    /// their first hits follows them before it enables them. Each of `probes` has a name.
    pub async fn register_disabled(
        &self,
        mut probes: Vec<ProbeSpec>,
    ) -> Result<DisabledProbes, ClientError> {
        let stay_off = probes.iter().filter(|spec| !is_enabled(spec));
        let stay_off: Vec<ProbeSpec> = stay_off.cloned().collect();
        for spec in &mut probes {
            spec.enabled = Some(false);
        }
        let probes = self.register_probes(probes).await?;
        let wanted = probes
            .iter()
            .filter(|probe| !stay_off.iter().any(|spec| is_of(probe, spec)));
        Ok(DisabledProbes {
            enable: wanted.map(|probe| probe.id).collect(),
            probes,
        })
    }

    /// Waits for the guest's end.
    ///
    /// # Errors
    /// [`ClientError::Other`] with `ABORTED` when another client has resumed the session;
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

/// Returns true if a probe was registered by this specification. For a pattern, the probe's name begins with the
/// specification's.
fn is_of(probe: &Probe, spec: &ProbeSpec) -> bool {
    match probe.name.strip_prefix(&*spec.name) {
        Some("") => true,
        Some(rest) => has_pattern(spec) && rest.starts_with('.'),
        None => false,
    }
}

fn has_pattern(spec: &ProbeSpec) -> bool {
    matches!(&spec.place, Some(Place::Symbol(place)) if is_pattern(&place.symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_of_a_pattern_are_known_by_their_names() {
        for (text, name, of) in [
            ("p:p_2 tcp_*", "p_2.tcp_close", true),
            ("p:p_2 tcp_*", "p_20", false),
            ("p:net tcp_*", "net.tcp_close", true),
            ("p:net tcp_*", "network", false),
            ("p:p_vfs_read_0 vfs_read", "p_vfs_read_0", true),
            ("p:p_vfs_read_0 vfs_read", "p_vfs_read_0.x", false),
        ] {
            let spec = vmprobe_spec::parse(text).unwrap();
            let probe = Probe {
                name: name.into(),
                ..Default::default()
            };
            assert_eq!(is_of(&probe, &spec), of, "{name}");
        }
    }
}
