//! Every form of instruction in a kernel's text, with samples.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use guest_kernel::symbols::{Symbols, SymbolsError};
use object::{Object, ObjectSegment};
use seeded_random::Random;
use vmm::boot::bzimage::{KernelFileError, read_kernel};

use crate::forms::{Form, form};

/// Encodings kept of each form.
const SAMPLES: usize = 4;

/// Why a kernel has no forms to show.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// It can't be read.
    #[error("can't read the kernel: {0}")]
    Read(#[from] std::io::Error),
    /// It is no kernel.
    #[error(transparent)]
    Kernel(#[from] KernelFileError),
    /// It isn't an ELF file after all.
    #[error("can't find the kernel's segments: {0}")]
    Segments(#[from] object::Error),
    /// Its functions aren't known.
    #[error(transparent)]
    Symbols(#[from] SymbolsError),
}

/// A form, as it occurs.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// How often.
    pub count: u64,
    /// Some of its encodings.
    pub samples: Vec<Vec<u8>>,
}

/// The forms of a kernel's text, and its size.
#[derive(Debug, Clone, Default)]
pub struct Text {
    /// Functions decoded.
    pub functions: usize,
    /// Instructions in them.
    pub instructions: u64,
    /// Their forms.
    pub forms: BTreeMap<Form, Seen>,
}

/// Decodes all functions of a bzImage's or vmlinux' text, each from its symbol to the next.
///
/// # Errors
/// See [`TextError`].
pub fn text(kernel: &Path, random: &mut Random) -> Result<Text, TextError> {
    let elf = read_kernel(std::fs::read(kernel)?)?.elf;
    let symbols = Symbols::from_vmlinux(&elf)?;
    let file = object::read::elf::ElfFile64::<object::LittleEndian>::parse(&*elf)?;
    let segments: Vec<(u64, &[u8])> = file
        .segments()
        .map(|segment| Ok((segment.address(), segment.data()?)))
        .collect::<Result<_, object::Error>>()?;
    let bytes_at = |at: u64, len: u64| {
        segments.iter().find_map(|(start, data)| {
            let from = usize::try_from(at.checked_sub(*start)?).ok()?;
            data.get(from..from.checked_add(usize::try_from(len).ok()?)?)
        })
    };
    let mut found = Text::default();
    let mut forms: HashMap<Form, Seen> = HashMap::new();
    let mut last = 0;
    for symbol in symbols.iter() {
        let at = symbol.address;
        let is_function = matches!(symbol.kind, 't' | 'T' | 'w' | 'W');
        if !is_function || !symbols.is_text(at) || at.0 == last {
            continue;
        }
        last = at.0;
        let Some(size) = symbols.resolve(at).map(|within| within.size) else {
            continue;
        };
        let Some(bytes) = bytes_at(at.0, size) else {
            continue;
        };
        found.functions += 1;
        let mut offset = 0;
        while let Some((form, insn)) = form(&bytes[offset..], at.0 + offset as u64) {
            let seen = forms.entry(form).or_default();
            let code = &bytes[offset..offset + insn.len()];
            seen.add(code, random);
            found.instructions += 1;
            offset += insn.len();
        }
    }
    found.forms = forms.into_iter().collect();
    Ok(found)
}

impl Seen {
    /// Adds an encoding, such that each one is kept with the same probability.
    fn add(&mut self, code: &[u8], random: &mut Random) {
        self.count += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(code.to_vec());
        } else {
            let slot = random.below(self.count) as usize;
            if let Some(sample) = self.samples.get_mut(slot) {
                *sample = code.to_vec();
            }
        }
    }
}
