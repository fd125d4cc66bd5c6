//! bzImages that unpack themselves to another place than they are linked to, or can't.

use guest_kernel::symbols::Symbols;
use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, al, dx, eax, ecx, ptr, rax};
use tiny_kernel::bzimage;
use vmprobe_client::v1::{BootMethod, CreateVmRequest};
use vmprobe_client::{ClientError, spec};

use super::image::{self, COM1, TEXT, UPPER_HALF};
use super::vm::{Tiny, VM, number};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const MOVED: Test = Test {
    name: "tiny_a_bzimage_that_moves_itself_is_probed_where_it_is",
    ids: &["VM11"],
    needs: Needs::Tiny,
    run: moved,
};

pub const FAILED: Test = Test {
    name: "tiny_a_decompressor_that_ends_the_guest_is_an_error_with_its_words",
    ids: &["VM11"],
    needs: Needs::Tiny,
    run: failed,
};

/// The distance by which it moves.
const MOVE: u64 = 0x220_0000;
const PASSES: u32 = 20;

/// A kernel that passes `counted` some times and sends an address that it has as a constant.
struct Kernel {
    file: Vec<u8>,
    /// Bytes of its code.
    len: usize,
    /// Where the constant is linked to be.
    word: u64,
    /// Where `counted` is.
    counted: u64,
}

impl Kernel {
    fn build() -> Result<Self, Failure> {
        let file = image::build(|a, names| {
            let (mut again, mut word) = (a.create_label(), a.create_label());
            a.mov(ecx, PASSES)?;
            a.set_label(&mut again)?;
            a.nop()?;
            names.here(a, "counted")?;
            a.inc(eax)?;
            a.dec(ecx)?;
            a.jnz(again)?;
            a.mov(rax, ptr(word))?;
            image::send_rax(a)?;
            image::power_off(a)?;
            names.here(a, "ends")?;
            a.nop()?;
            a.set_label(&mut word)?;
            a.dq(&[UPPER_HALF + TEXT])
        })?;
        let symbols = Symbols::from_elf_symtab(&file).map_err(|error| wrong!("{error}"))?;
        let find = |name| symbols.get(name).map(|symbol| symbol.address.0);
        let missing = || wrong!("the kernel lacks a symbol");
        let (counted, ends) = (find("counted"), find("ends"));
        let text = symbols.text();
        Ok(Self {
            len: (text.end.0 - text.start.0) as usize,
            word: ends.ok_or_else(missing)? + 1,
            counted: counted.ok_or_else(missing)?,
            file,
        })
    }

    /// Makes a bzImage of it, with `before` ahead of the code that unpacks it.
    fn pack(
        &self,
        before: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    ) -> Result<Vec<u8>, Failure> {
        Ok(bzimage::pack(&self.file, self.word, |a| {
            before(a)?;
            bzimage::moves(a, &self.file, self.len, self.word, MOVE)
        })?)
    }
}

/// A bzImage that never gets to its kernel.
///
/// # Errors
/// None that this code can cause.
pub fn endless() -> Result<Vec<u8>, Failure> {
    Kernel::build()?.pack(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.jmp(again)
    })
}

fn moved(cx: &Context) -> TestResult {
    let kernel = Kernel::build()?;
    let packed = kernel.pack(|_| Ok(()))?;
    let probe = spec::parse("p:counted counted").map_err(|error| wrong!("{error}"))?;
    cx.block_on(async {
        let mut guest = Tiny::with(cx, &packed, |request| {
            request.boot = BootMethod::Bzimage.into();
            request.probes = vec![probe];
        })
        .await?;
        let probes = guest.client.list_probes(VM).await?;
        let places: Vec<_> = probes.iter().map(|probe| probe.address).collect();
        check_eq!(places, [kernel.counted + MOVE], "where the probe is");
        guest.start().await?;
        let sent = number(&guest.console.bytes(8).await?);
        check_eq!(sent, UPPER_HALF + TEXT + MOVE, "the address in the kernel");
        guest.power_off().await?;
        let probes = guest.client.list_probes(VM).await?;
        let hits: Vec<_> = probes.iter().map(|probe| probe.hits).collect();
        check_eq!(hits, [u64::from(PASSES)], "hits");
        pass()
    })
}

fn failed(cx: &Context) -> TestResult {
    let kernel = Kernel::build()?;
    let packed = kernel.pack(|a| {
        a.mov(dx, u32::from(COM1))?;
        for byte in b"no room\n" {
            a.mov(al, u32::from(*byte))?;
            a.out(dx, al)?;
        }
        // The PC's reset control register.
        a.mov(dx, 0xcf9)?;
        a.mov(al, 6)?;
        a.out(dx, al)
    })?;
    cx.block_on(async {
        let change = |request: &mut CreateVmRequest| request.boot = BootMethod::Bzimage.into();
        match Tiny::with(cx, &packed, change).await {
            Err(Failure::Client(ClientError::InvalidArgument { fields, message })) => {
                check_eq!(fields, ["kernel"], "the field of: {message}");
                check!(
                    message.contains("reset") && message.contains("\"no room\""),
                    "{message}"
                );
                pass()
            }
            other => Err(wrong!("the VM should not be made: {other:?}")),
        }
    })
}
