//! The thread of a vCPU.

use std::panic::{AssertUnwindSafe, catch_unwind};

use guest_state::{TrapHandler, VcpuError};
use parking_lot::Mutex;

use super::{kick::Kickable, kvm_vcpu::KvmVcpu, run::LeaveReason, shared::Shared};
use crate::ending::Ending;

/// Runs vCPU `index`, whose state is in `cell`, on the calling thread until the guest
/// ends. The vCPU is in guest mode whenever the gate lets it in.
pub(crate) fn run_thread(
    index: usize,
    cell: &Mutex<KvmVcpu>,
    shared: &Shared,
    handler: &dyn TrapHandler,
) {
    let outcome = catch_unwind(AssertUnwindSafe(|| -> Result<(), VcpuError> {
        // Not kept locked: a stopped vCPU is for others to look at.
        let _kickable = Kickable::new(&shared.kicks, index, &mut cell.lock().fd);
        let mut left = LeaveReason::Stopped;
        loop {
            let alone = if let LeaveReason::ToStepAlone(asked) = left {
                let Some(hold) = shared.gate.enter_alone(index) else {
                    return Ok(());
                };
                Some((hold, asked))
            } else if shared.gate.enter(index) {
                None
            } else {
                return Ok(());
            };
            let result = cell.lock().run(shared, handler, alone);
            shared.gate.leave(index);
            left = result?;
        }
    }));
    let failure = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the thread of vCPU {index} panicked: a bug of the monitor"),
    };
    shared.end.end(Ending::Failed { reason: failure });
    shared.gate.leave(index);
}
