//! `VmService`: the life cycle of the VM of this process.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::vm_service_server::VmService;
use vmprobe_proto::v1::{
    CreateVmRequest, CreateVmResponse, DeleteVmRequest, DeleteVmResponse, DumpVmRequest,
    DumpVmResponse, GetVmRequest, GetVmResponse, GetVmStatsRequest, GetVmStatsResponse,
    KillVmRequest, KillVmResponse, ListVmsRequest, ListVmsResponse, PauseVmRequest,
    PauseVmResponse, ReadMemoryRequest, ReadMemoryResponse, ReadRegistersRequest,
    ReadRegistersResponse, ReadStackRequest, ReadStackResponse, ResumeVmRequest, ResumeVmResponse,
    StartVmRequest, StartVmResponse, WaitVmRequest, WaitVmResponse,
};

use crate::blocking::blocking;
use crate::machine::Machine;
use crate::one_vm::OneVm;
use crate::{limits, status};

/// The service.
#[derive(Debug)]
pub struct Vms(pub Arc<OneVm>);

impl Vms {
    /// Does something to a VM on a thread that may block, and returns the VM's description.
    async fn with(
        &self,
        vm: &str,
        act: impl FnOnce(&Arc<Machine>) -> Result<(), Status> + Send + 'static,
    ) -> Result<Arc<Machine>, Status> {
        let machine = self.0.get(vm)?;
        blocking(move || {
            act(&machine)?;
            Ok(machine)
        })
        .await
    }
}

/// Parts of a dump on their way to a client, besides those that gRPC holds.
const PARTS_AHEAD: usize = 4;

#[async_trait]
impl VmService for Vms {
    type DumpVmStream = ReceiverStream<Result<DumpVmResponse, Status>>;

    async fn dump_vm(
        &self,
        request: Request<DumpVmRequest>,
    ) -> Result<Response<Self::DumpVmStream>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        let (sender, stream) = mpsc::channel(PARTS_AHEAD);
        // The dump has its own thread. It ends as soon as the client takes no more parts.
        tokio::spawn(blocking(move || {
            if let Err(why) = machine.dump(&sender) {
                let _whoever_has_gone_needs_no_reason = sender.blocking_send(Err(why));
            }
            Ok(())
        }));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn create_vm(
        &self,
        request: Request<CreateVmRequest>,
    ) -> Result<Response<CreateVmResponse>, Status> {
        let (vm, request) = (Arc::clone(&self.0), request.into_inner());
        let (machine, probes) = blocking(move || vm.create(request)).await?;
        tracing::info!(vm = machine.name(), "created");
        Ok(Response::new(CreateVmResponse {
            vm: Some(machine.describe()),
            probes,
        }))
    }

    async fn start_vm(
        &self,
        request: Request<StartVmRequest>,
    ) -> Result<Response<StartVmResponse>, Status> {
        let machine = self
            .with(&request.get_ref().vm, |machine| machine.start())
            .await?;
        Ok(Response::new(StartVmResponse {
            vm: Some(machine.describe()),
        }))
    }

    async fn get_vm(
        &self,
        request: Request<GetVmRequest>,
    ) -> Result<Response<GetVmResponse>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        Ok(Response::new(GetVmResponse {
            vm: Some(machine.describe()),
        }))
    }

    async fn get_vm_stats(
        &self,
        request: Request<GetVmStatsRequest>,
    ) -> Result<Response<GetVmStatsResponse>, Status> {
        let request = request.into_inner();
        let machine = self.0.get(&request.vm)?;
        let stats = blocking(move || Ok(machine.stats(&request))).await?;
        Ok(Response::new(stats))
    }

    async fn list_vms(
        &self,
        _: Request<ListVmsRequest>,
    ) -> Result<Response<ListVmsResponse>, Status> {
        let machines = self.0.machine().into_iter();
        Ok(Response::new(ListVmsResponse {
            vms: machines.map(|machine| machine.describe()).collect(),
            next_page_token: String::new(),
        }))
    }

    async fn pause_vm(
        &self,
        request: Request<PauseVmRequest>,
    ) -> Result<Response<PauseVmResponse>, Status> {
        let machine = self
            .with(&request.get_ref().vm, |machine| machine.pause())
            .await?;
        Ok(Response::new(PauseVmResponse {
            vm: Some(machine.describe()),
        }))
    }

    async fn resume_vm(
        &self,
        request: Request<ResumeVmRequest>,
    ) -> Result<Response<ResumeVmResponse>, Status> {
        let machine = self
            .with(&request.get_ref().vm, |machine| machine.resume())
            .await?;
        Ok(Response::new(ResumeVmResponse {
            vm: Some(machine.describe()),
        }))
    }

    async fn kill_vm(
        &self,
        request: Request<KillVmRequest>,
    ) -> Result<Response<KillVmResponse>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        machine.kill();
        machine.ended().await;
        Ok(Response::new(KillVmResponse {
            vm: Some(machine.describe()),
        }))
    }

    async fn wait_vm(
        &self,
        request: Request<WaitVmRequest>,
    ) -> Result<Response<WaitVmResponse>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        let ending = machine.ended().await;
        Ok(Response::new(WaitVmResponse {
            ending: Some(ending),
        }))
    }

    async fn delete_vm(
        &self,
        request: Request<DeleteVmRequest>,
    ) -> Result<Response<DeleteVmResponse>, Status> {
        let machine = self.0.get(&request.get_ref().vm)?;
        machine.kill();
        machine.ended().await;
        self.0.remove();
        Ok(Response::new(DeleteVmResponse {}))
    }

    async fn read_registers(
        &self,
        request: Request<ReadRegistersRequest>,
    ) -> Result<Response<ReadRegistersResponse>, Status> {
        let ReadRegistersRequest { vm, vcpu } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let registers = blocking(move || machine.read_registers(vcpu)).await?;
        Ok(Response::new(ReadRegistersResponse {
            registers: Some(registers),
        }))
    }

    async fn read_memory(
        &self,
        request: Request<ReadMemoryRequest>,
    ) -> Result<Response<ReadMemoryResponse>, Status> {
        let ReadMemoryRequest {
            vm,
            vcpu,
            address,
            length,
            as_is,
        } = request.into_inner();
        if length > limits::MEMORY_BYTES {
            let most = limits::MEMORY_BYTES;
            return Err(status::invalid(
                "length",
                format!("at most {most} bytes at a time"),
            ));
        }
        let machine = self.0.get(&vm)?;
        let data = blocking(move || machine.read_memory(vcpu, address, length, as_is)).await?;
        Ok(Response::new(ReadMemoryResponse { data }))
    }

    async fn read_stack(
        &self,
        request: Request<ReadStackRequest>,
    ) -> Result<Response<ReadStackResponse>, Status> {
        let ReadStackRequest { vm, vcpu, limit } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let stack = blocking(move || machine.read_stack(vcpu, limit)).await?;
        Ok(Response::new(stack))
    }
}
