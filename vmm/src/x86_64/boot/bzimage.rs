//! A kernel file as the user gives it: a bzImage, or the vmlinux ELF itself.
//!
//! Source of the header's fields: Linux `Documentation/arch/x86/boot.rst`, "The Real-Mode Kernel
//! Header"; offsets are from the start of the file.

use std::ops::Range;
use std::path::Path;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use thiserror::Error;

use super::kernel_cache::KernelCache;
use super::payload;
pub use super::payload::{Compression, MAX_IMAGE_SIZE, PayloadError};

const SECTOR: usize = 512;
const SETUP_SECTS: usize = 0x1f1;
const MAGIC: Range<usize> = 0x202..0x206;
const PROTOCOL: usize = 0x206;
const KERNEL_VERSION: usize = 0x20e;
const XLOADFLAGS: usize = 0x236;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// End of the last field read here.
const HEADER_END: usize = 0x250;

/// What `setup_sects` means when it is 0.
const DEFAULT_SETUP_SECTS: usize = 4;
/// The first protocol with `payload_offset` and `payload_length`.
const PAYLOAD_PROTOCOL: u16 = 0x0208;
/// The first protocol with `xloadflags`.
const XLOADFLAGS_PROTOCOL: u16 = 0x020c;
/// `XLF_KERNEL_64`: the kernel has a 64-bit entry point.
const XLF_KERNEL_64: u16 = 1;

/// What a kernel file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFormat {
    /// A bzImage, as distributions package it.
    BzImage {
        /// How the kernel inside is packed.
        compression: Compression,
        /// The kernel's own version text, such as `6.1.0-56-cloud-amd64 (...) #1 SMP ...`;
        /// empty where the header has none.
        version: String,
    },
    /// The vmlinux ELF file.
    Elf,
}

/// A kernel file, opened up.
#[derive(Debug)]
pub struct KernelFile {
    /// What the file is.
    pub format: KernelFormat,
    /// The vmlinux ELF. One that comes out of a bzImage is followed by the kernel's relocation
    /// list where it has one (`CONFIG_X86_NEED_RELOCS`); the ELF doesn't refer to those bytes.
    pub elf: Vec<u8>,
    /// The file itself, when it is a bzImage.
    pub bzimage: Option<Vec<u8>>,
}

/// Why a file isn't a kernel that can be booted. The reader of the error may not be allowed to read the file, so
/// nothing of its content is told.
#[derive(Debug, Error)]
pub enum KernelFileError {
    /// No magic number of a kernel.
    #[error(
        "the kernel file is neither a bzImage nor a vmlinux ELF (length {len} bytes); give an \
         x86-64 Linux kernel, such as /boot/vmlinuz-*"
    )]
    NotAKernel {
        /// Length of the file in bytes.
        len: usize,
    },
    /// The file ends too early.
    #[error(
        "the kernel file is truncated: its {part} ends at byte {needed}, the file at byte {len}; \
         fetch it again"
    )]
    Truncated {
        /// The part that isn't all there.
        part: &'static str,
        /// Where that part ends, in bytes from the start of the file.
        needed: u64,
        /// Length of the file in bytes.
        len: u64,
    },
    /// A bzImage older than Linux 2.6.26.
    #[error(
        "the bzImage has boot protocol {}.{:02}, older than 2.08 and so without a description of \
         its payload; give a newer kernel or the vmlinux inside",
        .protocol >> 8, .protocol & 0xff
    )]
    OldProtocol {
        /// The protocol, major number in the high byte.
        protocol: u16,
    },
    /// A kernel for another processor.
    #[error("the kernel is built for {found}, not for x86-64; give an x86-64 (amd64) kernel")]
    NotX86_64 {
        /// What it is built for.
        found: &'static str,
    },
    /// The payload can't be unpacked.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The payload was unpacked and is no ELF file.
    #[error(
        "the bzImage's payload is no ELF file; the file is damaged or packed in an unknown way: \
         fetch it again, or give its vmlinux"
    )]
    PayloadNotElf,
    /// An ELF file that no loader could use.
    #[error("the kernel's ELF file can't be used: {reason}; give the vmlinux of a kernel build")]
    BadElf {
        /// What is wrong with it.
        reason: String,
    },
}

/// Finds out what a kernel file is and takes the vmlinux ELF out of it.
///
/// # Errors
/// See [`KernelFileError`]. On success the ELF is a 64-bit x86 executable whose segments all lie
/// inside the file.
///
/// ```
/// let error = vmm::boot::bzimage::read_kernel(b"not a kernel".to_vec()).unwrap_err();
/// assert!(error.to_string().contains("neither a bzImage nor a vmlinux ELF"));
/// ```
pub fn read_kernel(bytes: Vec<u8>) -> Result<KernelFile, KernelFileError> {
    read_kernel_with(bytes, None)
}

/// The same, where kernels that were unpacked may be kept in a folder.
pub(crate) fn read_kernel_with(
    bytes: Vec<u8>,
    kept_in: Option<&Path>,
) -> Result<KernelFile, KernelFileError> {
    if bytes.starts_with(&elf::ELFMAG) {
        check_elf(&bytes)?;
        return Ok(KernelFile {
            format: KernelFormat::Elf,
            elf: bytes,
            bzimage: None,
        });
    }
    if bytes.get(MAGIC) != Some(b"HdrS") {
        return Err(other_file(&bytes));
    }
    let header = SetupHeader::parse(&bytes)?;
    let packed = payload::Packed::find(header.payload)?;
    let elf = match kept_in {
        Some(folder) => {
            let cache = KernelCache::new(folder);
            cache.unpacked(header.payload, packed.len(), || packed.unpack())?
        }
        None => packed.unpack()?,
    };
    if !elf.starts_with(&elf::ELFMAG) {
        return Err(KernelFileError::PayloadNotElf);
    }
    check_elf(&elf)?;
    let format = KernelFormat::BzImage {
        compression: packed.compression(),
        version: header.version,
    };
    Ok(KernelFile {
        format,
        elf,
        bzimage: Some(bytes),
    })
}

/// The parts of the setup header that are needed here.
struct SetupHeader<'a> {
    version: String,
    payload: &'a [u8],
}

impl<'a> SetupHeader<'a> {
    fn parse(file: &'a [u8]) -> Result<Self, KernelFileError> {
        let truncated = |part, needed: u64| KernelFileError::Truncated {
            part,
            needed,
            len: file.len() as u64,
        };
        let Some(fixed) = file.first_chunk::<HEADER_END>() else {
            return Err(truncated("setup header", HEADER_END as u64));
        };
        let u16_at = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        let u32_at = |at: usize| u64::from(u16_at(at)) | u64::from(u16_at(at + 2)) << 16;

        let protocol = u16_at(PROTOCOL);
        if protocol < PAYLOAD_PROTOCOL {
            return Err(KernelFileError::OldProtocol { protocol });
        }
        if protocol >= XLOADFLAGS_PROTOCOL && u16_at(XLOADFLAGS) & XLF_KERNEL_64 == 0 {
            return Err(KernelFileError::NotX86_64 {
                found: "32-bit x86",
            });
        }
        let setup_len = setup_len(fixed[SETUP_SECTS]);
        let start = setup_len as u64 + u32_at(PAYLOAD_OFFSET);
        let end = start + u32_at(PAYLOAD_LENGTH);
        // Both ends are below 2^34, so they fit.
        let payload = file
            .get(start as usize..end as usize)
            .ok_or_else(|| truncated("payload", end))?;
        let version = version_text(file, usize::from(u16_at(KERNEL_VERSION)), setup_len);
        Ok(Self { version, payload })
    }
}

/// Bytes of a bzImage before what a boot loader loads of it, by the header's `setup_sects`.
pub(super) fn setup_len(setup_sects: u8) -> usize {
    let sectors = match usize::from(setup_sects) {
        0 => DEFAULT_SETUP_SECTS,
        n => n,
    };
    (1 + sectors) * SECTOR
}

/// `kernel_version` is the offset, less 0x200, of a NUL-ended text inside the setup code.
fn version_text(file: &[u8], offset: usize, setup_len: usize) -> String {
    if offset == 0 {
        return String::new();
    }
    let text = file.get(offset + SECTOR..setup_len).unwrap_or_default();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
        .trim()
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

/// Checks what every later reader of the ELF relies on.
fn check_elf(file: &[u8]) -> Result<(), KernelFileError> {
    let bad = |reason: String| KernelFileError::BadElf { reason };
    // e_ident, e_type and e_machine lie at the same place in a 32-bit and a 64-bit file.
    let (Some(class), Some(data), Some(machine)) = (file.get(4), file.get(5), file.get(18..20))
    else {
        return Err(KernelFileError::Truncated {
            part: "ELF header",
            needed: size_of::<FileHeader64<LittleEndian>>() as u64,
            len: file.len() as u64,
        });
    };
    let machine = match data {
        1 => u16::from_le_bytes([machine[0], machine[1]]),
        _ => u16::from_be_bytes([machine[0], machine[1]]),
    };
    if (machine, *class, *data) != (elf::EM_X86_64.0, 2, 1) {
        return Err(KernelFileError::NotX86_64 {
            found: machine_name(machine),
        });
    }
    let needed = size_of::<FileHeader64<LittleEndian>>();
    if file.len() < needed {
        return Err(KernelFileError::Truncated {
            part: "ELF header",
            needed: needed as u64,
            len: file.len() as u64,
        });
    }
    let header = FileHeader64::<LittleEndian>::parse(file).map_err(|e| bad(e.to_string()))?;
    let kind = header.e_type(LittleEndian);
    if kind != elf::ET_EXEC && kind != elf::ET_DYN {
        return Err(bad(
            "it is no executable (an object file, a module or a core dump?)".into(),
        ));
    }
    let segments = header
        .program_headers(LittleEndian, file)
        .map_err(|e| bad(e.to_string()))?;
    let mut loaded = false;
    for segment in segments
        .iter()
        .filter(|s| s.p_type(LittleEndian) == elf::PT_LOAD)
    {
        let (offset, len) = segment.file_range(LittleEndian);
        let needed = offset.saturating_add(len);
        if needed > file.len() as u64 {
            let part = "ELF segment";
            return Err(KernelFileError::Truncated {
                part,
                needed,
                len: file.len() as u64,
            });
        }
        loaded = true;
    }
    if loaded {
        Ok(())
    } else {
        Err(bad("it has no segment to load".into()))
    }
}

/// Names of the machines that Linux kernels are most often built for.
fn machine_name(machine: u16) -> &'static str {
    match elf::Machine(machine) {
        elf::EM_386 => "32-bit x86",
        elf::EM_X86_64 => "x86-64 in an odd ELF class or byte order",
        elf::EM_AARCH64 => "64-bit ARM",
        elf::EM_ARM => "32-bit ARM",
        elf::EM_RISCV => "RISC-V",
        elf::EM_PPC64 => "64-bit PowerPC",
        elf::EM_S390 => "s390",
        _ => "another machine",
    }
}

/// The error for a file that is no x86-64 kernel. It names the file's kind where that is easy to tell.
fn other_file(file: &[u8]) -> KernelFileError {
    // Linux Documentation/arch/arm64/booting.rst: magic number of an Image, at byte 56.
    if file.get(56..60) == Some(b"ARM\x64") {
        return KernelFileError::NotX86_64 {
            found: machine_name(elf::EM_AARCH64.0),
        };
    }
    KernelFileError::NotAKernel { len: file.len() }
}

#[cfg(test)]
mod tests;
