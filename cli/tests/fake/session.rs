//! Sessions: they last as long as their streams, and take their probes with them.

use super::*;

const NAME: &str = "session";

/// The probes of the session go when its stream does.
struct Stay(Fake);

impl Drop for Stay {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.probes.retain(|probe| !probe.in_session);
    }
}

#[tonic::async_trait]
impl SessionService for Fake {
    type OpenSessionStream = Answers<OpenSessionResponse>;

    async fn open_session(
        &self,
        _: Request<OpenSessionRequest>,
    ) -> Answer<Self::OpenSessionStream> {
        let opened = open_session_response::Message::Opened(SessionOpened {
            session: NAME.into(),
            probe_ids: Vec::new(),
        });
        let opened = OpenSessionResponse {
            message: Some(opened),
        };
        let stay = Stay(self.clone());
        let rest = tokio_stream::pending().map(move |message| {
            let _as_long_as_the_stream = &stay;
            message
        });
        let messages = tokio_stream::once(Ok(opened)).chain(rest);
        Ok(Response::new(Box::pin(messages)))
    }
}
