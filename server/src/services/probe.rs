//! `ProbeService`: probes by the batch.

use std::sync::Arc;

use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::probe_service_server::ProbeService;
use vmprobe_proto::v1::{
    ListProbesRequest, ListProbesResponse, RegisterProbesRequest, RegisterProbesResponse,
    UnregisterProbesRequest, UnregisterProbesResponse,
};

use super::blocking;
use crate::machines::Machines;

/// The service.
#[derive(Debug)]
pub struct Probes(pub Arc<Machines>);

#[async_trait]
impl ProbeService for Probes {
    async fn register_probes(
        &self,
        request: Request<RegisterProbesRequest>,
    ) -> Result<Response<RegisterProbesResponse>, Status> {
        let RegisterProbesRequest { vm, probes } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let probes = blocking(move || machine.register(&probes)).await?;
        Ok(Response::new(RegisterProbesResponse { probes }))
    }

    async fn unregister_probes(
        &self,
        request: Request<UnregisterProbesRequest>,
    ) -> Result<Response<UnregisterProbesResponse>, Status> {
        let UnregisterProbesRequest { vm, ids, names } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let probes = blocking(move || machine.unregister(&ids, &names)).await?;
        Ok(Response::new(UnregisterProbesResponse { probes }))
    }

    async fn list_probes(
        &self,
        request: Request<ListProbesRequest>,
    ) -> Result<Response<ListProbesResponse>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        let probes = blocking(move || Ok(machine.list_probes())).await?;
        Ok(Response::new(ListProbesResponse { probes }))
    }
}
