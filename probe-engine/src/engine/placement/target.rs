//! Finds what a probe is asked for in a stopped guest: an instruction, or data, or a module to wait for.

use guest_kernel::kprobes::GuestKprobes;
use guest_state::{Access, DebuggingError, GuestVirtAddr, StoppedGuest, Watchpoint};

use crate::engine::Engine;
use crate::engine::placement::body::KernelBody;
use crate::engine::placement::loaded::LoadedModules;
use crate::engine::placement::locate::Located;
use crate::engine::placement::walk::Walks;
use crate::engine::sites::probe::Spot;
use crate::engine::sites::table::Table;
use crate::error::RegisterError;
use crate::probe::{Place, ProbeKind, ProbeSpec, Strategy};

/// The longest name of a probe, in characters.
const MAX_NAME: usize = 128;
/// The values of symbols below this are per-CPU offsets: no address of the kernel is so low.
const LOWEST_KERNEL_ADDRESS: u64 = 0xffff_8000_0000_0000;

/// What a probe was asked for, as it was found.
pub(crate) enum Target {
    Instruction(Box<Located>),
    Data(Spot),
    /// In a module that isn't loaded.
    Later(Spot),
}

/// Finds targets.
pub(crate) struct Finder<'a> {
    engine: &'a Engine,
    kernel: KernelBody<'a>,
    modules: LoadedModules<'a>,
    walks: Walks,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        guest: &'a dyn StoppedGuest,
        table: &'a Table,
        kprobes: &'a GuestKprobes,
    ) -> Self {
        Self {
            engine,
            kernel: KernelBody {
                kernel: &engine.kernel,
                table,
                memory: guest.memory(),
                kprobes,
            },
            modules: engine.loaded_modules(guest),
            walks: Walks::default(),
        }
    }

    /// The kernel in which it looks.
    pub(crate) fn kernel(&self) -> &KernelBody<'a> {
        &self.kernel
    }

    /// Finds what a probe is asked for.
    pub(crate) fn find(&mut self, spec: &ProbeSpec) -> Result<Target, RegisterError> {
        let (place, kind) = (&spec.place, spec.kind);
        if let ProbeKind::Watch { len, access } = kind {
            return Ok(Target::Data(self.data(place, len, access)?));
        }
        let at_exits = matches!(kind, ProbeKind::Exits { .. });
        let in_module = || RegisterError::Exits {
            place: place.to_string(),
            why: "it is in a module".to_owned(),
        };
        let loaded = match place {
            Place::Symbol {
                module: Some(_), ..
            } if at_exits => return Err(in_module()),
            Place::Symbol {
                module: Some(module),
                ..
            } => match self.modules.find(module)? {
                Some(loaded) => Some(loaded),
                None => return Ok(Target::Later(later(place))),
            },
            Place::Symbol { module: None, .. } => None,
            Place::Address(at) if self.engine.kernel.symbols.is_text(*at) => None,
            Place::Address(at) => self.modules.around(*at)?,
        };
        let (engine, kernel) = (self.engine, &self.kernel);
        let (memory, walks) = (kernel.memory, &mut self.walks);
        let located = match loaded {
            Some(_) if at_exits => return Err(in_module()),
            Some(loaded) => {
                let body = loaded.body(memory, kernel.table, kernel.kprobes);
                engine.locate_among(walks, memory, &body, place, kind)?
            }
            None => {
                let mut located = engine.locate_among(walks, memory, kernel, place, kind)?;
                if at_exits {
                    let (out, exits) = engine.ways_out(walks, memory, kernel, place, &located)?;
                    (located.spot.out, located.exits) = (Some(out), exits);
                }
                located
            }
        };
        Ok(Target::Instruction(located.into()))
    }

    /// Finds the data that a watchpoint is asked for on.
    fn data(&self, place: &Place, len: u8, access: Access) -> Result<Spot, RegisterError> {
        let shown = place.to_string();
        let symbols = &self.engine.kernel.symbols;
        let (address, symbol, offset) = match place {
            Place::Address(address) => {
                let found = symbols.resolve(*address);
                match found {
                    Some(found) => (*address, found.symbol.name.to_owned(), found.offset),
                    None => (*address, String::new(), 0),
                }
            }
            Place::Symbol {
                module: Some(_), ..
            } => return Err(RegisterError::WatchModule { place: shown }),
            Place::Symbol { name, offset, .. } => {
                let start = symbols.find(name)?.address;
                let place = shown.clone();
                let address = start
                    .checked_add(*offset)
                    .ok_or(RegisterError::AddressOverflow { place })?;
                if address.0 < LOWEST_KERNEL_ADDRESS {
                    return Err(RegisterError::WatchPerCpu {
                        place: shown,
                        offset: address.0,
                    });
                }
                (address, name.clone(), *offset)
            }
        };
        let watchpoint = Watchpoint {
            address,
            len,
            access,
        };
        watchpoint.check().map_err(|error| match error {
            DebuggingError::Misaligned { address, len } => RegisterError::WatchAlignment {
                place: shown,
                address,
                len,
            },
            _ => RegisterError::WatchLength { place: shown, len },
        })?;
        Ok(Spot {
            address,
            symbol,
            offset,
            instruction: String::new(),
            strategy: Strategy::Watch,
            reason: "a debug register of every vCPU watches it".to_owned(),
            beyond_entry: None,
            out: None,
        })
    }
}

impl Target {
    pub(crate) fn spot(&self) -> &Spot {
        match self {
            Self::Instruction(located) => &located.spot,
            Self::Data(spot) | Self::Later(spot) => spot,
        }
    }

    /// Returns the name that the probe gets.
    pub(crate) fn name(&self, spec: &ProbeSpec) -> Result<String, RegisterError> {
        let spot = self.spot();
        let name = match (&spec.name, &spec.place) {
            (Some(name), _) => name.clone(),
            (None, place) => {
                let at = match place {
                    // The name is the same whether the module is loaded or not.
                    Place::Symbol {
                        module: Some(module),
                        offset,
                        ..
                    } => format!("{module}:{}+{offset:#x}", spot.symbol),
                    Place::Symbol { module: None, .. } => {
                        format!("{}+{:#x}", spot.symbol, spot.offset)
                    }
                    Place::Address(address) => address.to_string(),
                };
                match spec.kind {
                    ProbeKind::Instruction { .. } => at,
                    ProbeKind::Return { .. } | ProbeKind::Exits { .. } => format!("{at}%return"),
                    ProbeKind::Watch { len, .. } => format!("{at}/{len}"),
                }
            }
        };
        let bad = |c: char| c.is_whitespace() || c.is_control();
        // A default name is as long as the symbol's.
        let too_long = spec.name.is_some() && name.chars().count() > MAX_NAME;
        if name.is_empty() || too_long || name.contains(bad) {
            return Err(RegisterError::BadName { name });
        }
        Ok(name)
    }
}

/// Returns the place where a probe in a module will be, as far as it is known.
fn later(place: &Place) -> Spot {
    let (symbol, offset) = match place {
        Place::Symbol { name, offset, .. } => (name.clone(), *offset),
        Place::Address(_) => (String::new(), 0),
    };
    Spot {
        address: GuestVirtAddr(0),
        symbol,
        offset,
        instruction: String::new(),
        strategy: Strategy::Emulate,
        reason: "its module is not loaded yet".to_owned(),
        beyond_entry: Some(offset).filter(|offset| *offset != 0),
        out: None,
    }
}
