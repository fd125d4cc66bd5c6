//! `DebugService`: debugging a guest.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use probe_engine::engine::{Stop, StopReason};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};
use vmprobe_proto::v1::debug_request::Request as Asked;
use vmprobe_proto::v1::debug_response::Response as Answer;
use vmprobe_proto::v1::debug_service_server::DebugService;
use vmprobe_proto::v1::{
    DebugDone, DebugFailed, DebugRequest, DebugResponse, DebuggedMemory, DebuggerAttached, Ended,
    GuestStopped, StopReason as ToldReason,
};

use crate::blocking::blocking;
use crate::machine::{DebugSession, Machine};
use crate::one_vm::OneVm;
use crate::status;

/// Responses on their way to a client, besides those that gRPC holds.
const AHEAD: usize = 16;

/// The service.
#[derive(Debug)]
pub struct Debuggers(pub Arc<OneVm>);

type Sender = mpsc::Sender<Result<DebugResponse, Status>>;

#[async_trait]
impl DebugService for Debuggers {
    type DebugStream = ReceiverStream<Result<DebugResponse, Status>>;

    async fn debug(
        &self,
        request: Request<Streaming<DebugRequest>>,
    ) -> Result<Response<Self::DebugStream>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?.and_then(|first| first.request);
        let Some(Asked::Attach(attach)) = first else {
            let why = "the first request says which VM is debugged";
            return Err(status::invalid("attach", why));
        };
        let machine = self.0.get(&attach.vm)?;
        let there = Arc::clone(&machine);
        let (session, stops) = blocking(move || there.debug()).await?;
        tracing::info!(vm = machine.name(), "a debugger is attached");
        let (sender, stream) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let debugging = Debugging {
                machine: Arc::clone(&machine),
                session: Arc::new(Mutex::new(session)),
                stops,
                untold: VecDeque::new(),
                runs: None,
            };
            let session = Arc::clone(&debugging.session);
            let end = tokio::select! {
                end = debugging.serve(requests, &sender) => end,
                () = sender.closed() => Ok(()),
            };
            if let Err(status) = end {
                // If the client has gone, it needs no reason.
                let _ = sender.try_send(Err(status));
            }
            drop(sender);
            tracing::info!(vm = machine.name(), "the debugger has gone");
            // The guest goes on in any case. A call under way keeps the session until it is done.
            let _ = blocking(move || {
                drop(session);
                Ok(())
            })
            .await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// The vCPU that the client is told of when it interrupts the guest.
type Current = u32;

struct Debugging {
    machine: Arc<Machine>,
    session: Arc<Mutex<DebugSession>>,
    stops: UnboundedReceiver<Stop>,
    /// Accesses to watched data that the client hasn't been told of yet.
    untold: VecDeque<Stop>,
    /// Set while the guest runs, or a vCPU steps.
    runs: Option<Current>,
}

impl Debugging {
    /// Answers the client's requests until it has gone, or the guest has ended.
    async fn serve(
        mut self,
        mut requests: Streaming<DebugRequest>,
        to: &Sender,
    ) -> Result<(), Status> {
        let vcpus = self.with(|session| Ok(session.vcpus())).await?;
        send(to, Answer::Attached(DebuggerAttached { vcpus })).await;
        let machine = Arc::clone(&self.machine);
        let ended = machine.ended();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                biased;
                stop = self.stops.recv(), if self.runs.is_some() => {
                    if let Some(stop) = stop && let Some(told) = self.stopped(stop).await? {
                        send(to, Answer::Stopped(told)).await;
                    }
                }
                request = requests.message() => match request {
                    Ok(Some(request)) => {
                        let Some(request) = request.request else {
                            let why = "it is none that this server knows";
                            return Err(status::invalid("request", why));
                        };
                        if let Some(answer) = self.answer(request).await? {
                            send(to, answer).await;
                        }
                    }
                    // The client has gone.
                    Ok(None) | Err(_) => return Ok(()),
                },
                ending = &mut ended => {
                    send(to, Answer::Ended(Ended { ending: Some(ending) })).await;
                    return Ok(());
                }
            }
        }
    }

    /// Returns the client's message of a stop, or `None` if the stop doesn't count any more.
    async fn stopped(&mut self, first: Stop) -> Result<Option<GuestStopped>, Status> {
        if self.with(|session| session.stop()).await.is_err() {
            // The client is told of the guest's end instead.
            return Ok(None);
        }
        // Other vCPUs may have stopped at the same time. They come to their breakpoints again.
        self.untold.push_back(first);
        while let Ok(stop) = self.stops.try_recv() {
            self.untold.push_back(stop);
        }
        // When a stepped instruction accesses watched data, the stop of the step comes first. The
        // client gets the access first.
        self.untold
            .make_contiguous()
            .sort_by_key(|stop| matches!(stop.reason, StopReason::Stepped));
        let told = self.next_untold().await?;
        self.untold
            .retain(|stop| matches!(stop.reason, StopReason::Watchpoint(_)));
        match told {
            Some(_) => self.runs = None,
            None => self.with(DebugSession::go_on).await?,
        }
        Ok(told)
    }

    /// Returns the message of the first stop whose breakpoint is still there.
    async fn next_untold(&mut self) -> Result<Option<GuestStopped>, Status> {
        while let Some(stop) = self.untold.pop_front() {
            let told = self.with(move |session| Ok(session.told(stop))).await?;
            if told.is_some() {
                return Ok(told);
            }
        }
        Ok(None)
    }

    /// Does what the client asks for. Returns the answer, or `None` if the answer is a later stop.
    async fn answer(&mut self, asked: Asked) -> Result<Option<Answer>, Status> {
        let done = |()| Answer::Done(DebugDone {});
        if let Some(current) = self.runs {
            if !matches!(asked, Asked::Interrupt(_)) {
                return Ok(Some(failed("the guest runs: interrupt it first")));
            }
            if self.with(|session| session.stop()).await.is_err() {
                return Ok(None);
            }
            if let Ok(stop) = self.stops.try_recv() {
                return Ok(self.stopped(stop).await?.map(Answer::Stopped));
            }
            self.runs = None;
            return Ok(Some(interrupted(current)));
        }
        let answer = match asked {
            Asked::Attach(_) => return Err(status::invalid("attach", "a VM is attached already")),
            Asked::ReadVcpu(asked) => {
                let read = self.with(move |session| session.registers(asked.vcpu));
                read.await.map(Answer::Vcpu)
            }
            Asked::WriteVcpu(asked) => {
                let set = self.with(move |session| session.set_registers(&asked));
                set.await.map(done)
            }
            Asked::ReadMemory(asked) => {
                let read = self.with(move |session| session.read(&asked));
                let memory = |data| Answer::Memory(DebuggedMemory { data });
                read.await.map(memory)
            }
            Asked::WriteMemory(asked) => {
                let written = self.with(move |session| session.write(&asked));
                written.await.map(done)
            }
            Asked::SetBreakpoint(asked) => {
                let breakpoint = asked.breakpoint.unwrap_or_default();
                self.with(move |session| session.set(breakpoint))
                    .await
                    .map(done)
            }
            Asked::RemoveBreakpoint(asked) => {
                let breakpoint = asked.breakpoint.unwrap_or_default();
                let removed = self.with(move |session| session.remove(&breakpoint));
                removed.await.map(done)
            }
            // The guest stands still already.
            Asked::Interrupt(_) => return Ok(None),
            Asked::Step(asked) => {
                self.forget_stops();
                self.runs = Some(asked.vcpu);
                match self.with(move |session| session.step(asked.vcpu)).await {
                    Ok(()) => return Ok(None),
                    Err(why) => Err(why),
                }
            }
            Asked::Continue(_) => {
                if let Some(told) = self.next_untold().await? {
                    return Ok(Some(Answer::Stopped(told)));
                }
                self.forget_stops();
                self.runs = Some(0);
                match self.with(DebugSession::go_on).await {
                    Ok(()) => return Ok(None),
                    Err(why) => Err(why),
                }
            }
        };
        Ok(Some(answer.unwrap_or_else(|why| {
            self.runs = None;
            failed(why.message())
        })))
    }

    /// Forgets old stops, as another client may have let the guest go on meanwhile.
    fn forget_stops(&mut self) {
        while self.stops.try_recv().is_ok() {}
    }

    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut DebugSession) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let session = Arc::clone(&self.session);
        blocking(move || act(&mut session.lock())).await
    }
}

fn failed(reason: &str) -> Answer {
    Answer::Failed(DebugFailed {
        reason: reason.to_owned(),
    })
}

fn interrupted(vcpu: u32) -> Answer {
    Answer::Stopped(GuestStopped {
        reason: ToldReason::Interrupted.into(),
        vcpu,
        breakpoint: None,
    })
}

/// Sends a response. If the client has gone, that is noticed elsewhere.
async fn send(to: &Sender, response: Answer) {
    let response = DebugResponse {
        response: Some(response),
    };
    let _ = to.send(Ok(response)).await;
}
