//! The symbols of the guest's kernel.

use guest_kernel::symbols::LookupError;
use guest_state::GuestVirtAddr;
use tonic::{Code, Status};
use vmprobe_proto::v1;

use super::Machine;
use crate::page::Page;
use crate::{convert, status};

impl Machine {
    /// A page of the symbols that match a pattern; what a name that none has may have meant. The key of a
    /// symbol is its place among those that match.
    pub fn lookup_symbols(&self, pattern: &str, page: &Page<usize>) -> v1::LookupSymbolsResponse {
        let symbols = self.engine.symbols();
        let matching = symbols.find_matching(pattern).enumerate();
        let before = page.after().map_or(0, |last| last.saturating_add(1));
        let (found, next_page_token) = page.cut(matching.skip(before), |(place, _)| *place);
        let mut similar = Vec::new();
        if found.is_empty()
            && before == 0
            && !pattern.contains(['*', '?'])
            && let Err(LookupError::Unknown { similar: like, .. }) = symbols.find(pattern)
        {
            similar = like;
        }
        v1::LookupSymbolsResponse {
            symbols: found
                .into_iter()
                .map(|(_, symbol)| convert::symbol(symbol))
                .collect(),
            next_page_token,
            similar,
        }
    }

    /// The symbol that covers an address, and where the address is in it.
    pub fn resolve_address(&self, address: u64) -> Result<v1::ResolveAddressResponse, Status> {
        let address = GuestVirtAddr(address);
        if let Some(found) = self.engine.symbols().resolve(address) {
            return Ok(v1::ResolveAddressResponse {
                symbol: Some(convert::symbol(found.symbol)),
                offset: found.offset,
                size: found.size,
                module: String::new(),
            });
        }
        let found = self.in_module(address).ok_or_else(|| {
            let why = format!(
                "{address} is neither in the guest's kernel image nor in a loaded module, so no symbol covers it"
            );
            status::with_field(Code::NotFound, "address", why)
        })?;
        Ok(v1::ResolveAddressResponse {
            symbol: Some(v1::Symbol {
                name: found.function.name,
                address: found.function.address.0,
                kind: "t".to_owned(),
            }),
            offset: found.offset,
            size: found.function.size,
            module: found.module,
        })
    }
}
