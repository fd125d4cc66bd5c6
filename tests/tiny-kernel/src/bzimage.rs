//! bzImages that unpack tiny kernels.
//!
//! Source of the header's fields: Linux `Documentation/arch/x86/boot.rst`.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, CodeLabel, ecx, ptr, qword_ptr, r15, rax, rdi, rsi};

use crate::{CODE_AT, TEXT, UPPER_HALF};

/// Where the bzImage asks to be loaded.
const LOADED: u64 = 0x100_0000;
/// Offset of its 64-bit entry in the loaded part.
const ENTRY: usize = 0x200;
/// Bytes of the setup code: a sector and one more.
const SETUP: usize = 0x400;

/// Makes a bzImage with a kernel of [`crate::build`], whose code is `code` bytes long and has an absolute address at
/// `word`. `decompressor` is the code that the bzImage begins with.
///
/// # Errors
/// If it doesn't assemble.
pub fn pack(
    kernel: &[u8],
    word: u64,
    decompressor: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    decompressor(&mut a)?;
    let code = a.assemble(LOADED + ENTRY as u64)?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    // The list of words with addresses follows the kernel, and then that of lower halves, which is empty.
    let lists = [0, word as u32, 0].map(u32::to_le_bytes).concat();
    let payload = packed
        .write_all(kernel)
        .and_then(|()| packed.write_all(&lists))
        .and_then(|()| packed.finish())
        .unwrap_or_default();
    let payload_at = ENTRY + code.len();

    let mut file = vec![0; SETUP];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[1]); // setup_sects
    put(0x1fe, &[0x55, 0xaa]); // boot_flag
    put(0x201, &[0x6a]); // length of the header
    put(0x202, b"HdrS");
    put(0x206, &0x020f_u16.to_le_bytes()); // version
    put(0x211, &[1]); // loadflags: LOADED_HIGH
    put(0x214, &0x10_0000_u32.to_le_bytes()); // code32_start
    put(0x22c, &0x7fff_ffff_u32.to_le_bytes()); // initrd_addr_max
    put(0x236, &1_u16.to_le_bytes()); // xloadflags: XLF_KERNEL_64
    put(0x238, &2047_u32.to_le_bytes()); // cmdline_size
    put(0x248, &(payload_at as u32).to_le_bytes()); // payload_offset
    put(0x24c, &(payload.len() as u32).to_le_bytes()); // payload_length
    put(0x258, &LOADED.to_le_bytes()); // pref_address
    put(0x260, &0x40_0000_u32.to_le_bytes()); // init_size
    file.resize(SETUP + ENTRY, 0);
    file.extend(code);
    file.extend(payload);
    Ok(file)
}

/// Makes a decompressor that puts the kernel `moved` bytes above its place, physically and virtually, and enters it as
/// Linux does. The kernel's code in it is already unpacked.
///
/// # Errors
/// None that this code can cause.
pub fn moves(
    a: &mut CodeAssembler,
    kernel: &[u8],
    len: usize,
    word: u64,
    moved: u64,
) -> Result<(), IcedError> {
    let (mut extract, mut code) = (a.create_label(), a.create_label());
    a.mov(r15, rsi)?;
    a.call(extract)?;
    a.mov(rsi, r15)?;
    a.jmp(rax)?;
    a.set_label(&mut extract)?;
    copy(a, code, len, TEXT + moved)?;
    a.mov(rdi, word - UPPER_HALF + moved)?;
    a.mov(rax, moved)?;
    a.add(qword_ptr(rdi), rax)?;
    a.mov(rax, TEXT + moved)?;
    a.ret()?;
    a.set_label(&mut code)?;
    a.db(&kernel[CODE_AT..CODE_AT + len])
}

fn copy(a: &mut CodeAssembler, from: CodeLabel, len: usize, to: u64) -> Result<(), IcedError> {
    a.lea(rsi, ptr(from))?;
    a.mov(rdi, to)?;
    a.mov(ecx, len as u32)?;
    a.rep().movsb()
}
