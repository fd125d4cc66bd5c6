//! `ProbeService`: probes by the batch.

use std::sync::Arc;
use std::vec::IntoIter;

use tokio::sync::mpsc;
use tokio_stream::Iter;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::probe_service_server::ProbeService;
use vmprobe_proto::v1::{
    ListBlacklistRequest, ListBlacklistResponse, ListCallsRequest, ListCallsResponse,
    ListProbesRequest, ListProbesResponse, RegisterProbesRequest, RegisterProbesResponse,
    UnregisterProbesRequest, UnregisterProbesResponse, UpdateProbesRequest, UpdateProbesResponse,
    WaitProbesRequest, WaitProbesResponse,
};

use crate::blocking::blocking;
use crate::machine::BlacklistReader;
use crate::one_vm::OneVm;
use crate::page::Page;
use crate::{limits, status};

/// Messages on their way to a client, besides those that gRPC holds.
const AHEAD: usize = 2;

/// The service.
#[derive(Debug)]
pub struct Probes(pub Arc<OneVm>);

#[async_trait]
impl ProbeService for Probes {
    type ListCallsStream = Iter<IntoIter<Result<ListCallsResponse, Status>>>;
    type ListBlacklistStream = ReceiverStream<Result<ListBlacklistResponse, Status>>;

    async fn register_probes(
        &self,
        request: Request<RegisterProbesRequest>,
    ) -> Result<Response<RegisterProbesResponse>, Status> {
        let RegisterProbesRequest {
            vm,
            probes,
            session,
        } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let changed = blocking(move || machine.register(&probes, &session)).await?;
        Ok(Response::new(RegisterProbesResponse {
            stopped_ns: changed.stopped_ns(),
            probes: changed.result,
        }))
    }

    async fn unregister_probes(
        &self,
        request: Request<UnregisterProbesRequest>,
    ) -> Result<Response<UnregisterProbesResponse>, Status> {
        let UnregisterProbesRequest { vm, selector } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let missing = || status::invalid("selector", "the probes to remove are missing");
        let selector = selector.ok_or_else(missing)?;
        let changed = blocking(move || machine.unregister(&selector)).await?;
        Ok(Response::new(UnregisterProbesResponse {
            stopped_ns: changed.stopped_ns(),
            probes: changed.result,
        }))
    }

    async fn list_probes(
        &self,
        request: Request<ListProbesRequest>,
    ) -> Result<Response<ListProbesResponse>, Status> {
        let ListProbesRequest {
            vm,
            page_size,
            page_token,
        } = request.into_inner();
        let page = Page::asked(page_size, &page_token, ("probes", &vm))?;
        let machine = self.0.get(&vm)?;
        let listed = blocking(move || Ok(machine.list_page(&page))).await?;
        Ok(Response::new(listed))
    }

    async fn update_probes(
        &self,
        request: Request<UpdateProbesRequest>,
    ) -> Result<Response<UpdateProbesResponse>, Status> {
        let request = request.into_inner();
        let machine = self.0.get(&request.vm)?;
        let changed = blocking(move || machine.update(&request)).await?;
        Ok(Response::new(UpdateProbesResponse {
            stopped_ns: changed.stopped_ns(),
            probes: changed.result,
        }))
    }

    async fn wait_probes(
        &self,
        request: Request<WaitProbesRequest>,
    ) -> Result<Response<WaitProbesResponse>, Status> {
        let WaitProbesRequest { vm, selector } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let probes = machine.wait_probes(&selector.unwrap_or_default()).await?;
        Ok(Response::new(WaitProbesResponse {
            probes,
            optimizer: machine.describe().optimizer,
        }))
    }

    async fn list_calls(
        &self,
        request: Request<ListCallsRequest>,
    ) -> Result<Response<Self::ListCallsStream>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        let calls = blocking(move || machine.list_calls()).await?;
        let chunks = calls.chunks(limits::CALLS_CHUNK);
        let answers = chunks.map(|calls| {
            let calls = calls.to_vec();
            Ok(ListCallsResponse { calls })
        });
        let answers: Vec<_> = answers.collect();
        Ok(Response::new(tokio_stream::iter(answers)))
    }

    async fn list_blacklist(
        &self,
        request: Request<ListBlacklistRequest>,
    ) -> Result<Response<Self::ListBlacklistStream>, Status> {
        let ListBlacklistRequest { vm, pattern } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let reader = blocking(move || BlacklistReader::new(machine, &pattern)).await?;
        let (sender, stream) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            tokio::select! {
                () = send(reader, &sender) => {}
                () = sender.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Sends all entries, with a bounded amount of work for each message.
async fn send(
    mut reader: BlacklistReader,
    to: &mpsc::Sender<Result<ListBlacklistResponse, Status>>,
) {
    loop {
        let read = blocking(move || {
            let entries = reader.next();
            Ok((reader, entries))
        });
        let message = match read.await {
            Ok((_, None)) => return,
            Ok((rest, Some(entries))) => {
                reader = rest;
                if entries.is_empty() {
                    continue;
                }
                Ok(ListBlacklistResponse { entries })
            }
            Err(status) => {
                // If the client has gone, it needs no answer.
                let _ = to.send(Err(status)).await;
                return;
            }
        };
        if to.send(message).await.is_err() {
            return;
        }
    }
}
