//! The functions of a module, by address and by name.

use std::ops::Deref;

use guest_state::GuestVirtAddr;

use crate::symbols::glob;

/// A function of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleFunction {
    /// Its name.
    pub name: String,
    /// Where it begins.
    pub address: GuestVirtAddr,
    /// Its length in bytes: as the module's symbol table has it, or else to the next function.
    pub size: u64,
}

/// The functions of a module, in the order of their addresses. Several may have the same name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleFunctions {
    by_address: Vec<ModuleFunction>,
    /// Their indices in the order of their names.
    by_name: Vec<u32>,
}

impl ModuleFunctions {
    /// Returns the functions of a name, in the order of their addresses.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ModuleFunction> {
        let first = self
            .by_name
            .partition_point(|place| self.name_at(*place) < name);
        let rest = self.by_name[first..].iter();
        rest.take_while(move |place| self.name_at(**place) == name)
            .filter_map(|place| self.by_address.get(*place as usize))
    }

    /// Returns the functions that a pattern of `*` (any text) and `?` (one character) matches, in the order of their
    /// addresses.
    pub fn matching<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = &'a ModuleFunction> {
        let functions = self.by_address.iter();
        functions.filter(move |function| glob::matches(pattern, &function.name))
    }

    /// Returns true if no other function has this name.
    pub fn is_unique(&self, name: &str) -> bool {
        self.named(name).nth(1).is_none()
    }

    /// Returns the function that an address lies in, and the address's offset in it.
    pub fn resolve(&self, address: GuestVirtAddr) -> Option<(&ModuleFunction, u64)> {
        let end = self.by_address.partition_point(|f| f.address <= address);
        let function = self.by_address[..end].last()?;
        let offset = address.offset_from(function.address)?;
        (offset < function.size).then_some((function, offset))
    }

    fn name_at(&self, place: u32) -> &str {
        let function = self.by_address.get(place as usize);
        function.map_or("", |function| &function.name)
    }
}

impl FromIterator<ModuleFunction> for ModuleFunctions {
    fn from_iter<I: IntoIterator<Item = ModuleFunction>>(functions: I) -> Self {
        let mut by_address: Vec<_> = functions.into_iter().collect();
        by_address.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        let mut by_name: Vec<u32> = (0..by_address.len() as u32).collect();
        by_name.sort_by_key(|place| by_address.get(*place as usize).map(|it| &it.name));
        Self {
            by_address,
            by_name,
        }
    }
}

impl Deref for ModuleFunctions {
    type Target = [ModuleFunction];

    fn deref(&self) -> &[ModuleFunction] {
        &self.by_address
    }
}
