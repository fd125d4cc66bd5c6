//! Control registers as the handler of a trap reads them.

use std::sync::{Arc, Mutex};

use guest_state::{Action, StoppedGuest};
use iced_x86::code_asm::{cr3, dword_ptr, eax, ecx, edx, ptr, rax, rbx};

use crate::{
    report::on_kvm,
    tiny::{DATA, catch_int3s, guest, power_off, put, word},
};

/// The MSR `IA32_GS_BASE`.
const GS_BASE: u32 = 0xc000_0101;
const BASES: [u32; 3] = [0x1234_5000, 0, 0x7fff_f000];
/// Another root of the page tables.
const ROOT: u64 = DATA + 0x1000;
/// Not 0 once the guest runs, and once it is to go on.
const RUNS: u64 = DATA;
const GO: u64 = DATA + 8;

#[test]
fn control_registers_at_an_int3_are_those_of_that_moment() {
    let name = "control_registers_at_an_int3_are_those_of_that_moment";
    let Some(_report) = on_kvm(name) else {
        return;
    };
    let tiny = guest(1, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.inc(dword_ptr(RUNS))?;
        a.cmp(dword_ptr(GO), 0)?;
        a.je(again)?;
        for base in BASES {
            a.mov(ecx, GS_BASE)?;
            a.mov(eax, base)?;
            a.xor(edx, edx)?;
            a.wrmsr()?;
            a.int3()?;
        }
        a.mov(rax, cr3)?;
        a.mov(rbx, ptr(rax))?;
        a.mov(rax, ROOT)?;
        a.mov(ptr(rax), rbx)?;
        a.mov(cr3, rax)?;
        a.int3()?;
        power_off(a)
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    tiny.start(move |hit| {
        let control = hit.vcpu.control().unwrap();
        told.lock().unwrap().push((control.gs_base, control.cr3));
        let behind = hit.rip() + 1;
        hit.go_to(behind);
        Action::Resume
    });
    // Int3s aren't asked for yet when the guest leaves guest mode for this.
    let runs = || tiny.vm.stopped(|guest| word(guest.memory(), RUNS) != 0);
    while !runs() {
        std::thread::yield_now();
    }
    let first = tiny.vm.stopped(|guest| {
        catch_int3s(guest);
        put(guest, GO, 1);
        guest.control(guest_state::VcpuId(0)).unwrap().cr3
    });
    assert_eq!(tiny.vm.wait(), vmm::Ending::PowerOff);
    let [first_base, second, third] = BASES.map(u64::from);
    let expected = [
        (first_base, first),
        (second, first),
        (third, first),
        (third, ROOT),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}
