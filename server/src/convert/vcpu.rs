//! The registers of a vCPU, for debuggers.

use guest_state::{ControlRegisters, Registers};
use probe_engine::engine::VcpuStack;
use vmm::{FpuRegisters, SegmentRegisters};
use vmprobe_proto::v1;

use super::event::registers;

/// Returns the protocol's form of a vCPU's registers.
pub fn vcpu_state(
    general: &Registers,
    control: &ControlRegisters,
    segments: &SegmentRegisters,
    fpu: &FpuRegisters,
) -> v1::VcpuState {
    v1::VcpuState {
        registers: Some(registers(general)),
        cs: segments.cs.into(),
        ss: segments.ss.into(),
        ds: segments.ds.into(),
        es: segments.es.into(),
        fs: segments.fs.into(),
        gs: segments.gs.into(),
        fs_base: control.fs_base,
        gs_base: control.gs_base,
        kernel_gs_base: segments.kernel_gs_base,
        cr0: control.cr0,
        cr2: control.cr2,
        cr3: control.cr3,
        cr4: control.cr4,
        cr8: segments.cr8,
        efer: control.efer,
        fpu: Some(fpu_state(fpu)),
    }
}

fn fpu_state(fpu: &FpuRegisters) -> v1::FpuState {
    v1::FpuState {
        st: fpu.st.concat(),
        control: fpu.control.into(),
        status: fpu.status.into(),
        tags: fpu.tags.into(),
        opcode: fpu.opcode.into(),
        instruction: fpu.instruction,
        operand: fpu.operand,
        xmm: fpu.xmm.concat(),
        mxcsr: fpu.mxcsr,
    }
}

/// Returns the protocol's form of where a vCPU stands.
pub fn vcpu_stack(found: &VcpuStack) -> v1::ReadStackResponse {
    let task = found.task.as_ref();
    v1::ReadStackResponse {
        addresses: found.stack.addresses.to_vec(),
        is_cut: found.stack.is_cut,
        pid: task.map(|task| task.pid),
        comm: task.map(|task| String::from_utf8_lossy(task.name()).into_owned()),
    }
}

/// Returns general registers from the protocol's form.
pub fn general(registers: &v1::Registers) -> Registers {
    let r = registers;
    Registers {
        rax: r.rax,
        rbx: r.rbx,
        rcx: r.rcx,
        rdx: r.rdx,
        rsi: r.rsi,
        rdi: r.rdi,
        rsp: r.rsp,
        rbp: r.rbp,
        r8: r.r8,
        r9: r.r9,
        r10: r.r10,
        r11: r.r11,
        r12: r.r12,
        r13: r.r13,
        r14: r.r14,
        r15: r.r15,
        rip: r.rip,
        rflags: r.rflags,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn general_registers_come_back_as_they_were() {
        let asked = v1::Registers {
            rax: 1,
            rbx: 2,
            rcx: 3,
            rdx: 4,
            rsi: 5,
            rdi: 6,
            rsp: 7,
            rbp: 8,
            r8: 9,
            r9: 10,
            r10: 11,
            r11: 12,
            r12: 13,
            r13: 14,
            r14: 15,
            r15: 16,
            rip: 17,
            rflags: 18,
        };
        assert_eq!(registers(&general(&asked)), asked);
    }
}
