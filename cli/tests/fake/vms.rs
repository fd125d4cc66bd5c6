//! VMs.

use super::*;

#[tonic::async_trait]
impl VmService for Fake {
    type DumpVmStream = Answers<DumpVmResponse>;

    /// Sends a page at the start of the file, and one behind a hole.
    async fn dump_vm(&self, _: Request<DumpVmRequest>) -> Answer<Self::DumpVmStream> {
        let part = |offset, byte| {
            Ok(DumpVmResponse {
                size: 3 * 4096,
                offset,
                data: vec![byte; 4096],
            })
        };
        let parts = tokio_stream::iter([part(0, 1), part(2 * 4096, 2)]);
        Ok(Response::new(Box::pin(parts)))
    }

    async fn create_vm(&self, request: Request<CreateVmRequest>) -> Answer<CreateVmResponse> {
        let request = request.into_inner();
        let mut state = self.called("create");
        let probes = state.register(&request.probes)?;
        let mut vm = Vm {
            name: request.name,
            kernel: request.kernel,
            kernel_version: "6.1.0-fake (builder@host)".into(),
            ..Default::default()
        };
        vm.set_state(VmState::Created);
        state.vm = Some(vm.clone());
        Ok(Response::new(CreateVmResponse {
            vm: Some(vm),
            probes,
        }))
    }

    async fn start_vm(&self, _: Request<StartVmRequest>) -> Answer<StartVmResponse> {
        let vm = self.set_vm_state(VmState::Running, "start");
        Ok(Response::new(StartVmResponse { vm }))
    }

    async fn get_vm(&self, _: Request<GetVmRequest>) -> Answer<GetVmResponse> {
        let vm = self.state().vm.clone();
        Ok(Response::new(GetVmResponse { vm }))
    }

    async fn get_vm_stats(&self, _: Request<GetVmStatsRequest>) -> Answer<GetVmStatsResponse> {
        let vm = self.state().vm.clone();
        Ok(Response::new(GetVmStatsResponse {
            vm,
            ..Default::default()
        }))
    }

    async fn list_vms(&self, _: Request<ListVmsRequest>) -> Answer<ListVmsResponse> {
        let vms = self.state().vm.iter().cloned().collect();
        Ok(Response::new(ListVmsResponse {
            vms,
            ..Default::default()
        }))
    }

    async fn pause_vm(&self, _: Request<PauseVmRequest>) -> Answer<PauseVmResponse> {
        let vm = self.set_vm_state(VmState::Paused, "pause");
        Ok(Response::new(PauseVmResponse { vm }))
    }

    async fn resume_vm(&self, _: Request<ResumeVmRequest>) -> Answer<ResumeVmResponse> {
        let vm = self.set_vm_state(VmState::Running, "resume");
        Ok(Response::new(ResumeVmResponse { vm }))
    }

    async fn kill_vm(&self, _: Request<KillVmRequest>) -> Answer<KillVmResponse> {
        let mut ending = Ending::default();
        ending.set_kind(EndingKind::Killed);
        ending.exit_code = 6;
        self.state().ending = Some(ending.clone());
        if let Some(vm) = &mut self.state().vm {
            vm.ending = Some(ending);
        }
        let vm = self.set_vm_state(VmState::Ended, "kill");
        Ok(Response::new(KillVmResponse { vm }))
    }

    async fn wait_vm(&self, _: Request<WaitVmRequest>) -> Answer<WaitVmResponse> {
        let mut ending = Ending::default();
        ending.set_kind(EndingKind::Panic);
        ending.exit_code = 4;
        drop(self.called("wait"));
        Ok(Response::new(WaitVmResponse {
            ending: Some(ending),
        }))
    }

    async fn delete_vm(&self, _: Request<DeleteVmRequest>) -> Answer<DeleteVmResponse> {
        Ok(Response::new(DeleteVmResponse {}))
    }

    async fn read_registers(
        &self,
        _: Request<ReadRegistersRequest>,
    ) -> Answer<ReadRegistersResponse> {
        Ok(Response::new(ReadRegistersResponse::default()))
    }

    async fn read_memory(&self, _: Request<ReadMemoryRequest>) -> Answer<ReadMemoryResponse> {
        Ok(Response::new(ReadMemoryResponse::default()))
    }

    async fn read_stack(&self, _: Request<ReadStackRequest>) -> Answer<ReadStackResponse> {
        Ok(Response::new(ReadStackResponse::default()))
    }
}
