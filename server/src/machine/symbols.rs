//! The symbols of the guest's kernel.

use guest_kernel::symbols::LookupError;
use guest_state::GuestVirtAddr;
use tonic::{Code, Status};
use vmprobe_proto::v1;

use super::Machine;
use crate::{convert, status};

impl Machine {
    /// Symbols that match a pattern, at most `limit`, and whether there are more; what a name that
    /// none has may have meant.
    pub fn lookup_symbols(&self, pattern: &str, limit: usize) -> v1::LookupSymbolsResponse {
        let symbols = self.engine.symbols();
        let mut found: Vec<v1::Symbol> = symbols
            .find_matching(pattern)
            .take(limit + 1)
            .map(convert::symbol)
            .collect();
        let truncated = found.len() > limit;
        found.truncate(limit);
        let mut similar = Vec::new();
        if found.is_empty()
            && !pattern.contains(['*', '?'])
            && let Err(LookupError::Unknown { similar: like, .. }) = symbols.find(pattern)
        {
            similar = like;
        }
        v1::LookupSymbolsResponse {
            symbols: found,
            truncated,
            similar,
        }
    }

    /// The symbol that covers an address, and the address' offset in it.
    pub fn resolve_address(&self, address: u64) -> Result<(v1::Symbol, u64), Status> {
        let address = GuestVirtAddr(address);
        match self.engine.symbols().resolve(address) {
            Some(found) => Ok((convert::symbol(found.symbol), found.offset)),
            None => Err(status::with_field(
                Code::NotFound,
                "address",
                format!("{address} is not in the guest's kernel image, so no symbol covers it"),
            )),
        }
    }
}
