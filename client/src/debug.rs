//! Debugging a guest.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use vmprobe_proto::v1::debug_request::Request;
use vmprobe_proto::v1::debug_response::Response;
use vmprobe_proto::v1::debug_service_client::DebugServiceClient;
use vmprobe_proto::v1::{
    AttachDebugger, Breakpoint, ContinueGuest, DebugRequest, DebugResponse, DebuggerAttached,
    Ending, GuestStopped, InterruptGuest, ReadDebuggedMemory, ReadVcpu, Registers,
    RemoveBreakpoint, SetBreakpoint, StepVcpu, VcpuState, WriteDebuggedMemory, WriteVcpu,
};

use crate::ClientError;
use crate::connection::Connection;

/// Requests on their way.
const AHEAD: usize = 16;

/// A change of a running guest.
#[derive(Clone, Debug, PartialEq)]
pub enum DebugEvent {
    /// All vCPUs stand still.
    Stopped(GuestStopped),
    /// The guest has ended; the last event.
    Ended(Ending),
}

/// A guest that this client debugs, one request after the other. Dropping it removes the breakpoints and lets the
/// guest go on.
#[derive(Debug)]
pub struct DebugSession {
    requests: mpsc::Sender<DebugRequest>,
    stream: Streaming<DebugResponse>,
    /// Responses that arrived before the awaited answer.
    early: VecDeque<Response>,
    vcpus: u32,
}

impl DebugSession {
    pub(crate) async fn begin(
        service: &mut DebugServiceClient<Connection>,
        vm: &str,
    ) -> Result<Self, ClientError> {
        let (requests, queue) = mpsc::channel(AHEAD);
        let attach = AttachDebugger { vm: vm.to_owned() };
        let attach = DebugRequest {
            request: Some(Request::Attach(attach)),
        };
        // The queue is new and has room; it can't be closed while `queue` lives.
        let _ = requests.send(attach).await;
        let stream = service.debug(ReceiverStream::new(queue)).await?;
        let mut session = Self {
            requests,
            stream: stream.into_inner(),
            early: VecDeque::new(),
            vcpus: 0,
        };
        match session.receive().await? {
            Response::Attached(DebuggerAttached { vcpus }) => session.vcpus = vcpus,
            _ => return Err(ClientError::Protocol("beginning")),
        }
        Ok(session)
    }

    /// Returns the number of vCPUs.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        self.vcpus
    }

    /// Returns the registers of a vCPU.
    ///
    /// # Errors
    /// [`ClientError::FailedPrecondition`] with the reason, as for all requests that the server doesn't carry out.
    pub async fn read_vcpu(&mut self, vcpu: u32) -> Result<VcpuState, ClientError> {
        match self.ask(Request::ReadVcpu(ReadVcpu { vcpu })).await? {
            Response::Vcpu(state) => Ok(state),
            _ => Err(ClientError::Protocol("registers")),
        }
    }

    /// Sets the general registers of a vCPU.
    pub async fn write_vcpu(&mut self, vcpu: u32, registers: Registers) -> Result<(), ClientError> {
        let registers = Some(registers);
        self.done(Request::WriteVcpu(WriteVcpu { vcpu, registers }))
            .await
    }

    /// Returns guest memory as a vCPU sees it, up to the first page that isn't mapped.
    pub async fn read_memory(
        &mut self,
        vcpu: u32,
        address: u64,
        length: u32,
    ) -> Result<Vec<u8>, ClientError> {
        let asked = ReadDebuggedMemory {
            vcpu,
            address,
            length,
        };
        match self.ask(Request::ReadMemory(asked)).await? {
            Response::Memory(memory) => Ok(memory.data),
            _ => Err(ClientError::Protocol("memory")),
        }
    }

    /// Writes guest memory as a vCPU sees it.
    pub async fn write_memory(
        &mut self,
        vcpu: u32,
        address: u64,
        data: Vec<u8>,
    ) -> Result<(), ClientError> {
        let asked = WriteDebuggedMemory {
            vcpu,
            address,
            data,
        };
        self.done(Request::WriteMemory(asked)).await
    }

    /// Sets a breakpoint.
    pub async fn set_breakpoint(&mut self, breakpoint: Breakpoint) -> Result<(), ClientError> {
        let breakpoint = Some(breakpoint);
        self.done(Request::SetBreakpoint(SetBreakpoint { breakpoint }))
            .await
    }

    /// Removes a breakpoint.
    pub async fn remove_breakpoint(&mut self, breakpoint: Breakpoint) -> Result<(), ClientError> {
        let breakpoint = Some(breakpoint);
        self.done(Request::RemoveBreakpoint(RemoveBreakpoint { breakpoint }))
            .await
    }

    /// Makes a vCPU execute one instruction. [`DebugSession::next`] returns when it has done so.
    pub async fn step(&mut self, vcpu: u32) -> Result<(), ClientError> {
        self.send(Request::Step(StepVcpu { vcpu })).await
    }

    /// Lets the guest go on. [`DebugSession::next`] returns when it has stopped.
    pub async fn go_on(&mut self) -> Result<(), ClientError> {
        self.send(Request::Continue(ContinueGuest {})).await
    }

    /// Stops a guest that runs. [`DebugSession::next`] returns when it has stopped.
    pub async fn interrupt(&mut self) -> Result<(), ClientError> {
        self.send(Request::Interrupt(InterruptGuest {})).await
    }

    /// Waits until a running guest has stopped. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// [`ClientError::FailedPrecondition`] with the reason why the guest doesn't run.
    pub async fn next(&mut self) -> Result<DebugEvent, ClientError> {
        let response = match self.early.pop_front() {
            Some(early) => early,
            None => self.receive().await?,
        };
        match response {
            Response::Stopped(stopped) => Ok(DebugEvent::Stopped(stopped)),
            Response::Ended(ended) => Ok(DebugEvent::Ended(ended.ending.unwrap_or_default())),
            Response::Failed(failed) => Err(ClientError::FailedPrecondition(failed.reason)),
            _ => Err(ClientError::Protocol("stop")),
        }
    }

    async fn done(&mut self, request: Request) -> Result<(), ClientError> {
        match self.ask(request).await? {
            Response::Done(_) => Ok(()),
            _ => Err(ClientError::Protocol("answer")),
        }
    }

    async fn ask(&mut self, request: Request) -> Result<Response, ClientError> {
        self.send(request).await?;
        match self.receive().await? {
            Response::Failed(failed) => Err(ClientError::FailedPrecondition(failed.reason)),
            ended @ Response::Ended(_) => {
                self.early.push_back(ended);
                Err(ClientError::FailedPrecondition(
                    "the guest has ended".to_owned(),
                ))
            }
            response => Ok(response),
        }
    }

    async fn send(&self, request: Request) -> Result<(), ClientError> {
        let request = DebugRequest {
            request: Some(request),
        };
        let sent = self.requests.send(request).await;
        sent.map_err(|_| over())
    }

    async fn receive(&mut self) -> Result<Response, ClientError> {
        let message = self.stream.message().await?.ok_or_else(over)?;
        message.response.ok_or(ClientError::Protocol("message"))
    }
}

fn over() -> ClientError {
    ClientError::Disconnected("the stream of the debugger has ended".into())
}
