//! The serial port both ways, and the endings.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, al, dx, ptr, rax};
use vmprobe_client::v1::EndingKind;

use super::image::{self, COM1, DATA};
use super::vm::Tiny;
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check_eq, pass};

pub const POWER_OFF: Test = Test {
    name: "tiny_power_off_is_exit_0",
    ids: &["VM03"],
    needs: Needs::Tiny,
    run: |cx| ends(cx, image::power_off, EndingKind::PowerOff, 0),
};

pub const RESET: Test = Test {
    name: "tiny_reset_is_a_named_ending",
    ids: &["VM03"],
    needs: Needs::Tiny,
    run: |cx| ends(cx, reset, EndingKind::Reset, 3),
};

pub const TRIPLE_FAULT: Test = Test {
    name: "tiny_triple_fault_is_a_named_ending",
    ids: &["VM03"],
    needs: Needs::Tiny,
    run: |cx| ends(cx, triple_fault, EndingKind::TripleFault, 5),
};

pub const ECHO: Test = Test {
    name: "tiny_serial_input_comes_back_complete",
    ids: &["VM03"],
    needs: Needs::Tiny,
    run: echo,
};

fn ends(
    cx: &Context,
    code: fn(&mut CodeAssembler) -> Result<(), IcedError>,
    kind: EndingKind,
    exit_code: u32,
) -> TestResult {
    let kernel = image::build(|a, _| code(a))?;
    cx.block_on(async {
        let guest = Tiny::new(cx, &kernel, 64).await?;
        guest.start().await?;
        guest.ends_by(kind, exit_code).await?;
        pass()
    })
}

/// The PC's reset control register.
fn reset(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(dx, 0xcf9)?;
    a.mov(al, 6)?;
    a.out(dx, al)?;
    a.ud2()
}

/// An exception without an interrupt table.
fn triple_fault(a: &mut CodeAssembler) -> Result<(), IcedError> {
    // The data is zero: an interrupt table of one byte.
    a.mov(rax, DATA)?;
    a.lidt(ptr(rax))?;
    a.ud2()
}

fn echo(cx: &Context) -> TestResult {
    // Sends back what it reads by polling, until a byte 0.
    let kernel = image::build(|a, _| {
        let mut again = a.create_label();
        let mut end = a.create_label();
        a.set_label(&mut again)?;
        a.mov(dx, u32::from(COM1 + 5))?;
        a.in_(al, dx)?;
        a.test(al, 1)?;
        a.jz(again)?;
        a.mov(dx, u32::from(COM1))?;
        a.in_(al, dx)?;
        a.test(al, al)?;
        a.jz(end)?;
        a.out(dx, al)?;
        a.jmp(again)?;
        a.set_label(&mut end)?;
        image::power_off(a)
    })?;
    cx.block_on(async {
        let mut guest = Tiny::new(cx, &kernel, 64).await?;
        guest.start().await?;
        // Many times the size of the port's FIFO.
        let text: Vec<u8> = (0..2000_u32).map(|n| (n % 255 + 1) as u8).collect();
        guest.console.send(&text).await?;
        check_eq!(guest.console.bytes(text.len()).await?, text, "the echo");
        guest.console.send(&[0]).await?;
        guest.power_off().await?;
        pass()
    })
}
