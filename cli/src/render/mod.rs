//! What the command line shows, as text and as JSON. Makes strings only; prints nothing.
//!
//! JSON gives addresses and registers as strings such as `"0xffffffff81000000"`, because readers of
//! JSON commonly hold numbers as doubles, which lose the low bits of a kernel address.

mod images;
mod json;
mod probe_list;
mod probes;
mod registers;
mod table;
mod text;

pub use images::{image_json, image_list};
pub use json::{
    blacklist_json, call_json, ending_json, probe_json, registers_json, symbol_json, vm_json,
};
pub use probe_list::probe_list;
pub use probes::{
    blacklist_line, call_list, jump as probe_jump, kernel_list, kind as probe_kind,
    state as probe_state,
};
pub use registers::RegisterText;
pub use table::table;
pub use text::{optimizer, registers, symbol_line, vm_details, vm_list};
pub use vmprobe_client::words::ending;

#[cfg(test)]
pub(crate) mod samples {
    use vmprobe_client::v1;

    pub fn probe() -> v1::Probe {
        v1::Probe {
            id: 7,
            name: "vfs_read+0x5".into(),
            address: 0xffff_ffff_812f_0c15,
            symbol: "vfs_read".into(),
            offset: 5,
            hits: 42,
            exits: 42,
            missed: 0,
            state: v1::ProbeState::Armed.into(),
            strategy: v1::Strategy::Emulate.into(),
            strategy_reason: "push of a register".into(),
            instruction: "push %rbp".into(),
            ..Default::default()
        }
    }

    pub fn with_optimization(
        state: v1::OptimizationState,
        kind: v1::NoJumpReason,
        reason: &str,
    ) -> v1::Probe {
        let mut optimization = v1::Optimization {
            reason_kind: kind.into(),
            reason: reason.into(),
            ..Default::default()
        };
        optimization.set_state(state);
        v1::Probe {
            optimization: Some(optimization),
            ..probe()
        }
    }

    pub fn event(tsc: u64) -> v1::Event {
        v1::Event {
            probe_id: 7,
            vcpu: 1,
            tsc,
            kind: v1::EventKind::Pre.into(),
            registers: Some(v1::Registers {
                rdi: 0xffff_8880_0123_4567,
                rsi: 0x7ffc_0000,
                rdx: 1,
                rip: 0xffff_ffff_812f_0c15,
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}
