//! Kernels in forms that Debian doesn't package: the ELF file inside, and bzImages with their payload packed by gzip
//! and xz. They are unpacked here, not by the product, which is under test.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use ruzstd::decoding::StreamingDecoder;

/// Fields of the header (the kernel's Documentation/arch/x86/boot.rst), as offsets in the file.
const SETUP_SECTS: usize = 0x1f1;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;

/// Magic of LZ4's legacy frame, and the most that one of its blocks holds.
const LZ4_LEGACY: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
const LZ4_BLOCK: usize = 8 << 20;
/// Magic of a zstd frame (RFC 8878, 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Why a kernel can't be packed anew.
#[derive(Debug, thiserror::Error)]
pub enum RepackError {
    /// A file operation or a program failed.
    #[error("can't {0}")]
    Io(String, #[source] io::Error),
    /// The kernel isn't what it was.
    #[error(
        "the kernel {0} can't be unpacked ({1}); Debian's package has changed, so this has to follow"
    )]
    Unpack(String, &'static str),
    /// A packer failed.
    #[error("{0} failed")]
    Packer(&'static str),
}

/// How a payload is packed, as the kernel's own build does it (scripts/Makefile.lib).
#[derive(Debug, Clone, Copy)]
pub enum Packer {
    /// `CONFIG_KERNEL_GZIP`.
    Gzip,
    /// `CONFIG_KERNEL_XZ`.
    Xz,
}

/// Returns the ELF file inside a bzImage that is packed with LZ4 or zstd, as Debian's are.
///
/// # Errors
/// If it isn't such a bzImage.
pub fn vmlinux(bzimage: &Path) -> Result<Vec<u8>, RepackError> {
    let bad = |what| RepackError::Unpack(bzimage.display().to_string(), what);
    let file = read(bzimage)?;
    let range = payload(&file).ok_or_else(|| bad("its header has no payload"))?;
    let payload = file.get(range).ok_or_else(|| bad("it is truncated"))?;
    // The last four bytes are the unpacked size.
    let (packed, size) = payload.split_at(payload.len().saturating_sub(4));
    let elf = if let Some(blocks) = packed.strip_prefix(&LZ4_LEGACY) {
        lz4_blocks(blocks).map_err(bad)?
    } else if packed.starts_with(&ZSTD) {
        let mut elf = Vec::new();
        let unpacked = StreamingDecoder::new(packed).map(|mut zstd| zstd.read_to_end(&mut elf));
        match unpacked {
            Ok(Ok(_)) => elf,
            _ => return Err(bad("its payload is damaged")),
        }
    } else {
        return Err(bad("its payload is neither LZ4 nor zstd"));
    };
    if size == (elf.len() as u32).to_le_bytes() {
        Ok(elf)
    } else {
        Err(bad("its size is another one"))
    }
}

fn lz4_blocks(mut rest: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut elf = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let block = after.get(..length).ok_or("a block is truncated")?;
        let block = lz4_flex::block::decompress(block, LZ4_BLOCK);
        elf.extend(block.map_err(|_| "a block is damaged")?);
        rest = &after[length..];
    }
    Ok(elf)
}

/// Writes a bzImage with the header of `bzimage` and this ELF file as its payload.
///
/// # Errors
/// If a file can't be written, or the packer fails.
pub fn bzimage(bzimage: &Path, elf: &Path, packer: Packer, to: &Path) -> Result<(), RepackError> {
    let bad = |what| RepackError::Unpack(bzimage.display().to_string(), what);
    let mut file = read(bzimage)?;
    let old = payload(&file).ok_or_else(|| bad("its header has no payload"))?;
    let mut new = pack(elf, packer)?;
    if let Packer::Xz = packer {
        // gzip's own format ends in the size; to the others the kernel's build appends it.
        let size = fs::metadata(elf).map_err(io_error("examine", elf))?.len() as u32;
        new.extend(size.to_le_bytes());
    }
    let length = (new.len() as u32).to_le_bytes();
    file[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length);
    file.splice(old, new);
    fs::write(to, file).map_err(io_error("write", to))
}

fn payload(file: &[u8]) -> Option<std::ops::Range<usize>> {
    let number = |at: usize| {
        let bytes = file.get(at..at + 4)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes) as usize)
    };
    let setup = (usize::from(*file.get(SETUP_SECTS)?) + 1) * SECTOR;
    let start = setup + number(PAYLOAD_OFFSET)?;
    Some(start..start + number(PAYLOAD_LENGTH)?)
}

fn pack(elf: &Path, packer: Packer) -> Result<Vec<u8>, RepackError> {
    let (name, arguments): (_, &[&str]) = match packer {
        Packer::Gzip => ("gzip", &["-n", "-6"]),
        Packer::Xz => (
            "xz",
            &["--check=crc32", "--x86", "--lzma2=preset=1,dict=8MiB"],
        ),
    };
    let input = File::open(elf).map_err(io_error("open", elf))?;
    let output = Command::new(name)
        .args(arguments)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| RepackError::Io(format!("start {name}; deploy/setup.sh installs it"), e))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(RepackError::Packer(name))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, RepackError> {
    fs::read(path).map_err(io_error("read", path))
}

fn io_error(what: &str, path: &Path) -> impl FnOnce(io::Error) -> RepackError + use<> {
    let text = format!("{what} {}", path.display());
    move |error| RepackError::Io(text, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_s_place_is_read_from_the_header() {
        let mut file = vec![0; 0x300];
        file[SETUP_SECTS] = 39;
        file[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&0x2cc_u32.to_le_bytes());
        file[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&100_u32.to_le_bytes());
        let start = 40 * 512 + 0x2cc;
        assert_eq!(payload(&file), Some(start..start + 100));
        assert_eq!(payload(&file[..0x100]), None);
    }
}
