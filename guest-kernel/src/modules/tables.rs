//! What can't be probed in a module, by its own tables.
//!
//! The alternatives, retpolines, returns and the like of a module are patched while it is loaded,
//! and never again; they don't matter here.

use guest_state::GuestVirtAddr;
use guest_state::x86_64::MAX_INSTRUCTION_LEN;

use super::layout::TableAt;
use super::read::Reading;
use super::{Module, ModuleError, ModuleFunction};
use crate::blacklist::format::RawTable;
use crate::blacklist::{Blacklist, BlacklistEntry, ExceptionTable, Landings, Reason, targets};

/// The longest table that is read, in bytes.
const MAX_TABLE: usize = 16 << 20;
/// What the names of static calls' trampolines begin with
/// (`include/linux/static_call_types.h`).
const TRAMPOLINE: &str = "__SCT__";

/// A module's text in a copy, and where it is in the guest.
type ModuleText = Vec<(GuestVirtAddr, Vec<u8>)>;

impl Reading<'_> {
    /// Fills in what can't be probed, and the exception table.
    pub(super) fn tables(&self, module: &mut Module) -> Result<(), ModuleError> {
        let layout = &self.reader.layout;
        let mut code = ModuleText::new();
        for text in [&module.text, &module.init_text] {
            // Both are at most `MAX_TEXT` long.
            let len = (text.end.0 - text.start.0) as usize;
            let bytes = self.guest.bytes(text.start, len).map_err(self.fault())?;
            code.push((text.start, bytes));
        }
        let mut entries = Vec::new();
        for (reason, at) in &layout.regions {
            let range = self.text(*at)?;
            if module.is_text(range.start) {
                let reason = *reason;
                entries.push(BlacklistEntry { range, reason });
            }
        }
        for (reason, at) in &layout.tables {
            let places = self.places(*at, module, &code)?.into_iter();
            entries.extend(places.map(|range| BlacklistEntry {
                range,
                reason: *reason,
            }));
        }
        let whole = |function: &ModuleFunction, reason| BlacklistEntry {
            range: function.address..function.address.wrapping_add(function.size),
            reason,
        };
        if let Some(at) = layout.functions {
            for place in self.places(at, module, &code)? {
                if let Some((function, _)) = module.functions.resolve(place.start) {
                    entries.push(whole(function, Reason::KprobeBlacklist));
                }
            }
        }
        let trampolines = module
            .functions
            .iter()
            .filter(|function| function.name.starts_with(TRAMPOLINE))
            .map(|function| whole(function, Reason::StaticCallTrampoline));
        entries.extend(trampolines);
        if let Some(at) = layout.exceptions {
            let places = self.places(at, module, &code)?;
            module.exceptions = ExceptionTable::new(places.into_iter().map(|place| place.start));
        }
        let mut tables = layout.tables.iter();
        let labels = tables.find(|(reason, _)| *reason == Reason::JumpLabel);
        module.landings = Landings {
            fix_ups: self.targets(layout.exceptions, module)?,
            labels: self.targets(labels.map(|(_, at)| *at), module)?,
        };
        if let Some(offset) = layout.live_patch {
            let flag = self.guest.bytes(self.at(offset), 1);
            module.is_live_patch = flag.map_err(self.fault())? != [0];
        }
        module.blacklist = Blacklist::new(entries).map_err(|source| ModuleError::Tables {
            name: module.name.clone(),
            source,
        })?;
        Ok(())
    }

    /// Reads where a table is, and what is in it.
    fn table(&self, at: TableAt) -> Result<(GuestVirtAddr, Vec<u8>), ModuleError> {
        let address = self.guest.address(self.at(at.at)).map_err(self.fault())?;
        let count = self.guest.u32(self.at(at.count)).map_err(self.fault())?;
        let len = (count as usize).saturating_mul(at.format.stride);
        if len > MAX_TABLE {
            return Err(self.damaged("one of its tables is too long"));
        }
        let bytes = self.guest.bytes(address, len).map_err(self.fault())?;
        Ok((address, bytes))
    }

    /// Reads where execution continues according to a table.
    fn targets(
        &self,
        at: Option<TableAt>,
        module: &Module,
    ) -> Result<Vec<GuestVirtAddr>, ModuleError> {
        let Some(at) = at else {
            return Ok(Vec::new());
        };
        let (address, bytes) = self.table(at)?;
        let table = RawTable {
            name: at.name,
            address,
            bytes: &bytes,
        };
        targets(Some(table), at.format).map_err(|source| ModuleError::Tables {
            name: module.name.clone(),
            source,
        })
    }

    /// Returns the places that a table names. Places outside the module's text are left out: tables still name init
    /// text that has been freed.
    fn places(
        &self,
        at: TableAt,
        module: &Module,
        code: &ModuleText,
    ) -> Result<Vec<std::ops::Range<GuestVirtAddr>>, ModuleError> {
        let (address, bytes) = self.table(at)?;
        let table = RawTable {
            name: at.name,
            address,
            bytes: &bytes,
        };
        let code_at = |at: GuestVirtAddr| {
            let (start, bytes) = code
                .iter()
                .find(|(start, bytes)| at.0.wrapping_sub(start.0) < bytes.len() as u64)?;
            let rest = &bytes[(at.0 - start.0) as usize..];
            Some(&rest[..rest.len().min(MAX_INSTRUCTION_LEN)])
        };
        let places = at
            .format
            .places(table, code_at)
            .map_err(|source| ModuleError::Tables {
                name: module.name.clone(),
                source,
            })?;
        Ok(places.filter_map(Result::ok).collect())
    }
}
