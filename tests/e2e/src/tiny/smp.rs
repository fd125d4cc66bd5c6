//! As many vCPUs as a guest can have, started as a PC's are, all in a probe.

use std::collections::BTreeMap;

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, cr3, dword_ptr, eax, ecx, ptr, qword_ptr, rax, rbx, rcx, rdi, rsi,
    rsp,
};
use vmprobe_client::spec;
use vmprobe_client::v1::CreateVmRequest;

use super::image::{self, DATA, UPPER_HALF};
use super::vm::{Tiny, VM};
use crate::context::Context;
use crate::events;
use crate::test::{Needs, Test, TestResult, check_eq, pass_with, wrong};

pub const ALL: Test = Test {
    name: "tiny_64_vcpus_all_hit_a_probe",
    ids: &["VM11"],
    needs: Needs::Tiny,
    run: all,
};

const VCPUS: u32 = 64;
/// Calls that each vCPU makes.
const CALLS: u64 = 10;

/// Where the code is copied with which the other vCPUs begin, in real mode: page 8 (SDM vol. 3, 11.6.1, the vector of a
/// SIPI).
const START: u64 = 0x8000;
/// From real mode into 64-bit mode (SDM vol. 3, 10.8.5), with the table of segments that the monitor has left at 0x500.
#[rustfmt::skip]
const TO_64_BIT: [u8; 0x46] = [
    0x8c, 0xc8,                         // mov ax, cs
    0x8e, 0xd8,                         // mov ds, ax
    0x66, 0x0f, 0x01, 0x16, 0x3c, 0x00, // lgdt [0x3c]
    0x0f, 0x20, 0xe0,                   // mov eax, cr4
    0x66, 0x83, 0xc8, 0x20,             // or eax, 0x20: PAE
    0x0f, 0x22, 0xe0,                   // mov cr4, eax
    0x66, 0xa1, 0x42, 0x00,             // mov eax, [0x42]
    0x0f, 0x22, 0xd8,                   // mov cr3, eax
    0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0, // mov ecx, 0xc0000080: EFER
    0x0f, 0x32,                         // rdmsr
    0x80, 0xcc, 0x01,                   // or ah, 1: LME
    0x0f, 0x30,                         // wrmsr
    0x0f, 0x20, 0xc0,                   // mov eax, cr0
    0x66, 0x0d, 0x01, 0x00, 0x00, 0x80, // or eax, 0x80000001: PG, PE
    0x0f, 0x22, 0xc0,                   // mov cr0, eax
    0x66, 0xea, 0, 0, 0, 0, 0x10, 0x00, // jmp 0x10:entry
    0x37, 0x00, 0x00, 0x05, 0x00, 0x00, // 0x3c: limit and address of the table of segments
    0, 0, 0, 0,                         // 0x42: CR3
];
/// The offsets of the entry and of CR3 in it.
const ENTRY_AT: u64 = 0x36;
const CR3_AT: u64 = 0x42;

/// The local APIC's interrupt command register (SDM vol. 3, 11.6.1): INIT, and SIPI with page 8, to all others.
const ICR: u64 = 0xfee0_0300;
const INIT: i32 = 0xc_4500;
const SIPI: i32 = 0xc_4608;

/// How many vCPUs have begun, and how many have ended; their stacks.
const BEGUN: u64 = DATA;
const ENDED: u64 = DATA + 8;
const STACKS: u64 = DATA + 0x1000;

fn all(cx: &Context) -> TestResult {
    let kernel = image::build(|a, names| {
        let (mut code, mut entry) = (a.create_label(), a.create_label());
        let mut work = a.create_label();
        start_others(a, code, entry)?;
        a.call(work)?;
        let mut again = a.create_label();
        a.mov(rbx, ENDED)?;
        a.set_label(&mut again)?;
        a.pause()?;
        a.cmp(qword_ptr(rbx), VCPUS as i32 - 1)?;
        a.jne(again)?;
        image::power_off(a)?;
        a.set_label(&mut entry)?;
        other(a, work)?;
        a.set_label(&mut work)?;
        let (mut round, mut probed) = (a.create_label(), a.create_label());
        a.mov(ecx, CALLS as u32)?;
        a.set_label(&mut round)?;
        a.call(probed)?;
        a.dec(ecx)?;
        a.jnz(round)?;
        a.ret()?;
        a.set_label(&mut probed)?;
        a.nop()?;
        names.here(a, "probed")?;
        a.inc(rax)?;
        a.ret()?;
        a.set_label(&mut code)?;
        a.db(&TO_64_BIT)
    })?;
    cx.block_on(async {
        let change = |request: &mut CreateVmRequest| request.vcpus = VCPUS;
        let guest = Tiny::with(cx, &kernel, change).await?;
        let probe = spec::parse("p:all probed").map_err(|error| wrong!("{error}"))?;
        let probes = guest.client.register_probes(VM, vec![probe]).await?;
        let mut stream = guest.client.events(VM, vec![probes[0].id]).await?;
        guest.start().await?;
        guest.power_off().await?;
        let mut hits = BTreeMap::new();
        for event in events::all(&mut stream).await? {
            *hits.entry(event.vcpu).or_insert(0) += 1;
        }
        let expected: BTreeMap<u32, u64> = (0..VCPUS).map(|vcpu| (vcpu, CALLS)).collect();
        check_eq!(hits, expected, "hits of each vCPU");
        pass_with(format!("{VCPUS} vCPUs, {CALLS} hits each"))
    })
}

/// Copies the code into its place and starts all other vCPUs.
fn start_others(a: &mut CodeAssembler, code: CodeLabel, entry: CodeLabel) -> Result<(), IcedError> {
    a.lea(rsi, ptr(code))?;
    a.mov(rdi, START)?;
    a.mov(ecx, TO_64_BIT.len() as u32)?;
    a.rep().movsb()?;
    a.mov(rdi, START)?;
    a.lea(rax, ptr(entry))?;
    // An address in the upper half of a place below 2 GiB: its lower 32 bits are the physical address with bit 31 set.
    a.and(eax, 0x7fff_ffff)?;
    a.mov(dword_ptr(rdi + ENTRY_AT), eax)?;
    a.mov(rax, cr3)?;
    a.mov(dword_ptr(rdi + CR3_AT), eax)?;
    a.mov(rdi, ICR)?;
    a.mov(dword_ptr(rdi), INIT)?;
    a.mov(dword_ptr(rdi), SIPI)
}

/// What another vCPU does, from its first instruction in 64-bit mode on.
fn other(a: &mut CodeAssembler, work: CodeLabel) -> Result<(), IcedError> {
    let mut there = a.create_label();
    a.lea(rax, ptr(there))?;
    a.mov(rbx, UPPER_HALF)?;
    a.add(rax, rbx)?;
    a.jmp(rax)?;
    a.set_label(&mut there)?;
    a.mov(rbx, BEGUN)?;
    a.mov(ecx, 1)?;
    a.lock().xadd(qword_ptr(rbx), rcx)?;
    a.inc(rcx)?;
    a.shl(rcx, 8)?;
    a.mov(rsp, STACKS)?;
    a.add(rsp, rcx)?;
    a.call(work)?;
    a.mov(rbx, ENDED)?;
    a.lock().inc(qword_ptr(rbx))?;
    let mut still = a.create_label();
    a.set_label(&mut still)?;
    a.hlt()?;
    a.jmp(still)
}
