//! Bodies of code in which a probe can be placed: the kernel image, and each loaded module.

use std::sync::Arc;

use guest_kernel::Kernel;
use guest_kernel::blacklist::{Blacklist, Patched};
use guest_kernel::kprobes::GuestKprobes;
use guest_kernel::symbols::Symbols;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError};

use crate::engine::sites::table::Table;
use crate::error::RegisterError;
use crate::probe::Place;

/// The name of the module that text belongs to.
pub(crate) type ModuleName = Arc<str>;

/// The function that a place is in.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) start: GuestVirtAddr,
    pub(crate) size: u64,
    /// The place's offset from `start`.
    pub(crate) offset: u64,
}

/// See the module's text.
pub(crate) trait Body {
    /// Its name; `None` for the kernel.
    fn module(&self) -> Option<ModuleName>;

    /// The function that a place is in.
    fn function(&self, place: &Place) -> Result<Function, RegisterError>;

    /// Text as it is without our breakpoints and the guest's kprobes; fewer than `len` bytes where the body ends
    /// before. `None` outside.
    fn text(&self, at: GuestVirtAddr, len: usize) -> Option<Result<Vec<u8>, MemoryError>>;

    /// Where an address of the body is in guest memory.
    fn phys(&self, at: GuestVirtAddr) -> Option<GuestPhysAddr>;

    /// The guest's kprobes.
    fn kprobes(&self) -> &GuestKprobes;

    /// The parts of it that can't be probed.
    fn blacklist(&self) -> &Blacklist;

    /// Returns true if the blacklist has all ftrace sites.
    fn has_ftrace_table(&self) -> bool;

    /// Returns true if the kernel has made its changes to the text that it makes only once.
    fn is_started(&self) -> bool;

    /// Returns true if the kernel has a fix-up for a fault of the instruction there.
    fn expects_fault(&self, at: GuestVirtAddr) -> bool;

    /// Returns true if an int3 there is the text's own, and no breakpoint.
    fn is_own_int3(&self, at: GuestVirtAddr) -> bool;
}

/// The kernel image.
pub(crate) struct KernelBody<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) table: &'a Table,
    pub(crate) memory: &'a dyn GuestMemory,
    pub(crate) kprobes: &'a GuestKprobes,
}

impl Body for KernelBody<'_> {
    fn module(&self) -> Option<ModuleName> {
        None
    }

    fn function(&self, place: &Place) -> Result<Function, RegisterError> {
        let symbols = &self.kernel.symbols;
        let function = function(symbols, place)?;
        let address = function.start.wrapping_add(function.offset);
        let place = place.to_string();
        if self.table.init_freed && symbols.init_text().contains(&address) {
            return Err(RegisterError::InitTextFreed { place });
        }
        Ok(function)
    }

    fn text(&self, at: GuestVirtAddr, len: usize) -> Option<Result<Vec<u8>, MemoryError>> {
        self.table.text_below(self.memory, self.kprobes, at, len)
    }

    fn phys(&self, at: GuestVirtAddr) -> Option<GuestPhysAddr> {
        let (phys, _) = self.table.image.to_phys(at)?;
        Some(phys)
    }

    fn kprobes(&self) -> &GuestKprobes {
        self.kprobes
    }

    fn blacklist(&self) -> &Blacklist {
        &self.kernel.blacklist
    }

    fn has_ftrace_table(&self) -> bool {
        self.kernel.has_ftrace
    }

    fn is_started(&self) -> bool {
        self.table.init_freed
    }

    fn expects_fault(&self, at: GuestVirtAddr) -> bool {
        self.kernel.exceptions.contains(at)
    }

    fn is_own_int3(&self, at: GuestVirtAddr) -> bool {
        // Patched text differs from the image: a byte there that is an int3 in the image may be one of a displacement.
        let mut around = self.blacklist().overlapping(at..at.wrapping_add(1));
        let is_patched = around.any(|entry| entry.reason.patched() != Patched::Never);
        self.kernel.int3s.contains(at) && !is_patched
    }
}

fn function(symbols: &Symbols, place: &Place) -> Result<Function, RegisterError> {
    let not_text = |address| RegisterError::NotText {
        place: place.to_string(),
        address,
    };
    match place {
        Place::Symbol { name, offset, .. } => {
            let start = symbols.find(name)?.address;
            let overflow = || RegisterError::AddressOverflow {
                place: place.to_string(),
            };
            start.checked_add(*offset).ok_or_else(overflow)?;
            if !symbols.is_text(start) {
                return Err(not_text(start));
            }
            let size = symbols.resolve(start).ok_or_else(|| not_text(start))?.size;
            if *offset >= size {
                let (place, symbol) = (place.to_string(), name.clone());
                return Err(RegisterError::OutsideSymbol {
                    place,
                    symbol,
                    size,
                });
            }
            Ok(Function {
                name: name.clone(),
                start,
                size,
                offset: *offset,
            })
        }
        Place::Address(address) => {
            let within = symbols
                .resolve(*address)
                .filter(|within| {
                    symbols.is_text(*address) && symbols.is_text(within.symbol.address)
                })
                .ok_or_else(|| not_text(*address))?;
            Ok(Function {
                name: within.symbol.name.to_owned(),
                start: within.symbol.address,
                size: within.size,
                offset: within.offset,
            })
        }
    }
}
