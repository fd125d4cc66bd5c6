//! The names of addresses.

use std::fmt;

/// What covers an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The symbol's name.
    pub name: String,
    /// Bytes from the symbol's start to the address.
    pub offset: u64,
    /// The symbol's size in bytes, where it is known.
    pub size: Option<u64>,
    /// The module that has the symbol. It is empty for the kernel itself.
    pub module: String,
}

impl Place {
    /// Makes a place at a symbol of the kernel itself, of unknown size.
    #[must_use]
    pub fn new(name: impl Into<String>, offset: u64) -> Self {
        Self {
            name: name.into(),
            offset,
            size: None,
            module: String::new(),
        }
    }
}

/// As the kernel writes a place: `vfs_read+0x5/0x310`, and ` [ext4]` behind it for a module
/// (`__sprint_symbol` in `kernel/kallsyms.c`). `/0x310` is left out where the size isn't known.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.name, self.offset)?;
        if let Some(size) = self.size {
            write!(f, "/{size:#x}")?;
        }
        if !self.module.is_empty() {
            write!(f, " [{}]", self.module)?;
        }
        Ok(())
    }
}

/// Tells the names of a guest's addresses.
pub trait Symbols {
    /// Returns what covers the address, if that is known.
    fn name(&self, address: u64) -> Option<Place>;
}

impl<F: Fn(u64) -> Option<Place>> Symbols for F {
    fn name(&self, address: u64) -> Option<Place> {
        self(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_size_and_module_where_they_are_known() {
        let mut symbol = Place::new("vfs_read", 5);
        assert_eq!(symbol.to_string(), "vfs_read+0x5");
        symbol.size = Some(0x310);
        assert_eq!(symbol.to_string(), "vfs_read+0x5/0x310");
        symbol.module = "ext4".into();
        assert_eq!(symbol.to_string(), "vfs_read+0x5/0x310 [ext4]");
    }
}
