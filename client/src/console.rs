//! A guest's console, both ways.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use vmprobe_proto::v1::console_service_client::ConsoleServiceClient;
use vmprobe_proto::v1::{AttachConsoleRequest, AttachConsoleResponse};

use crate::ClientError;
use crate::connection::Connection;

/// Messages of input on their way. If the guest reads more slowly than the user types, input waits
/// here.
const INPUT_QUEUE: usize = 16;

/// What the guest wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleChunk {
    /// Bytes that were lost before these because they were read too late.
    pub dropped: u64,
    /// The bytes, as the guest wrote them.
    pub output: Vec<u8>,
}

/// The input of the guest's console. Dropping it ends the input, not the output.
#[derive(Clone, Debug)]
pub struct ConsoleInput {
    requests: mpsc::Sender<AttachConsoleRequest>,
}

impl ConsoleInput {
    /// Sends bytes to the guest's console.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`] when the console has ended.
    pub async fn send(&self, input: Vec<u8>) -> Result<(), ClientError> {
        let request = AttachConsoleRequest {
            vm: String::new(),
            input,
        };
        self.requests
            .send(request)
            .await
            .map_err(|_| ClientError::Disconnected("the console has ended".into()))
    }
}

/// The output of the guest's console.
#[derive(Debug)]
pub struct ConsoleOutput {
    stream: Streaming<AttachConsoleResponse>,
}

impl ConsoleOutput {
    /// Returns the next bytes, or `None` when the guest has ended and all is read.
    pub async fn next(&mut self) -> Result<Option<ConsoleChunk>, ClientError> {
        let message = self.stream.message().await?;
        Ok(message.map(|message| ConsoleChunk {
            dropped: message.dropped,
            output: message.output,
        }))
    }
}

pub(crate) async fn attach(
    service: &mut ConsoleServiceClient<Connection>,
    vm: &str,
) -> Result<(ConsoleInput, ConsoleOutput), ClientError> {
    let (requests, queue) = mpsc::channel(INPUT_QUEUE);
    let first = AttachConsoleRequest {
        vm: vm.to_owned(),
        input: Vec::new(),
    };
    // The queue is new and has room; it can't be closed while `queue` lives.
    let _ = requests.send(first).await;
    let stream = service
        .attach_console(ReceiverStream::new(queue))
        .await?
        .into_inner();
    Ok((ConsoleInput { requests }, ConsoleOutput { stream }))
}
