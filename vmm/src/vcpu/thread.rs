//! The thread of a vCPU.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use guest_state::{TrapHandler, VcpuError, VcpuId};
use parking_lot::Mutex;

use super::{
    kick::Kickable,
    kvm_vcpu::KvmVcpu,
    run::{Begin, LeaveReason},
    shared::Shared,
};
use crate::{ending::Ending, gate::Entry};

/// A vCPU tells the guest of its stop when it was out of guest mode for this time: half the least time after which
/// Linux takes a CPU for hung (`watchdog_thresh=1`; `get_softlockup_thresh` in kernel/watchdog.c). A shorter stop
/// isn't told, so as not to change what the guest's watchdogs see.
const LONG_STOP: Duration = Duration::from_secs(1);

/// Runs vCPU `index`, whose state is in `cell`, on the calling thread until the guest
/// ends. The vCPU is in guest mode whenever the gate lets it in.
pub(crate) fn run_thread(
    index: usize,
    cell: &Mutex<KvmVcpu>,
    shared: &Shared,
    handler: &dyn TrapHandler,
) {
    end_on_failure(index, shared, || {
        // The lock isn't kept: other threads read a vCPU that is stopped.
        let _kickable = Kickable::new(&shared.kicks, index, &mut cell.lock().fd);
        let mut left = LeaveReason::Stopped;
        loop {
            let since = Instant::now();
            let begin = match left {
                LeaveReason::ToStepAlone(asked) => {
                    let hold = shared.gate.enter_alone(index);
                    hold.map(|hold| Begin::Alone(hold, asked))
                }
                LeaveReason::Held => {
                    let until = || handler.held_until(VcpuId(index as u32));
                    let entered = shared.gate.enter_when_released(index, until);
                    entered.then_some(Begin::Released)
                }
                LeaveReason::Stopped => shared.gate.enter(index).map(|entry| match entry {
                    Entry::Run => Begin::Run,
                    Entry::Step => Begin::StepWanted,
                }),
            };
            let Some(begin) = begin else {
                return Ok(());
            };
            let mut vcpu = cell.lock();
            if since.elapsed() >= LONG_STOP {
                vcpu.tell_of_stop();
            }
            let result = vcpu.run(shared, handler, begin);
            drop(vcpu);
            shared.gate.leave(index);
            left = result?;
        }
    });
    // The timer is deleted on this thread: the threads that may drop the vCPU last aren't allowed the call for it.
    cell.lock().step_timer = None;
}

/// Runs vCPU `index`, the only one of its guest that runs, on the calling thread until it is paused by its own trap
/// handler, or the guest has ended. The handler answers with neither a hold nor a step.
pub(crate) fn run_until_paused(
    index: usize,
    cell: &Mutex<KvmVcpu>,
    shared: &Shared,
    handler: &dyn TrapHandler,
) {
    end_on_failure(index, shared, || {
        let _kickable = Kickable::new(&shared.kicks, index, &mut cell.lock().fd);
        while !shared.gate.is_paused() && shared.gate.enter(index).is_some() {
            let result = cell.lock().run(shared, handler, Begin::Run);
            shared.gate.leave(index);
            result?;
        }
        Ok(())
    });
}

/// Ends the guest if running a vCPU of it fails or panics.
fn end_on_failure(index: usize, shared: &Shared, run: impl FnOnce() -> Result<(), VcpuError>) {
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the thread of vCPU {index} panicked: a bug of the monitor"),
    };
    shared.end.end(Ending::Failed { reason: failure });
    shared.gate.leave(index);
}
