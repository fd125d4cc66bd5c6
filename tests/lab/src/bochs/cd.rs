//! The CD that Bochs boots L1 from: it can't be given a kernel directly. ISO 9660 (ECMA-119) with an El Torito boot
//! record, and isolinux, which loads the kernel and its initramfs.
//!
//! Only what isolinux reads is there: one folder of files with short names, in primary form.

use std::io::{self, Write};

/// Size of a sector, in bytes.
const SECTOR: usize = 2048;
/// Where volume descriptors begin (ECMA-119, 6.2.1).
const PRIMARY_SECTOR: u32 = 16;
const LITTLE_PATH_TABLE: u32 = 19;
const BIG_PATH_TABLE: u32 = 20;
const ROOT: u32 = 21;
const BOOT_CATALOG: u32 = 22;
const FIRST_FILE: u32 = 23;
/// Size of the path table: the root's entry alone.
const PATH_TABLE: usize = 10;

/// A file of the CD: its name in capitals, such as `LINUX.;1`, and its bytes.
pub(super) type CdFile<'a> = (&'a str, &'a [u8]);

/// Writes a CD. The BIOS loads the first file and jumps to it. That file is `isolinux.bin`, in which the table with its
/// own place is filled in.
///
/// # Errors
/// If it can't be written, or a file is too large for ISO 9660: 4 GiB.
pub(super) fn write(to: &mut dyn Write, files: &[CdFile<'_>]) -> io::Result<()> {
    let mut extents = Vec::new();
    let mut sector = FIRST_FILE;
    for (_, bytes) in files {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        extents.push((sector, len));
        sector += len.div_ceil(SECTOR as u32);
    }
    to.write_all(&[0; PRIMARY_SECTOR as usize * SECTOR])?;
    to.write_all(&primary_descriptor(sector))?;
    to.write_all(&boot_record())?;
    to.write_all(&padded(b"\xffCD001\x01"))?;
    to.write_all(&path_table(&ROOT.to_le_bytes(), [1, 0]))?;
    to.write_all(&path_table(&ROOT.to_be_bytes(), [0, 1]))?;
    to.write_all(&root(files, &extents))?;
    to.write_all(&boot_catalog())?;
    for (i, (_, bytes)) in files.iter().enumerate() {
        let loader = (i == 0).then(|| with_own_place(bytes));
        let bytes = loader.as_deref().unwrap_or(bytes);
        to.write_all(bytes)?;
        to.write_all(&vec![0; bytes.len().next_multiple_of(SECTOR) - bytes.len()])?;
    }
    to.flush()
}

/// ECMA-119, 8.4: the volume of this many sectors.
fn primary_descriptor(sectors: u32) -> Vec<u8> {
    let mut bytes = padded(b"\x01CD001\x01");
    // System and volume identifier: padded with blanks, as all text here.
    bytes[8..72].fill(b' ');
    bytes[40..42].copy_from_slice(b"L1");
    bytes[80..88].copy_from_slice(&both_32(sectors));
    // One disc, the first of its set; sectors of 2048 bytes.
    for at in [120, 124] {
        bytes[at..at + 4].copy_from_slice(&both_16(1));
    }
    bytes[128..132].copy_from_slice(&both_16(SECTOR as u16));
    bytes[132..140].copy_from_slice(&both_32(PATH_TABLE as u32));
    bytes[140..144].copy_from_slice(&LITTLE_PATH_TABLE.to_le_bytes());
    bytes[148..152].copy_from_slice(&BIG_PATH_TABLE.to_be_bytes());
    let root = record(b"\0", ROOT, SECTOR as u32, true);
    bytes[156..156 + root.len()].copy_from_slice(&root);
    bytes[190..813].fill(b' ');
    // Four dates that aren't given: digits of zero and a time zone of 0.
    for date in bytes[813..881].chunks_mut(17) {
        date[..16].fill(b'0');
    }
    bytes[881] = 1;
    bytes
}

/// El Torito, figure 7.
fn boot_record() -> Vec<u8> {
    let mut bytes = padded(b"\0CD001\x01EL TORITO SPECIFICATION");
    bytes[0x47..0x4b].copy_from_slice(&BOOT_CATALOG.to_le_bytes());
    bytes
}

/// El Torito, figures 2 and 3: an 80x86 loader, no emulated disk, of which four sectors of 512 bytes
/// are loaded; isolinux loads the rest of itself.
fn boot_catalog() -> Vec<u8> {
    let mut bytes = padded(&[1]);
    bytes[0x1e..0x20].copy_from_slice(&[0x55, 0xaa]);
    // All words of the entry add up to zero.
    let words = bytes[..0x20].chunks(2);
    let sum = words.fold(0_u16, |sum, word| {
        sum.wrapping_add(u16::from_le_bytes([word[0], word[1]]))
    });
    bytes[0x1c..0x1e].copy_from_slice(&sum.wrapping_neg().to_le_bytes());
    bytes[0x20] = 0x88;
    bytes[0x26..0x28].copy_from_slice(&4_u16.to_le_bytes());
    bytes[0x28..0x2c].copy_from_slice(&FIRST_FILE.to_le_bytes());
    bytes
}

/// ECMA-119, 9.4: the entry of the root, which is its own parent.
fn path_table(root: &[u8; 4], parent: [u8; 2]) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend(root);
    bytes.extend(parent);
    padded(&bytes)
}

/// ECMA-119, 9.1 and 6.8.2.2: the root folder itself, its parent, its files in the order of their names.
fn root(files: &[CdFile<'_>], extents: &[(u32, u32)]) -> Vec<u8> {
    let mut entries: Vec<_> = files.iter().zip(extents).collect();
    entries.sort_by_key(|((name, _), _)| *name);
    let mut bytes = record(b"\0", ROOT, SECTOR as u32, true);
    bytes.extend(record(b"\x01", ROOT, SECTOR as u32, true));
    for ((name, _), (sector, len)) in entries {
        bytes.extend(record(name.as_bytes(), *sector, *len, false));
    }
    padded(&bytes)
}

/// ECMA-119, 9.1: a folder's record of a file or folder.
fn record(name: &[u8], sector: u32, len: u32, folder: bool) -> Vec<u8> {
    let size = (33 + name.len()).next_multiple_of(2);
    let mut bytes = vec![0; size];
    bytes[0] = size as u8;
    bytes[2..10].copy_from_slice(&both_32(sector));
    bytes[10..18].copy_from_slice(&both_32(len));
    // The first of January 1970.
    bytes[18..21].copy_from_slice(&[70, 1, 1]);
    bytes[25] = if folder { 2 } else { 0 };
    bytes[28..32].copy_from_slice(&both_16(1));
    bytes[32] = name.len() as u8;
    bytes[33..33 + name.len()].copy_from_slice(name);
    bytes
}

/// The loader with the table that says where it is: the descriptor's sector, its own, its length and
/// the sum of its words behind the table (the manual of mkisofs, "EL TORITO BOOT INFORMATION TABLE").
fn with_own_place(loader: &[u8]) -> Vec<u8> {
    const TABLE: usize = 8;
    const END: usize = 64;
    let mut bytes = loader.to_vec();
    let sum = bytes.get(END..).unwrap_or_default().chunks(4);
    let sum = sum.fold(0_u32, |sum, word| {
        let mut whole = [0; 4];
        whole[..word.len()].copy_from_slice(word);
        sum.wrapping_add(u32::from_le_bytes(whole))
    });
    let table = [PRIMARY_SECTOR, FIRST_FILE, loader.len() as u32, sum];
    for (i, field) in table.into_iter().enumerate() {
        if let Some(place) = bytes.get_mut(TABLE + 4 * i..TABLE + 4 * i + 4) {
            place.copy_from_slice(&field.to_le_bytes());
        }
    }
    bytes
}

/// A number in both orders of bytes (ECMA-119, 7.3.3).
fn both_32(number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// As above (7.2.3).
fn both_16(number: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (number.to_le_bytes(), number.to_be_bytes());
    [a, b, c, d]
}

/// One sector that begins with these bytes.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(SECTOR, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cd() -> Vec<u8> {
        let loader: Vec<u8> = (0..3000_u32).map(|i| i as u8).collect();
        let mut cd = Vec::new();
        write(&mut cd, &[("B.;1", &loader), ("A.;1", b"hello")]).unwrap();
        cd
    }

    fn number(bytes: &[u8]) -> u32 {
        u32::from_le_bytes(bytes[..4].try_into().unwrap())
    }

    /// Walks as a reader does: descriptor, root, record, bytes.
    fn read<'a>(cd: &'a [u8], name: &str) -> &'a [u8] {
        let descriptor = &cd[16 * SECTOR..];
        assert_eq!(&descriptor[..7], b"\x01CD001\x01");
        let mut root = &cd[number(&descriptor[158..]) as usize * SECTOR..];
        while root[0] != 0 {
            if &root[33..33 + root[32] as usize] == name.as_bytes() {
                let start = number(&root[2..]) as usize * SECTOR;
                return &cd[start..start + number(&root[10..]) as usize];
            }
            root = &root[root[0] as usize..];
        }
        panic!("no {name}");
    }

    #[test]
    fn files_are_found_by_the_descriptor_and_the_root() {
        let cd = cd();
        assert_eq!(read(&cd, "A.;1"), b"hello");
        assert_eq!(read(&cd, "B.;1").len(), 3000);
        assert_eq!(cd.len() % SECTOR, 0);
        assert_eq!(cd.len() / SECTOR, number(&cd[16 * SECTOR + 80..]) as usize);
    }

    #[test]
    fn the_boot_catalog_leads_to_the_loader_which_knows_its_place() {
        let cd = cd();
        let record = &cd[17 * SECTOR..];
        assert_eq!(&record[7..30], b"EL TORITO SPECIFICATION");
        let catalog = &cd[number(&record[0x47..]) as usize * SECTOR..];
        let words = catalog[..32].chunks(2);
        let sum = words.fold(0_u16, |sum, word| {
            sum.wrapping_add(u16::from_le_bytes([word[0], word[1]]))
        });
        assert_eq!(sum, 0);
        let loader = &cd[number(&catalog[0x28..]) as usize * SECTOR..][..3000];
        assert_eq!(loader, read(&cd, "B.;1"));
        assert_eq!(number(&loader[12..]) as usize * SECTOR, 23 * SECTOR);
        assert_eq!(number(&loader[16..]), 3000);
        let words = loader[64..].chunks(4);
        assert_eq!(
            number(&loader[20..]),
            words.map(number).fold(0, u32::wrapping_add)
        );
    }
}
