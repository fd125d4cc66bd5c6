//! `ConsoleService`: a guest's console, both ways.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};
use vmprobe_proto::v1::console_service_server::ConsoleService;
use vmprobe_proto::v1::{AttachConsoleRequest, AttachConsoleResponse};

use crate::console::ConsoleReader;
use crate::machine::Machine;
use crate::one_vm::OneVm;
use crate::status;

/// Messages on their way to a client, besides those that gRPC holds.
const AHEAD: usize = 2;

/// The service.
#[derive(Debug)]
pub struct Consoles(pub Arc<OneVm>);

#[async_trait]
impl ConsoleService for Consoles {
    type AttachConsoleStream = ReceiverStream<Result<AttachConsoleResponse, Status>>;

    async fn attach_console(
        &self,
        request: Request<Streaming<AttachConsoleRequest>>,
    ) -> Result<Response<Self::AttachConsoleStream>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?;
        let first = first.ok_or_else(|| status::invalid("vm", "the first message names the VM"))?;
        let machine = self.0.get(&first.vm)?;
        let output = machine.console_output();

        let (sender, stream) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            machine.console_input(&first.input);
            tokio::select! {
                () = send(output, &sender) => {}
                () = receive(&machine, requests) => {}
                () = sender.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Sends the console's output until the guest has ended or the client has gone.
async fn send(mut output: ConsoleReader, to: &mpsc::Sender<Result<AttachConsoleResponse, Status>>) {
    while let Some(chunk) = output.next().await {
        let message = AttachConsoleResponse {
            output: chunk.bytes,
            dropped: chunk.dropped,
        };
        if to.send(Ok(message)).await.is_err() {
            return;
        }
    }
}

/// Passes input on to the console. Never completes: the end of the input isn't the end of the
/// stream.
async fn receive(machine: &Machine, mut from: Streaming<AttachConsoleRequest>) {
    while let Ok(Some(request)) = from.message().await {
        machine.console_input(&request.input);
    }
    std::future::pending::<()>().await;
}
