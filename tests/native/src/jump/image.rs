//! Functions, moved below 2 GiB: a kernel's, and those of `sample.c`.

use std::path::Path;
use std::process::Command;

use guest_kernel::symbols::Symbols;
use object::{Object, ObjectSegment, ObjectSymbol};
use vmm::boot::bzimage::read_kernel;

use super::text::Text;

/// Room behind the image.
const ROOM: usize = 1 << 20;

/// Why there is nothing to probe.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file can't be read or written, or memory be had.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// No kernel is in the file.
    #[error(transparent)]
    Kernel(#[from] vmm::boot::bzimage::KernelFileError),
    /// It isn't an ELF file.
    #[error(transparent)]
    Format(#[from] object::Error),
    /// Its functions aren't known.
    #[error(transparent)]
    Symbols(#[from] guest_kernel::symbols::SymbolsError),
    /// The C compiler, which linking Rust programs takes too, has failed.
    #[error("cc can't compile sample.c: {0}")]
    Compiler(String),
}

/// A function in an image.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its offset in the text.
    pub at: usize,
    /// Bytes to the next symbol.
    pub len: usize,
}

/// An image whose parts keep their distances.
pub struct Image {
    /// Its memory.
    pub text: Text,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its functions.
    pub functions: Vec<Function>,
}

impl Image {
    /// Reads a kernel as it is before it starts, without its own patches.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn of_kernel(vmlinuz: &Path) -> Result<Self, ImageError> {
        /// Where kernels are linked to (`Documentation/arch/x86/x86_64/mm.rst`); below are only the
        /// per-CPU variables.
        const KERNEL: u64 = 0xffff_ffff_8000_0000;
        let elf = read_kernel(std::fs::read(vmlinuz)?)?.elf;
        let symbols = Symbols::from_vmlinux(&elf)?;
        let named = symbols.iter().filter_map(|symbol| {
            let size = symbols.resolve(symbol.address)?.size;
            let is_function = matches!(symbol.kind, 't' | 'T' | 'w' | 'W');
            is_function.then(|| (symbol.name.to_owned(), symbol.address.0, size))
        });
        Self::new(&elf, KERNEL, named)
    }

    /// Compiles `sample.c` with this level of optimization.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn of_sample(level: &str) -> Result<Self, ImageError> {
        let name = format!("vmprobe-sample-{}{level}.so", std::process::id());
        let path = std::env::temp_dir().join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/jump/sample.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-nostdlib", "-ffreestanding", "-fPIC", level])
            // With the options of kernels (`arch/x86/Makefile`).
            .args(["-mno-red-zone", "-mgeneral-regs-only", "-fno-jump-tables"])
            .args(["-fvisibility=hidden", "-fno-stack-protector", "-o"])
            .args([&path, &source])
            .output()?;
        if !compiled.status.success() {
            let output = String::from_utf8_lossy(&compiled.stderr).into_owned();
            return Err(ImageError::Compiler(output));
        }
        let elf = std::fs::read(&path)?;
        std::fs::remove_file(&path)?;
        let file = object::File::parse(&*elf)?;
        let named: Vec<_> = file
            .symbols()
            .filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.size() > 0)
            .map(|symbol| {
                let name = symbol.name().unwrap_or_default().to_owned();
                (name, symbol.address(), symbol.size())
            })
            .collect();
        Self::new(&elf, 0, named.into_iter())
    }

    fn new(
        elf: &[u8],
        lowest: u64,
        named: impl Iterator<Item = (String, u64, u64)>,
    ) -> Result<Self, ImageError> {
        let file = object::File::parse(elf)?;
        let segments = || {
            file.segments()
                .filter(|segment| segment.address() >= lowest)
        };
        let start = segments().map(|segment| segment.address()).min();
        let end = segments()
            .map(|segment| segment.address() + segment.size())
            .max();
        let (start, end) = (start.unwrap_or(0), end.unwrap_or(0));
        let mut bytes = vec![0; (end - start) as usize];
        for segment in segments() {
            let at = (segment.address() - start) as usize;
            let data = segment.data()?;
            bytes[at..at + data.len()].copy_from_slice(data);
        }
        let mut text = Text::new(bytes.len() + ROOM)?;
        text.put(0, &bytes);
        let functions = named
            .filter(|(_, address, _)| (start..end).contains(address))
            .map(|(name, address, size)| Function {
                name,
                at: (address - start) as usize,
                len: size as usize,
            })
            .collect();
        Ok(Self {
            text,
            bytes,
            functions,
        })
    }

    /// Returns the offset of the room for detours.
    pub fn room(&self) -> usize {
        self.bytes.len()
    }
}
