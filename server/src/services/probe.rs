//! `ProbeService`: probes by the batch.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::probe_service_server::ProbeService;
use vmprobe_proto::v1::{
    ArmProbesRequest, ArmProbesResponse, EnableProbesRequest, EnableProbesResponse,
    ListBlacklistRequest, ListBlacklistResponse, ListCallsRequest, ListCallsResponse,
    ListProbesRequest, ListProbesResponse, OptimizeProbesRequest, OptimizeProbesResponse,
    RegisterProbesRequest, RegisterProbesResponse, SetOptimizationRequest, SetOptimizationResponse,
    UnregisterProbesRequest, UnregisterProbesResponse, WaitProbesRequest, WaitProbesResponse,
};

use crate::blocking::blocking;
use crate::machine::{BlacklistReader, Chosen};
use crate::machines::Machines;

/// Messages on their way to a client beside those that gRPC holds.
const AHEAD: usize = 2;

/// The service.
#[derive(Debug)]
pub struct Probes(pub Arc<Machines>);

#[async_trait]
impl ProbeService for Probes {
    type ListBlacklistStream = ReceiverStream<Result<ListBlacklistResponse, Status>>;

    async fn register_probes(
        &self,
        request: Request<RegisterProbesRequest>,
    ) -> Result<Response<RegisterProbesResponse>, Status> {
        let RegisterProbesRequest { vm, probes } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let changed = blocking(move || machine.register(&probes)).await?;
        Ok(Response::new(RegisterProbesResponse {
            stopped_ns: changed.stopped_ns(),
            probes: changed.result,
        }))
    }

    async fn unregister_probes(
        &self,
        request: Request<UnregisterProbesRequest>,
    ) -> Result<Response<UnregisterProbesResponse>, Status> {
        let UnregisterProbesRequest { vm, ids, names } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let chosen = Chosen { ids, names };
        let changed = blocking(move || machine.unregister(&chosen)).await?;
        Ok(Response::new(UnregisterProbesResponse {
            stopped_ns: changed.stopped_ns(),
            probes: changed.result,
        }))
    }

    async fn list_probes(
        &self,
        request: Request<ListProbesRequest>,
    ) -> Result<Response<ListProbesResponse>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        let described = blocking(move || Ok(machine.describe_probes())).await?;
        Ok(Response::new(described))
    }

    async fn enable_probes(
        &self,
        request: Request<EnableProbesRequest>,
    ) -> Result<Response<EnableProbesResponse>, Status> {
        let EnableProbesRequest {
            vm,
            ids,
            names,
            disable,
        } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let chosen = Chosen { ids, names };
        let changed = blocking(move || machine.enable(&chosen, !disable)).await?;
        Ok(Response::new(EnableProbesResponse {
            stopped_ns: changed.stopped_ns(),
            probes: changed.result,
        }))
    }

    async fn arm_probes(
        &self,
        request: Request<ArmProbesRequest>,
    ) -> Result<Response<ArmProbesResponse>, Status> {
        let ArmProbesRequest { vm, disarm } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let changed = blocking(move || machine.arm_all(!disarm)).await?;
        Ok(Response::new(ArmProbesResponse {
            stopped_ns: changed.stopped_ns(),
        }))
    }

    async fn optimize_probes(
        &self,
        request: Request<OptimizeProbesRequest>,
    ) -> Result<Response<OptimizeProbesResponse>, Status> {
        let OptimizeProbesRequest {
            vm,
            ids,
            names,
            off,
        } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let chosen = Chosen { ids, names };
        let changed = blocking(move || machine.optimize(&chosen, !off)).await?;
        Ok(Response::new(OptimizeProbesResponse {
            stopped_ns: changed.stopped_ns(),
            probes: changed.result,
        }))
    }

    async fn set_optimization(
        &self,
        request: Request<SetOptimizationRequest>,
    ) -> Result<Response<SetOptimizationResponse>, Status> {
        let SetOptimizationRequest { vm, off } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let changed = blocking(move || machine.set_optimizing(!off)).await?;
        Ok(Response::new(SetOptimizationResponse {
            stopped_ns: changed.stopped_ns(),
        }))
    }

    async fn wait_probes(
        &self,
        request: Request<WaitProbesRequest>,
    ) -> Result<Response<WaitProbesResponse>, Status> {
        let WaitProbesRequest { vm, ids, names } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let probes = machine.wait_probes(&Chosen { ids, names }).await?;
        Ok(Response::new(WaitProbesResponse {
            probes,
            optimizer: machine.describe().optimizer,
        }))
    }

    async fn list_calls(
        &self,
        request: Request<ListCallsRequest>,
    ) -> Result<Response<ListCallsResponse>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        let calls = blocking(move || machine.list_calls()).await?;
        Ok(Response::new(ListCallsResponse { calls }))
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

/// Sends all entries, a bounded stretch of work for each message.
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
                // Whoever has gone needs no answer.
                let _ = to.send(Err(status)).await;
                return;
            }
        };
        if to.send(message).await.is_err() {
            return;
        }
    }
}
