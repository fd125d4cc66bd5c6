//! Everything that is read from a kernel's image.

use std::sync::Arc;

use thiserror::Error;

use crate::banner;
use crate::blacklist::{Blacklist, BlacklistError, ExceptionTable, ImageTables, Landings};
use crate::btf::{Btf, BtfError};
use crate::clock::Clock;
use crate::context::ReschedBits;
use crate::image::{Image, ImageError};
use crate::int3s::Int3s;
use crate::kprobes::KprobeReader;
use crate::modules::ModuleReader;
use crate::percpu::Variables;
use crate::symbols::{GivenError, GivenSymbols, Symbols, SymbolsError};
use crate::unwind::{OrcError, Unwinder};

/// A kernel's symbols and tables.
#[derive(Debug)]
pub struct Kernel {
    /// Its banner: the release, who built it and when. Empty if the image has no banner.
    pub version: String,
    /// Its symbols.
    pub symbols: Symbols,
    /// Its types; `None` if it was built without BTF (`CONFIG_DEBUG_INFO_BTF`).
    pub types: Option<Arc<Btf>>,
    /// What in it can't be probed.
    pub blacklist: Blacklist,
    /// The instructions whose faults it has fix-ups for.
    pub exceptions: ExceptionTable,
    /// The int3s in its text.
    pub int3s: Int3s,
    /// Where execution continues according to its tables.
    pub landings: Landings,
    /// How to find its modules, or why that can't be done.
    pub modules: Result<ModuleReader, String>,
    /// How to find the guest's own kprobes; `None` if the kernel has none, or they can't be found.
    pub kprobes: Option<KprobeReader>,
    /// The offsets of per-CPU variables and of members of a task.
    pub variables: Variables,
    /// Where the kernel has the clock of its log; `None` where symbols or types don't tell.
    pub clock: Option<Clock>,
    /// Which flags of a task ask it to give the CPU up.
    pub resched: ReschedBits,
    /// True if the blacklist contains all ftrace sites.
    pub has_ftrace: bool,
    /// How to unwind its stacks, or why that can't be done. Knows no modules yet.
    pub unwind: Result<Unwinder, OrcError>,
}

/// Why a kernel can't be read.
#[derive(Debug, Error)]
pub enum KernelError {
    /// Not a vmlinux.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It has no symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolsError),
    /// The symbols that were given aren't its own.
    #[error(transparent)]
    Given(#[from] GivenError),
    /// Its tables of what it patches are damaged.
    #[error(transparent)]
    Tables(#[from] BlacklistError),
    /// Its types are damaged.
    #[error(transparent)]
    Types(#[from] BtfError),
}

impl Kernel {
    /// Reads everything from an uncompressed vmlinux, stripped or not. Takes some
    /// tens of milliseconds.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub fn from_image(file: &[u8]) -> Result<Self, KernelError> {
        let image = Image::parse(file)?;
        let symbols = Symbols::from_image(&image)?;
        Self::new(&image, symbols)
    }

    /// As [`Self::from_image`], with symbols that were given beside the vmlinux, whether it has any
    /// itself or not.
    ///
    /// # Errors
    /// Also if the symbols are another kernel's.
    pub fn with_symbols(file: &[u8], given: GivenSymbols) -> Result<Self, KernelError> {
        let image = Image::parse(file)?;
        let symbols = given.of_image(&image)?;
        Self::new(&image, symbols)
    }

    fn new(image: &Image<'_>, symbols: Symbols) -> Result<Self, KernelError> {
        let btf = Btf::from_image(image, &symbols)?;
        let tables = ImageTables::of(image, &symbols, btf.as_ref())?;
        let (blacklist, exceptions) = (tables.blacklist()?, tables.exceptions()?);
        let landings = tables.landings()?;
        let int3s = Int3s::find(image, [symbols.text(), symbols.init_text()]);
        let modules = match &btf {
            Some(btf) => ModuleReader::new(btf, &symbols).map_err(|error| error.to_string()),
            None => Err("the kernel was built without BTF (CONFIG_DEBUG_INFO_BTF)".to_owned()),
        };
        let kprobes = btf
            .as_ref()
            .and_then(|btf| KprobeReader::new(btf, &symbols).ok());
        let kprobes = kprobes.flatten();
        let variables = Variables::find(&symbols, btf.as_ref());
        let clock = btf.as_ref().and_then(|btf| Clock::find(&symbols, btf));
        let version = banner::version(image, &symbols).unwrap_or_default();
        let unwind = Unwinder::from_image(image, &symbols, btf.as_ref());
        let has_ftrace = symbols.by_name("__start_mcount_loc").next().is_some();
        Ok(Self {
            resched: ReschedBits::of(&version),
            version,
            symbols,
            types: btf.map(Arc::new),
            blacklist,
            exceptions,
            int3s,
            landings,
            modules,
            kprobes,
            variables,
            clock,
            has_ftrace,
            unwind,
        })
    }

    /// Makes a kernel of which only the symbols are known: no place in it is refused for its kind,
    /// and modules can't be probed.
    pub fn from_symbols(symbols: Symbols) -> Self {
        Self {
            version: String::new(),
            unwind: Ok(Unwinder::by_frame_pointers(&symbols)),
            symbols,
            types: None,
            blacklist: Blacklist::default(),
            exceptions: ExceptionTable::default(),
            int3s: Int3s::default(),
            landings: Landings::default(),
            kprobes: None,
            modules: Err("only its symbols are known".to_owned()),
            variables: Variables::default(),
            clock: None,
            resched: ReschedBits::default(),
            has_ftrace: false,
        }
    }
}
