//! Writing `newc` cpio archives, the format of an initramfs.
//!
//! Source: the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`: a header of
//! the magic `070701` and 13 fields of 8 hexadecimal digits, the name with a NUL, the data; name
//! and data each padded to 4 bytes. An entry named `TRAILER!!!` ends the archive.

const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";

/// File type bits of a mode (`stat.h`).
pub(crate) const TYPE_FILE: u32 = 0o100_000;
pub(crate) const TYPE_DIR: u32 = 0o040_000;
pub(crate) const TYPE_SYMLINK: u32 = 0o120_000;
pub(crate) const TYPE_CHAR_DEVICE: u32 = 0o020_000;

/// An archive being written; every entry belongs to root and has time 0, so that the same entries
/// give the same bytes.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds an entry. `name` has no leading slash; `device` is major and minor of a device node.
    /// The format has no room for data of 4 GiB and more, which the caller must check.
    pub(crate) fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        self.entries += 1;
        // Inode, mode, uid, gid, links, time, size, device of the file system (major, minor),
        // device of the node (major, minor), length of the name, check sum (unused).
        let links = if mode & TYPE_DIR == TYPE_DIR { 2 } else { 1 };
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            data.len() as u32,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, (0, 0), &[]);
        self.bytes
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_documented_header_and_padding() {
        let mut archive = Archive::default();
        archive.entry("abc", TYPE_FILE | 0o644, (0, 0), b"hello");
        let expected = [
            "070701",
            "00000001", // inode
            "000081a4", // mode
            "00000000", // uid
            "00000000", // gid
            "00000001", // links
            "00000000", // time
            "00000005", // size
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000004", // length of the name with its NUL
            "00000000",
            "abc\0\0\0", // 110 + 4, padded to 116
            "hello\0\0\0",
        ]
        .concat();
        assert_eq!(String::from_utf8(archive.bytes).unwrap(), expected);
    }

    #[test]
    fn an_archive_ends_in_the_trailer_on_a_four_byte_boundary() {
        let mut archive = Archive::default();
        archive.entry("dev/null", TYPE_CHAR_DEVICE | 0o666, (1, 3), &[]);
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
        assert!(text.contains("0000000100000003"), "major and minor: {text}");
    }
}
