//! Guest memory from 64 MiB to many GiB, and a stopped vCPU's registers.

use iced_x86::code_asm::{al, dx, ptr, r8, r9, r10, r15, rax, rbp, rbx, rcx, rdi, rsi};

use super::image::{self, COM1, TEXT};
use super::vm::{Tiny, VM, number};
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass, pass_with};

pub const SMALL: Test = Test {
    name: "tiny_64_mib_of_memory_work_to_their_end",
    ids: &[],
    needs: Needs::Tiny,
    run: |cx| size(cx, 64, (64 << 20) - 8),
};

/// The last 8 bytes below the device hole: the boot page tables reach no further than 4 GiB.
pub const LARGE: Test = Test {
    name: "tiny_64_gib_of_memory_are_not_touched_before_use",
    ids: &[],
    needs: Needs::Tiny,
    run: |cx| size(cx, 64 << 10, 0xc000_0000 - 8),
};

pub const REGISTERS: Test = Test {
    name: "tiny_registers_of_a_running_vcpu_are_read_at_a_stop",
    ids: &["SV01"],
    needs: Needs::Tiny,
    run: registers,
};

/// The most that a server with one idle guest may hold, in KiB.
const RSS_LIMIT: u64 = 128 << 10;

fn size(cx: &Context, memory_mib: u64, last: u64) -> TestResult {
    const VALUE: u64 = 0x1122_3344_5566_7788;
    let kernel = image::build(|a, _| {
        a.mov(rdi, last)?;
        a.mov(rax, VALUE)?;
        a.mov(ptr(rdi), rax)?;
        a.mov(rax, ptr(rdi))?;
        image::send_rax(a)?;
        image::power_off(a)
    })?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, memory_mib).await?;
        guest.start().await?;
        check_eq!(
            number(&guest.console.bytes(8).await?),
            VALUE,
            "what the guest read back"
        );
        guest.power_off().await?;
        let rss = guest.server.vm_process(VM)?.status("VmRSS")?;
        check!(
            rss < RSS_LIMIT,
            "the server holds {rss} KiB for a guest that used one page"
        );
        pass_with(format!("server's memory {} MiB", rss >> 10))
    })
}

fn registers(cx: &Context) -> TestResult {
    let kernel = image::build(|a, names| {
        a.mov(dx, u32::from(COM1))?;
        a.mov(al, u32::from(b'!'))?;
        a.out(dx, al)?;
        a.mov(rax, 0x1111_u64)?;
        a.mov(rbx, 0x2222_2222_2222_u64)?;
        a.mov(rcx, u64::MAX)?;
        a.mov(rsi, 0x8000_0000_0000_0000_u64)?;
        a.mov(rdi, 5_u64)?;
        a.mov(rbp, 6_u64)?;
        a.mov(r8, 8_u64)?;
        a.mov(r9, 9_u64)?;
        a.mov(r10, 10_u64)?;
        a.mov(r15, 15_u64)?;
        let mut again = a.create_label();
        names.here(a, "spin")?;
        a.nop()?;
        a.set_label(&mut again)?;
        a.jmp(again)
    })?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        guest.start().await?;
        check_eq!(guest.console.bytes(1).await?, b"!", "the sign of life");
        let (symbols, _) = guest.client.lookup_symbols(VM, "spin", 0).await?;
        let spin = symbols.first().map_or(0, |symbol| symbol.address) + 1;
        // The guest may not have got there yet.
        let r = loop {
            let registers = guest.client.read_registers(VM, 0).await?;
            if registers.rip == spin {
                break registers;
            }
        };
        let found = [
            r.rax, r.rbx, r.rcx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r15, r.rsp,
        ];
        let expected = [
            0x1111,
            0x2222_2222_2222,
            u64::MAX,
            0x8000_0000_0000_0000,
            5,
            6,
            8,
            9,
            10,
            15,
            TEXT,
        ];
        check_eq!(found, expected, "rax rbx rcx rsi rdi rbp r8 r9 r10 r15 rsp");
        guest.client.kill_vm(VM).await?;
        pass()
    })
}
