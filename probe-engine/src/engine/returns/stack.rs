//! Words of the guest's stacks, such as return addresses.

use guest_state::x86_64::paging::{self, PageTables};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

/// Bytes of a word.
pub(crate) const WORD: u64 = 8;

/// A word of the stack, translated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    at: GuestPhysAddr,
    /// As the guest's page tables have it. The guest may choose any place for its stack.
    writable: bool,
}

impl Word {
    /// Translates the address of a word. `None` where nothing is mapped, and for a word that isn't aligned, as no
    /// return address of the kernel's is.
    pub(crate) fn at(memory: &dyn GuestMemory, tables: PageTables, at: u64) -> Option<Self> {
        let aligned = at.is_multiple_of(WORD);
        let page = aligned.then(|| paging::walk(memory, tables, GuestVirtAddr(at)))?;
        let page = page.ok()?;
        Some(Self {
            at: page.phys,
            writable: page.writable(),
        })
    }

    pub(crate) fn read(self, memory: &dyn GuestMemory) -> Option<u64> {
        memory.read_u64(self.at).ok()
    }

    /// Writes the word, unless the guest itself could not. Returns true if it did.
    pub(crate) fn write(self, memory: &dyn GuestMemory, word: u64) -> bool {
        self.writable && memory.write_as_guest(self.at, &word.to_le_bytes()).is_ok()
    }
}

/// Reads the word at an address of the stack, if something is mapped there.
pub(crate) fn read_word(memory: &dyn GuestMemory, tables: PageTables, at: u64) -> Option<u64> {
    Word::at(memory, tables, at)?.read(memory)
}

/// Writes a word of the stack, unless nothing is mapped there or the guest can't write there.
pub(crate) fn write_word(memory: &dyn GuestMemory, tables: PageTables, at: u64, word: u64) {
    if let Some(place) = Word::at(memory, tables, at) {
        place.write(memory, word);
    }
}
