//! `SessionService`: probes that go when their client goes.

use std::sync::{Arc, Weak};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::open_session_response::Message;
use vmprobe_proto::v1::session_service_server::SessionService;
use vmprobe_proto::v1::{Ended, OpenSessionRequest, OpenSessionResponse, SessionOpened};

use crate::blocking::blocking;
use crate::held::Held;
use crate::limits;
use crate::machine::Machine;
use crate::one_vm::OneVm;
use crate::status::{self, Reason};

/// The most messages on their way to a client.
const AHEAD: usize = 2;

/// The service.
#[derive(Debug)]
pub struct Sessions(pub Arc<OneVm>);

type Sender = mpsc::Sender<Result<OpenSessionResponse, Status>>;

#[async_trait]
impl SessionService for Sessions {
    type OpenSessionStream = ReceiverStream<Result<OpenSessionResponse, Status>>;

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<Self::OpenSessionStream>, Status> {
        let OpenSessionRequest {
            vm,
            linger_ms,
            resume,
        } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let linger = limits::linger(linger_ms)?;
        let (mut held, probe_ids) = machine.sessions().hold(&resume)?;
        let (sender, stream) = mpsc::channel(AHEAD);
        let opened = Message::Opened(SessionOpened {
            session: held.name.clone(),
            probe_ids,
        });
        send(&sender, opened);
        tokio::spawn(async move {
            let is_taken = last(&machine, &mut held, sender).await;
            if is_taken {
                return;
            }
            // The VM may be deleted in the meantime.
            let machine: Weak<Machine> = {
                let machine = machine;
                Arc::downgrade(&machine)
            };
            tokio::time::sleep(linger).await;
            let Some(machine) = machine.upgrade() else {
                return;
            };
            let end = move || {
                machine.end_session(&held);
                Ok(())
            };
            // Errors are logged there.
            let _ = blocking(end).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Waits until the client has gone, or another stream has taken the session. Returns true in the
/// second case.
async fn last(machine: &Machine, held: &mut Held, to: Sender) -> bool {
    tokio::select! {
        _ = &mut held.taken => {
            let why = "another stream has resumed this session";
            let _whoever_has_gone_needs_no_reason = to.try_send(Err(status::because(Reason::ResumedElsewhere, why)));
            return true;
        }
        ending = machine.ended() => {
            let ending = Some(ending);
            send(&to, Message::Ended(Ended { ending }));
        }
        () = to.closed() => {}
    }
    false
}

/// Sends a message. The channel always has room for it.
fn send(to: &Sender, message: Message) {
    let message = Some(message);
    let _whoever_has_gone_needs_none = to.try_send(Ok(OpenSessionResponse { message }));
}
