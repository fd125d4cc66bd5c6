//! The compressed payload of a bzImage: which compression, and what is inside.
//!
//! Magic numbers: Linux `Documentation/arch/x86/boot.rst`, field `payload_offset`. The kernel's
//! build appends the decompressed size, a little-endian u32, to every payload but a gzip one
//! (`size_append` in `scripts/Makefile.lib`); a gzip file ends in that very number by itself
//! (RFC 1952, ISIZE). So it is always the last four bytes, and it bounds what is decompressed.

use std::fmt;
use std::io::{self, Read};

use thiserror::Error;

/// The most that a payload may decompress to, in bytes. Distribution kernels are 40 to 100 MiB.
pub const MAX_IMAGE_SIZE: usize = 1 << 30;

/// The most that an xz payload may ask for as its dictionary, in KiB; the kernel's build uses
/// at most 128 MiB (`scripts/xz_wrap.sh`).
const MAX_XZ_MEMORY_KIB: u32 = 256 << 10;

/// Bytes that the LZ4 legacy format packs into one block at most (`lz4` frame format, "legacy
/// frame"; `lib/decompress_unlz4.c`, `LZ4_DEFAULT_UNCOMPRESSED_CHUNK_SIZE`).
const LZ4_LEGACY_BLOCK: usize = 8 << 20;

const LZ4_LEGACY_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];

/// Length of the decompressed size at the end of a payload.
const SIZE_LEN: usize = 4;

/// How the kernel inside a bzImage is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed at all.
    None,
    /// `CONFIG_KERNEL_GZIP`.
    Gzip,
    /// `CONFIG_KERNEL_LZ4`, the LZ4 legacy format.
    Lz4,
    /// `CONFIG_KERNEL_ZSTD`.
    Zstd,
    /// `CONFIG_KERNEL_XZ`, with or without the x86 branch filter.
    Xz,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "uncompressed",
            Self::Gzip => "gzip",
            Self::Lz4 => "LZ4",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        })
    }
}

/// Why a payload can't be unpacked.
#[derive(Debug, Error)]
pub enum PayloadError {
    /// The first bytes are no compression that Linux uses.
    #[error(
        "the kernel payload has an unknown compression; give the vmlinux inside instead of the \
         bzImage"
    )]
    UnknownCompression,
    /// A compression that Linux can use and vmprobe can't.
    #[error(
        "the kernel payload is packed with {name}, which vmprobe can't unpack; rebuild the kernel \
         with CONFIG_KERNEL_GZIP, _LZ4, _ZSTD or _XZ, or give its vmlinux instead of the bzImage"
    )]
    UnsupportedCompression {
        /// The compression's name.
        name: &'static str,
    },
    /// Too short to hold anything.
    #[error("the kernel payload is only {len} bytes long; the file is damaged, fetch it again")]
    TooShort {
        /// Length of the payload in bytes.
        len: usize,
    },
    /// The payload says that it is larger inside than any kernel.
    #[error(
        "the kernel payload claims to hold {size} bytes, more than the limit of {limit}; the file \
         is damaged or not a kernel"
    )]
    TooLarge {
        /// Decompressed size in bytes, as the payload gives it.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The compressed data is damaged.
    #[error("the {compression} payload of the kernel is damaged ({reason}); fetch the file again")]
    Damaged {
        /// How it is packed.
        compression: Compression,
        /// What the decompressor says.
        reason: String,
    },
    /// The data decompresses to another size than it should.
    #[error(
        "the {compression} payload of the kernel is damaged (it holds {found} bytes instead of \
         {expected}); fetch the file again"
    )]
    WrongSize {
        /// How it is packed.
        compression: Compression,
        /// Bytes that came out.
        found: usize,
        /// Bytes that the payload says it holds.
        expected: usize,
    },
}

/// A bzImage's payload: `payload_length` bytes from `payload_offset`.
#[derive(Debug)]
pub(super) struct Packed<'a> {
    payload: &'a [u8],
    compression: Compression,
    len: usize,
}

impl<'a> Packed<'a> {
    /// Finds out how it is packed, and how long it will be.
    ///
    /// # Errors
    /// See [`PayloadError`].
    pub(super) fn find(payload: &'a [u8]) -> Result<Self, PayloadError> {
        let compression = detect(payload)?;
        let len = match compression {
            Compression::None => payload.len(),
            _ => {
                let size = payload.last_chunk::<SIZE_LEN>();
                let size = size.ok_or(PayloadError::TooShort { len: payload.len() })?;
                u32::from_le_bytes(*size) as usize
            }
        };
        if len > MAX_IMAGE_SIZE {
            return Err(PayloadError::TooLarge {
                size: len,
                limit: MAX_IMAGE_SIZE,
            });
        }
        Ok(Self {
            payload,
            compression,
            len,
        })
    }

    /// How it is packed.
    pub(super) fn compression(&self) -> Compression {
        self.compression
    }

    /// Bytes of what is in it, as it says itself.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Unpacks it: an ELF file, and after it the relocation list of a kernel built with `CONFIG_X86_NEED_RELOCS`.
    ///
    /// # Errors
    /// See [`PayloadError`]. Never allocates more than [`MAX_IMAGE_SIZE`] for the result.
    pub(super) fn unpack(&self) -> Result<Vec<u8>, PayloadError> {
        let Self {
            payload,
            compression,
            len: expected,
        } = *self;
        // Behind the packed bytes of all but gzip's format is the length.
        let packed = &payload[..payload.len().saturating_sub(SIZE_LEN)];
        let mut image = vec![0; expected];
        let found = match compression {
            Compression::None => return Ok(payload.to_vec()),
            // The size is part of the gzip format itself.
            Compression::Gzip => fill(flate2::read::GzDecoder::new(payload), &mut image),
            Compression::Lz4 => unpack_lz4(packed, &mut image),
            Compression::Zstd => unpack_zstd(packed, &mut image),
            Compression::Xz => fill(
                lzma_rust2::XzReader::new_mem_limit(packed, false, MAX_XZ_MEMORY_KIB),
                &mut image,
            ),
        }
        .map_err(|reason| PayloadError::Damaged {
            compression,
            reason,
        })?;
        if found != expected {
            return Err(PayloadError::WrongSize {
                compression,
                found,
                expected,
            });
        }
        Ok(image)
    }
}

fn detect(payload: &[u8]) -> Result<Compression, PayloadError> {
    let unsupported = |name| Err(PayloadError::UnsupportedCompression { name });
    match payload {
        [0x7f, b'E', b'L', b'F', ..] => Ok(Compression::None),
        [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
        [0x02, 0x21, 0x4c, 0x18, ..] => Ok(Compression::Lz4),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(Compression::Zstd),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Compression::Xz),
        [b'B', b'Z', b'h', ..] => unsupported("bzip2"),
        [0x5d, 0, 0, ..] => unsupported("lzma"),
        [0x89, b'L', b'Z', b'O', ..] => unsupported("LZO"),
        [_, _, _, _, ..] => Err(PayloadError::UnknownCompression),
        _ => Err(PayloadError::TooShort { len: payload.len() }),
    }
}

/// Reads `from` to its end into `into`, returning how many bytes it gave; one more than fit
/// stands for "too many". Reading to the end is what makes the decoders check their checksums.
fn fill(mut from: impl Read, into: &mut [u8]) -> Result<usize, String> {
    let mut done = 0;
    loop {
        let mut spare = [0];
        let target = match into.get_mut(done..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => &mut spare[..],
        };
        match from.read(target) {
            Ok(0) => return Ok(done),
            Ok(_) if done == into.len() => return Ok(done + 1),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// The legacy frame: the magic number, then blocks, each after its compressed length (u32).
/// The magic number may come again, where files were concatenated.
fn unpack_lz4(mut packed: &[u8], into: &mut [u8]) -> Result<usize, String> {
    let mut done = 0;
    while let Some((head, rest)) = packed.split_first_chunk::<4>() {
        packed = rest;
        if *head == LZ4_LEGACY_MAGIC {
            continue;
        }
        let len = u32::from_le_bytes(*head) as usize;
        let (block, rest) = packed
            .split_at_checked(len)
            .ok_or_else(|| format!("a block of {len} bytes goes past the end"))?;
        packed = rest;
        let end = into.len().min(done + LZ4_LEGACY_BLOCK);
        let target = into.get_mut(done..end).unwrap_or_default();
        done += lz4_flex::block::decompress_into(block, target).map_err(|e| e.to_string())?;
    }
    if !packed.is_empty() {
        return Err(format!("{} stray bytes at the end", packed.len()));
    }
    Ok(done)
}

fn unpack_zstd(packed: &[u8], into: &mut [u8]) -> Result<usize, String> {
    let mut decoder = ruzstd::decoding::FrameDecoder::new();
    let done = decoder
        .decode_all(packed, into)
        .map_err(|e| e.to_string())?;
    let (given, computed) = (
        decoder.get_checksum_from_data(),
        decoder.get_calculated_checksum(),
    );
    if given.is_some() && given != computed {
        return Err("checksum mismatch".to_owned());
    }
    Ok(done)
}

/// Packers for tests, here and in the tests of the bzImage reader.
#[cfg(test)]
pub mod testing {
    use std::io::Write;

    use super::{Compression, LZ4_LEGACY_BLOCK, LZ4_LEGACY_MAGIC};

    /// Packs `image` as the kernel's build does, the size at the end included.
    pub fn pack(compression: Compression, image: &[u8]) -> Vec<u8> {
        let mut out = match compression {
            Compression::None => return image.to_vec(),
            Compression::Gzip => {
                let mut e = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
                e.write_all(image).unwrap();
                return e.finish().unwrap();
            }
            Compression::Lz4 => {
                let mut out = LZ4_LEGACY_MAGIC.to_vec();
                for chunk in image.chunks(LZ4_LEGACY_BLOCK) {
                    let block = lz4_flex::block::compress(chunk);
                    out.extend((block.len() as u32).to_le_bytes());
                    out.extend(block);
                }
                out
            }
            Compression::Zstd => ruzstd::encoding::compress_to_vec(
                image,
                ruzstd::encoding::CompressionLevel::Fastest,
            ),
            Compression::Xz => {
                let mut options = lzma_rust2::XzOptions::with_preset(1);
                options.set_check_sum_type(lzma_rust2::CheckType::Crc32);
                options.prepend_pre_filter(lzma_rust2::FilterType::BcjX86, 0);
                let mut e = lzma_rust2::XzWriter::new(vec![], options).unwrap();
                e.write_all(image).unwrap();
                e.finish().unwrap()
            }
        };
        out.extend((image.len() as u32).to_le_bytes());
        out
    }

    /// Every compression that can be unpacked.
    pub const ALL: [Compression; 5] = [
        Compression::None,
        Compression::Gzip,
        Compression::Lz4,
        Compression::Zstd,
        Compression::Xz,
    ];
}

#[cfg(test)]
mod tests {
    use super::testing::{ALL, pack};
    use super::*;

    fn unpack(payload: &[u8]) -> Result<Vec<u8>, PayloadError> {
        Packed::find(payload)?.unpack()
    }

    /// x86-like bytes: relative calls for the branch filter, and repetition for the packers.
    fn sample(len: usize) -> Vec<u8> {
        let call = |i: usize| {
            [
                0xe8,
                (i >> 3) as u8,
                (i >> 11) as u8,
                0,
                0,
                0x90,
                (i * 7) as u8,
            ]
        };
        let mut image = vec![0x7f, b'E', b'L', b'F'];
        image.extend((0..len / 7).flat_map(call));
        image
    }

    #[test]
    fn every_compression_gives_back_the_image() {
        let image = sample(200_000);
        for compression in ALL {
            let payload = pack(compression, &image);
            let packed = Packed::find(&payload).unwrap();
            assert_eq!(packed.compression(), compression);
            assert_eq!(packed.len(), image.len());
            assert!(packed.unpack().unwrap() == image, "{compression}");
        }
    }

    #[test]
    fn lz4_goes_past_a_block_border() {
        let image = sample(LZ4_LEGACY_BLOCK + 12_345);
        assert!(unpack(&pack(Compression::Lz4, &image)).unwrap() == image);
    }

    #[test]
    fn a_size_that_is_not_what_comes_out_is_reported() {
        for compression in ALL.into_iter().skip(1) {
            for wrong in [0, 99, 1001, 5000_u32] {
                let mut payload = pack(compression, &sample(1000));
                let at = payload.len() - SIZE_LEN;
                payload[at..].copy_from_slice(&wrong.to_le_bytes());
                let error = unpack(&payload).unwrap_err();
                assert!(
                    matches!(
                        error,
                        PayloadError::WrongSize { .. } | PayloadError::Damaged { .. }
                    ),
                    "{compression} {wrong}: {error}"
                );
            }
        }
    }

    #[test]
    fn a_size_over_the_limit_is_refused_before_anything_is_unpacked() {
        let mut payload = pack(Compression::Zstd, &sample(1000));
        let at = payload.len() - SIZE_LEN;
        payload[at..].copy_from_slice(&(MAX_IMAGE_SIZE as u32 + 1).to_le_bytes());
        assert!(matches!(
            unpack(&payload).unwrap_err(),
            PayloadError::TooLarge { .. }
        ));
    }

    #[test]
    fn compressions_that_cannot_be_unpacked_are_named() {
        let cases: [(&[u8], &str); 5] = [
            (b"BZh91AY&SY", "bzip2"),
            (&[0x5d, 0, 0, 0x80, 0, 0xff], "lzma"),
            (&[0x89, b'L', b'Z', b'O', 0, 13], "LZO"),
            (&[0xde, 0xad, 0xbe, 0xef, 1], "unknown compression;"),
            (&[0xde], "only 1 bytes"),
        ];
        for (payload, expected) in cases {
            let message = unpack(payload).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
