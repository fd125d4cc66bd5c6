//! Which kernel a file is.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// What begins a kernel's banner, in its data.
const BANNER: &[u8] = b"Linux version ";
/// The setup header of a bzImage: its magic number, and the place of the text of its version, from 0x200 on
/// (Documentation/arch/x86/boot.rst).
const MAGIC_AT: usize = 0x202;
const MAGIC: &[u8] = b"HdrS";
const VERSION_AT: usize = 0x20e;
const VERSION_BASE: usize = 0x200;
/// Longest release that Linux has room for (`__NEW_UTS_LEN` of include/uapi/linux/utsname.h).
const LONGEST: usize = 64;

/// Returns the release of the kernel in a file, as `uname -r` tells it. None where the file doesn't tell.
///
/// # Errors
/// The file can't be read.
pub fn of(kernel: &Path) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    File::open(kernel)?.read_to_end(&mut bytes)?;
    Ok(of_bzimage(&bytes).or_else(|| of_banner(&bytes)))
}

fn of_bzimage(bytes: &[u8]) -> Option<String> {
    if bytes.get(MAGIC_AT..MAGIC_AT + MAGIC.len())? != MAGIC {
        return None;
    }
    let at = bytes.get(VERSION_AT..VERSION_AT + 2)?;
    let at = usize::from(u16::from_le_bytes([at[0], at[1]]));
    first_word(bytes.get(VERSION_BASE + at..)?)
}

fn of_banner(bytes: &[u8]) -> Option<String> {
    let mut banners = bytes
        .windows(BANNER.len())
        .enumerate()
        .filter(|(_, window)| *window == BANNER);
    // The text also stands in the format of a message, where a `%s` follows.
    banners.find_map(|(at, _)| first_word(&bytes[at + BANNER.len()..]))
}

/// Returns the text up to a space, if it can be a release.
fn first_word(bytes: &[u8]) -> Option<String> {
    let end = bytes
        .iter()
        .take(LONGEST + 1)
        .position(|byte| *byte == b' ')?;
    let word = std::str::from_utf8(&bytes[..end]).ok()?;
    let is_release = word.starts_with(|first: char| first.is_ascii_digit())
        && word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._+-~".contains(c));
    is_release.then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bzimage_tells_its_release_in_its_setup_header() {
        let mut bytes = vec![0; 0x600];
        bytes[MAGIC_AT..MAGIC_AT + 4].copy_from_slice(MAGIC);
        bytes[VERSION_AT..VERSION_AT + 2].copy_from_slice(&0x300u16.to_le_bytes());
        let text = b"6.12.1-cloud (x@y) #1";
        bytes[0x500..0x500 + text.len()].copy_from_slice(text);
        assert_eq!(of_bzimage(&bytes).as_deref(), Some("6.12.1-cloud"));
        bytes[VERSION_AT..VERSION_AT + 2].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(of_bzimage(&bytes), None);
    }

    #[test]
    fn a_vmlinux_tells_it_in_its_banner() {
        let bytes = b"..Linux version %s (..Linux version 6.1.0-9 (gcc)..";
        assert_eq!(of_banner(bytes).as_deref(), Some("6.1.0-9"));
        assert_eq!(of_banner(b"Linux version ../../x (gcc)"), None);
        assert_eq!(of_banner(b"no kernel"), None);
    }
}
