//! The guests of a soak: tiny kernels that count what they execute, at their own pace.

use std::fs;
use std::path::Path;

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, ecx, ptr, qword_ptr, r8, r9, rbx, rsi};
use tiny_kernel::{self as image, DATA, Names};
use vmprobe_client::Client;
use vmprobe_client::v1::{CreateVmRequest, ReadMemoryRequest};

use crate::test::{Failure, check, wrong};
use crate::tiny::interrupts::{self, VECTOR};

/// The instructions that are probed. Each counts its executions in memory.
pub const BODIES: [&str; 4] = ["emulated", "stepped", "again", "called"];
/// Where they count, 8 bytes each.
const COUNTS: u64 = DATA + 0x2000;
/// Passes over all bodies between two rests.
const PASSES: u32 = 8;
/// Ticks of a rest, half a millisecond each.
const REST: u64 = 4;

/// A kernel that goes through all bodies again and again. `rbx` is the number of the pass, from 1.
///
/// # Errors
/// If it doesn't assemble.
pub fn kernel() -> Result<Vec<u8>, Failure> {
    Ok(image::build(|a, names| {
        let (mut tick, mut called) = (a.create_label(), a.create_label());
        interrupts::gates(a, &[(VECTOR, tick)])?;
        interrupts::enable_apic(a)?;
        interrupts::start_ticks(a)?;
        a.mov(rsi, COUNTS)?;
        a.mov(rbx, 0_u64)?;
        let mut round = a.create_label();
        a.set_label(&mut round)?;
        rest(a)?;
        a.mov(ecx, PASSES)?;
        let mut pass = a.create_label();
        a.set_label(&mut pass)?;
        bodies(a, names)?;
        a.call(called)?;
        a.dec(ecx)?;
        a.jnz(pass)?;
        a.jmp(round)?;

        a.set_label(&mut called)?;
        a.nop()?;
        names.here(a, BODIES[3])?;
        a.add(qword_ptr(rsi + 24), 1)?;
        a.ret()?;

        a.set_label(&mut tick)?;
        a.inc(r8)?;
        interrupts::end_of_interrupt_anywhere(a)?;
        a.iretq()
    })?)
}

/// Waits for ticks of the timer; `r8` counts them.
fn rest(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut still = a.create_label();
    a.mov(r8, 0_u64)?;
    a.set_label(&mut still)?;
    // A pending interrupt is delivered after the `hlt` at the earliest (SDM vol. 2, STI).
    a.sti()?;
    a.hlt()?;
    a.cli()?;
    a.cmp(r8, REST as i32)?;
    a.jb(still)
}

fn bodies(a: &mut CodeAssembler, names: &mut Names) -> Result<(), IcedError> {
    a.lea(rbx, ptr(rbx + 1))?;
    names.here(a, BODIES[0])?;
    a.add(qword_ptr(rsi), 1)?;
    a.mov(r9, 1_u64)?;
    names.here(a, BODIES[1])?;
    a.lock().xadd(qword_ptr(rsi + 8), r9)?;
    a.nop()?;
    names.here(a, BODIES[2])?;
    a.inc(qword_ptr(rsi + 16))?;
    a.nop()
}

/// A guest that runs for as long as the soak.
#[derive(Debug)]
pub struct Guest {
    /// The VM's name.
    pub vm: &'static str,
    /// The kernel's text: where it is and what it is without probes.
    pub text_at: u64,
    pub text: Vec<u8>,
}

impl Guest {
    /// Makes and starts the VM.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn start(client: &Client, vm: &'static str, kernel: &Path) -> Result<Self, Failure> {
        fs::write(kernel, self::kernel()?).map_err(Failure::io("write a kernel"))?;
        let request = CreateVmRequest {
            name: vm.into(),
            kernel: kernel.to_string_lossy().into_owned(),
            memory_mib: 64,
            ..Default::default()
        };
        client.create_vm(request).await?;
        let place = async |name: &str| {
            let (symbols, _) = client.lookup_symbols(vm, name, 0).await?;
            let first = symbols.first().map(|symbol| symbol.address);
            first.ok_or_else(|| wrong!("no symbol {name}"))
        };
        let (text_at, end) = (place("_stext").await?, place("_etext").await?);
        let mut guest = Self {
            vm,
            text_at,
            text: vec![0; (end - text_at) as usize],
        };
        guest.text = guest.read_text(client, true).await?;
        Ok(guest)
    }

    /// Reads the text as it is in memory (`as_is`), or as the guest's kernel sees it.
    ///
    /// # Errors
    /// If it can't be read whole.
    pub async fn read_text(&self, client: &Client, as_is: bool) -> Result<Vec<u8>, Failure> {
        let request = ReadMemoryRequest {
            vm: self.vm.into(),
            address: self.text_at,
            length: self.text.len() as u32,
            as_is,
            ..Default::default()
        };
        let text = client.read_memory_by(request).await?;
        check!(
            text.len() == self.text.len(),
            "{} of {} bytes of text",
            text.len(),
            self.text.len()
        );
        Ok(text)
    }

    /// Returns how often the guest has executed each body, by its own counts.
    ///
    /// # Errors
    /// If its memory can't be read.
    pub async fn counts(&self, client: &Client) -> Result<[u64; BODIES.len()], Failure> {
        let bytes = client
            .read_memory(self.vm, 0, COUNTS, 8 * BODIES.len() as u32)
            .await?;
        let mut counts = [0; BODIES.len()];
        let (words, _) = bytes.as_chunks::<8>();
        check!(words.len() == counts.len(), "{} counts", words.len());
        for (count, word) in counts.iter_mut().zip(words) {
            *count = u64::from_le_bytes(*word);
        }
        Ok(counts)
    }
}
