//! `HostService`: what the host can do.

use tokio::sync::OnceCell;
use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::host_service_server::HostService;
use vmprobe_proto::v1::{GetHostRequest, GetHostResponse};

use crate::blocking::blocking;
use crate::doctor;

/// The service. Examines the host once, when first asked.
#[derive(Debug, Default)]
pub struct Host(OnceCell<GetHostResponse>);

#[async_trait]
impl HostService for Host {
    async fn get_host(
        &self,
        _: Request<GetHostRequest>,
    ) -> Result<Response<GetHostResponse>, Status> {
        let examine = || blocking(|| Ok(doctor::describe_host()));
        Ok(Response::new(
            self.0.get_or_try_init(examine).await?.clone(),
        ))
    }
}
