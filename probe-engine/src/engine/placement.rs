//! From what a user asks for to an instruction, or the reason why not.

use super::Engine;
use super::table::{INT3, Site, Table, Way};
use crate::addr::GuestVirtAddr;
use crate::emulate::{Touched, compile};
use crate::error::RegisterError;
use crate::guest::GuestMemory;
use crate::insn::{self, Code, MAX_LEN};
use crate::probe::{Place, Strategy};
use crate::symbols::Symbols;

/// The nop that stands in for the call to `__fentry__` while a function isn't
/// traced (`arch/x86/include/asm/nops.h`, `BYTES_NOP5`).
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// `call rel32`
const CALL: u8 = 0xe8;
/// Where the calls at ftrace sites go (`arch/x86/kernel/ftrace_64.S`), if not
/// to a trampoline outside the image.
const TRACERS: [&str; 3] = ["__fentry__", "ftrace_caller", "ftrace_regs_caller"];

/// An instruction that can be probed.
pub(super) struct Spot {
    /// With no probes yet.
    pub(super) site: Site,
    pub(super) symbol: String,
    pub(super) offset: u64,
    pub(super) instruction: String,
    pub(super) strategy: Strategy,
    pub(super) reason: &'static str,
}

/// The function that is asked for.
struct Function {
    name: String,
    start: GuestVirtAddr,
    size: u64,
    /// What is asked for, from `start`.
    offset: u64,
}

impl Engine {
    /// Finds the instruction at `place` in the text as it is without our
    /// breakpoints.
    pub(super) fn locate(
        &self,
        table: &Table,
        init_freed: bool,
        memory: &dyn GuestMemory,
        place: &Place,
    ) -> Result<Spot, RegisterError> {
        let function = function(&self.symbols, place)?;
        let start = function.start;
        let address = start.wrapping_add(function.offset);
        if init_freed && self.symbols.init_text().contains(&address) {
            return Err(RegisterError::InitTextFreed {
                place: place.to_string(),
            });
        }
        if table.image.is_none() {
            return Err(RegisterError::ImageUnknown {
                place: place.to_string(),
            });
        }
        let not_loaded = || RegisterError::NotLoaded {
            place: place.to_string(),
            address,
        };
        // Room for the asked instruction, and for the entry when that is asked for.
        let wanted = usize::try_from(function.offset).map_err(|_| not_loaded())? + 3 * MAX_LEN;
        let bytes = table.text(memory, start, wanted).ok_or_else(not_loaded)??;

        let entry = entry_len(&self.symbols, &bytes, start);
        let by_name = matches!(place, Place::Symbol { offset: 0, .. });
        let offset = if by_name {
            entry.len as u64
        } else {
            function.offset
        };
        if offset >= function.size {
            return Err(RegisterError::EmptyFunction {
                symbol: function.name,
            });
        }
        if offset < entry.len as u64 {
            return Err(RegisterError::ReservedEntry {
                place: place.to_string(),
                what: if offset < entry.endbr as u64 {
                    "endbr64"
                } else {
                    "ftrace site"
                },
                next: start.wrapping_add(entry.len as u64),
            });
        }
        let walk = Walk {
            place,
            bytes: &bytes,
            start,
        };
        let code = walk.reach(entry.len, offset as usize)?;
        let address = start.wrapping_add(offset);
        let (phys, _) = table
            .image
            .as_ref()
            .and_then(|image| image.to_phys(address))
            .ok_or_else(not_loaded)?;
        let (way, strategy, reason) = way(&code);
        let site = Site {
            virt: address,
            phys,
            original: *bytes.get(offset as usize).ok_or_else(not_loaded)?,
            way,
            probes: Vec::new(),
            milestone: false,
        };
        let instruction = insn::text(&code.insn);
        Ok(Spot {
            site,
            symbol: function.name,
            offset,
            instruction,
            strategy,
            reason,
        })
    }
}

fn function(symbols: &Symbols, place: &Place) -> Result<Function, RegisterError> {
    let not_text = |address| RegisterError::NotText {
        place: place.to_string(),
        address,
    };
    match place {
        Place::Symbol { name, offset } => {
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

/// Lengths of what a function begins with and a probe must not touch.
struct Entry {
    endbr: usize,
    /// With the ftrace site.
    len: usize,
}

fn entry_len(symbols: &Symbols, bytes: &[u8], start: GuestVirtAddr) -> Entry {
    let endbr = match insn::decode(bytes, start) {
        Ok(code) if insn::is_endbr(&code.insn) => code.insn.len(),
        _ => 0,
    };
    let site = bytes.get(endbr..endbr + NOP5.len());
    let traced = site.is_some_and(|site| {
        is_ftrace_site(
            symbols,
            site,
            start.wrapping_add((endbr + NOP5.len()) as u64),
        )
    });
    Entry {
        endbr,
        len: endbr + if traced { NOP5.len() } else { 0 },
    }
}

/// Whether these five bytes, which end at `end`, are what ftrace patches: the
/// nop, also half-way into being patched, or a call to a tracer.
fn is_ftrace_site(symbols: &Symbols, site: &[u8], end: GuestVirtAddr) -> bool {
    match site {
        [first, rest @ ..] if rest == &NOP5[1..] => [NOP5[0], INT3].contains(first),
        [CALL, a, b, c, d] => {
            let by = i32::from_le_bytes([*a, *b, *c, *d]);
            let target = end.wrapping_add(i64::from(by).cast_unsigned());
            let tracer = |symbol: &str| TRACERS.contains(&symbol);
            !symbols.is_text(target)
                || symbols
                    .resolve(target)
                    .is_some_and(|to| tracer(to.symbol.name))
        }
        _ => false,
    }
}

/// Linear decoding through one function.
struct Walk<'a> {
    place: &'a Place,
    bytes: &'a [u8],
    start: GuestVirtAddr,
}

impl Walk<'_> {
    /// The instruction at offset `to`, by way of all between it and `from`.
    fn reach(&self, from: usize, to: usize) -> Result<Code, RegisterError> {
        let place = || self.place.to_string();
        let mut at = from;
        // After a return or jump an int3 is padding (`CONFIG_SLS`); elsewhere it
        // hides an instruction of unknown length.
        let mut reachable = true;
        loop {
            let address = self.start.wrapping_add(at as u64);
            let code = self.decode(at)?;
            let instruction = || insn::text(&code.insn);
            if at == to {
                if insn::is_trap(&code.insn) {
                    return Err(RegisterError::Trap {
                        place: place(),
                        instruction: instruction(),
                    });
                }
                return match insn::forbidden(&code.insn) {
                    Some(why) => Err(RegisterError::Unsupported {
                        place: place(),
                        instruction: instruction(),
                        why,
                    }),
                    None => Ok(code),
                };
            }
            let int3 = self.bytes.get(at) == Some(&INT3);
            // Up to the end of a function that ends in a call it never comes back from.
            let padding = self.bytes[at..]
                .iter()
                .take(to - at + 1)
                .all(|byte| *byte == INT3);
            if int3 && padding {
                return Err(RegisterError::Trap {
                    place: place(),
                    instruction: instruction(),
                });
            }
            if int3 && reachable {
                return Err(RegisterError::GuestBreakpoint {
                    place: place(),
                    at: address,
                });
            }
            reachable = !int3 && !insn::never_falls_through(&code.insn);
            at += code.insn.len();
            if at > to {
                return Err(RegisterError::InsideInstruction {
                    place: place(),
                    start: address,
                    instruction: instruction(),
                });
            }
        }
    }

    fn decode(&self, at: usize) -> Result<Code, RegisterError> {
        let address = self.start.wrapping_add(at as u64);
        let bytes = self.bytes.get(at..).unwrap_or_default();
        insn::decode(bytes, address).map_err(|insn::Undecodable| {
            let shown = bytes.iter().take(MAX_LEN).map(|byte| format!("{byte:02x}"));
            RegisterError::Undecodable {
                place: self.place.to_string(),
                at: address,
                bytes: shown.collect::<Vec<_>>().join(" "),
            }
        })
    }
}

/// The cheapest right way to execute an instruction, and why it is that.
fn way(code: &Code) -> (Way, Strategy, &'static str) {
    match compile(&code.insn, code.prefixes) {
        Ok(plan) => (Way::Emulate(plan), Strategy::Emulate, "the engine does it"),
        Err(reason) => {
            let repeats = insn::is_rep_string(&code.insn);
            let touched = Touched::by(&code.insn, repeats);
            (Way::Step { touched, repeats }, Strategy::Step, reason)
        }
    }
}
