//! The drivers that a kernel has as modules, with all that they need.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use lzma_rust2::XzReader;
use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};
use ruzstd::decoding::StreamingDecoder;

/// Endings of modules' files.
const ENDINGS: [&str; 4] = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"];
/// The section in which a module names what it needs, and the words before that.
const INFO: &[u8] = b".modinfo";
const DEPENDS: &[u8] = b"depends=";

/// Modules that can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    /// The folder can't be read.
    #[error("can't read the modules in {}: {cause}", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A module's file can't be read or unpacked.
    #[error("can't read the module {}: {cause}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        cause: io::Error,
    },
    /// A module needs another one that isn't there.
    #[error(
        "the module {module} needs {needs}, which isn't in {}: are these the modules of the kernel that is booted?",
        .folder.display()
    )]
    Missing {
        /// The module.
        module: String,
        /// What it needs.
        needs: String,
        /// Where modules are looked for.
        folder: PathBuf,
    },
}

/// The modules in a folder.
pub struct Modules {
    folder: PathBuf,
    /// Each module's file, by its name with `_` for `-`, as kernels take both for the same.
    files: BTreeMap<String, PathBuf>,
}

/// A module, unpacked.
pub struct Module {
    /// Its name.
    pub name: String,
    /// The ELF file.
    pub bytes: Vec<u8>,
}

impl Modules {
    /// Finds all modules in a folder such as `/lib/modules/RELEASE`.
    ///
    /// # Errors
    /// It can't be read.
    pub fn find(folder: &Path) -> Result<Self, ModulesError> {
        let mut files = BTreeMap::new();
        find(folder, &mut files).map_err(|cause| ModulesError::Folder {
            folder: folder.to_owned(),
            cause,
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            files,
        })
    }

    /// Reads the modules of `names` that there are, each behind the ones that it needs: the order in which to load
    /// them. The kernel has the others built in, or not at all.
    ///
    /// # Errors
    /// One can't be read, or needs one that isn't there.
    pub fn with_needs(&self, names: &[&str]) -> Result<Vec<Module>, ModulesError> {
        let mut found = Vec::new();
        for name in names {
            if self.files.contains_key(*name) {
                self.add(name, &mut Vec::new(), &mut found)?;
            }
        }
        Ok(found)
    }

    /// Adds a module behind what it needs. `above` are those that are being added.
    fn add(
        &self,
        name: &str,
        above: &mut Vec<String>,
        found: &mut Vec<Module>,
    ) -> Result<(), ModulesError> {
        let is_there = found.iter().any(|module| module.name == name);
        // Modules that need each other can't be loaded anyway.
        if is_there || above.iter().any(|other| other == name) {
            return Ok(());
        }
        let Some(file) = self.files.get(name) else {
            return Err(ModulesError::Missing {
                module: above.last().cloned().unwrap_or_default(),
                needs: name.to_owned(),
                folder: self.folder.clone(),
            });
        };
        let failed = |cause| ModulesError::File {
            file: file.clone(),
            cause,
        };
        let bytes = unpacked(file).map_err(failed)?;
        let needs = needs(&bytes).map_err(failed)?;
        above.push(name.to_owned());
        for need in needs {
            self.add(&need, above, found)?;
        }
        above.pop();
        found.push(Module {
            name: name.to_owned(),
            bytes,
        });
        Ok(())
    }
}

fn find(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        // Links lead to where the kernel was built.
        if entry.file_type()?.is_dir() {
            find(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let name = ENDINGS
        .iter()
        .find_map(|ending| file.strip_suffix(ending))?;
    Some(name.replace('-', "_"))
}

/// Reads a module's ELF file, and unpacks it.
fn unpacked(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => XzReader::new(file, true).read_to_end(&mut bytes)?,
        Some("zst") => {
            let unpack = StreamingDecoder::new(file).map_err(io::Error::other)?;
            { unpack }.read_to_end(&mut bytes)?
        }
        Some("gz") => GzDecoder::new(file).read_to_end(&mut bytes)?,
        _ => { file }.read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

/// Returns the names of the modules that a module needs.
fn needs(module: &[u8]) -> io::Result<Vec<String>> {
    let info = section(module, INFO).map_err(io::Error::other)?;
    let info = info.unwrap_or_default();
    let named = info
        .split(|byte| *byte == 0)
        .find_map(|text| text.strip_prefix(DEPENDS));
    let named = String::from_utf8_lossy(named.unwrap_or_default());
    let names = named.split(',').filter(|name| !name.is_empty());
    Ok(names.map(|name| name.replace('-', "_")).collect())
}

fn section<'f>(file: &'f [u8], name: &[u8]) -> object::Result<Option<&'f [u8]>> {
    let header = FileHeader64::<LittleEndian>::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    match sections.section_by_name(endian, name) {
        Some((_, section)) => section.data(endian, file).map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    /// Makes an ELF file with one section, `.modinfo`.
    fn module(depends: &str) -> Vec<u8> {
        let info = format!("license=GPL\0depends={depends}\0name=x\0");
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut file = vec![0; 64];
        file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        file[16..18].copy_from_slice(&1u16.to_le_bytes());
        file[18..20].copy_from_slice(&62u16.to_le_bytes());
        let (info_at, names_at) = (64u64, 64 + info.len() as u64);
        file.extend(info.as_bytes());
        file.extend(names);
        let sections_at = file.len() as u64;
        file[40..48].copy_from_slice(&sections_at.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&3u16.to_le_bytes());
        file[62..64].copy_from_slice(&2u16.to_le_bytes());
        for (name, kind, at, len) in [
            (0u32, 0u32, 0, 0),
            (1, 1, info_at, info.len() as u64),
            (10, 3, names_at, names.len() as u64),
        ] {
            let mut section = vec![0; 64];
            section[..4].copy_from_slice(&name.to_le_bytes());
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&at.to_le_bytes());
            section[32..40].copy_from_slice(&len.to_le_bytes());
            file.extend(section);
        }
        file
    }

    fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        folder
    }

    fn names(folder: &Path, wanted: &[&str]) -> Result<Vec<String>, ModulesError> {
        let found = Modules::find(folder)?.with_needs(wanted)?;
        Ok(found.into_iter().map(|module| module.name).collect())
    }

    #[test]
    fn modules_come_behind_those_that_they_need_and_each_once() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&module("virtio-ring")).unwrap();
        let folder = folder(&[
            ("kernel/fs/virtiofs.ko", module("fuse,virtio")),
            ("kernel/fs/fuse.ko", module("")),
            ("kernel/drivers/virtio.ko.gz", gzip.finish().unwrap()),
            ("kernel/drivers/virtio-ring.ko", module("")),
            ("modules.dep", b"not looked at".to_vec()),
        ]);
        let found = names(folder.path(), &["virtiofs", "virtio", "built_in"]).unwrap();
        assert_eq!(found, ["fuse", "virtio_ring", "virtio", "virtiofs"]);
    }

    #[test]
    fn a_module_whose_needs_are_missing_or_that_is_none_is_named() {
        let folder = folder(&[
            ("a.ko", module("b")),
            ("c.ko", b"no ELF file".to_vec()),
            ("d.ko", module("d")),
        ]);
        assert!(matches!(
            names(folder.path(), &["a"]),
            Err(ModulesError::Missing { .. })
        ));
        assert!(matches!(
            names(folder.path(), &["c"]),
            Err(ModulesError::File { .. })
        ));
        assert_eq!(names(folder.path(), &["d"]).unwrap(), ["d"]);
        let missing = folder.path().join("missing");
        assert!(matches!(
            names(&missing, &["a"]),
            Err(ModulesError::Folder { .. })
        ));
    }
}
