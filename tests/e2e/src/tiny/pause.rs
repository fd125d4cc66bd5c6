//! Pausing in the middle of port I/O.

use iced_x86::code_asm::{al, dx, eax, ebx, ecx, ptr, qword_ptr, rsi};

use super::image::{self, COM1, DATA};
use super::vm::{Tiny, VM, number};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const PORTS: Test = Test {
    name: "tiny_pauses_lose_no_port_access_and_a_paused_guest_stands_still",
    ids: &["VM04"],
    needs: Needs::Tiny,
    run: ports,
};

/// Bytes that the guest sends; each is one `out` and one `in`.
const BYTES: u32 = 20_000;
/// A prime, so that a lost or doubled byte shifts all that follow.
const CYCLE: u32 = 251;

fn ports(cx: &Context) -> TestResult {
    // Counts in memory and sends the count's remainder. In between it reads the line status, whose
    // value must come from the port and not from an access that was lost.
    let kernel = image::build(|a, _| {
        let mut again = a.create_label();
        let mut wrong = a.create_label();
        let mut same = a.create_label();
        a.mov(rsi, DATA)?;
        a.xor(ecx, ecx)?;
        a.xor(ebx, ebx)?;
        a.set_label(&mut again)?;
        a.inc(qword_ptr(rsi))?;
        a.mov(dx, u32::from(COM1))?;
        a.mov(eax, ebx)?;
        a.out(dx, al)?;
        a.mov(dx, u32::from(COM1 + 5))?;
        a.mov(eax, 0)?;
        a.in_(al, dx)?;
        // Transmitter empty: bits 5 and 6.
        a.cmp(al, 0x60)?;
        a.jne(wrong)?;
        a.inc(ebx)?;
        a.cmp(ebx, CYCLE as i32)?;
        a.jne(same)?;
        a.xor(ebx, ebx)?;
        a.set_label(&mut same)?;
        a.inc(ecx)?;
        a.cmp(ecx, BYTES as i32)?;
        a.jne(again)?;
        image::power_off(a)?;
        a.set_label(&mut wrong)?;
        a.mov(ptr(rsi + 8), eax)?;
        a.ud2()
    })?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        guest.start().await?;
        let mut pauses = 0;
        let mut last = 0;
        // Pauses between any two counts that can be seen, as long as the guest runs.
        while guest.client.pause_vm(VM).await.is_ok() {
            let count = counter(&guest).await?;
            for _ in 0..3 {
                check_eq!(
                    counter(&guest).await?,
                    count,
                    "the counter of the paused guest"
                );
            }
            check!(
                count >= last,
                "the counter went back from {last} to {count}"
            );
            last = count;
            pauses += 1;
            if guest.client.resume_vm(VM).await.is_err() {
                break;
            }
        }
        guest.power_off().await?;
        let sent = guest.console.rest().await?;
        let expected: Vec<u8> = (0..BYTES).map(|n| (n % CYCLE) as u8).collect();
        check_eq!(sent.len(), expected.len(), "bytes that the guest sent");
        check!(
            sent == expected,
            "the bytes are not the sequence that the guest sent"
        );
        check!(
            pauses > 1,
            "the guest ended before it could be paused twice"
        );
        pass_with(format!("{pauses} pauses, {BYTES} bytes"))
    })
}

async fn counter(guest: &Tiny) -> Result<u64, Failure> {
    Ok(number(&guest.client.read_memory(VM, 0, DATA, 8).await?))
}
