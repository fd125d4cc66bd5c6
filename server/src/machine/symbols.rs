//! The symbols of the guest's kernel.

use guest_kernel::symbols::LookupError;
use guest_state::GuestVirtAddr;
use tonic::{Code, Status};
use vmprobe_proto::v1;

use super::{Machine, modules};
use crate::page::Page;
use crate::{convert, status};

impl Machine {
    /// Returns a page of the symbols that match a pattern: the kernel's, or with a module's name before it the module's
    /// functions. For a name that no symbol has, also returns names that may have been meant.
    ///
    /// # Errors
    /// `NOT_FOUND` for a module that isn't loaded.
    pub fn lookup_symbols(
        &self,
        pattern: &str,
        page: &Page<usize>,
    ) -> Result<v1::LookupSymbolsResponse, Status> {
        if let Some((module, pattern)) = pattern.split_once(':') {
            let module = self.module("pattern", module)?;
            let matching = module.functions.matching(pattern);
            return Ok(found(matching.map(modules::symbol), page));
        }
        let symbols = self.engine.symbols();
        let mut answer = found(symbols.find_matching(pattern).map(convert::symbol), page);
        if answer.symbols.is_empty()
            && page.after().is_none()
            && !pattern.contains(['*', '?'])
            && let Err(LookupError::Unknown { similar: like, .. }) = symbols.find(pattern)
        {
            answer.similar = like;
        }
        Ok(answer)
    }

    /// Returns the symbol that covers an address, and the address's offset in it.
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
            symbol: Some(modules::symbol(&found.function)),
            offset: found.offset,
            size: found.function.size,
            module: found.module,
        })
    }
}

/// Returns a page of symbols. The key of a symbol is its place among all of them.
fn found(
    symbols: impl Iterator<Item = v1::Symbol>,
    page: &Page<usize>,
) -> v1::LookupSymbolsResponse {
    let before = page.after().map_or(0, |last| last.saturating_add(1));
    let (found, next_page_token) = page.cut(symbols.enumerate().skip(before), |(place, _)| *place);
    v1::LookupSymbolsResponse {
        symbols: found.into_iter().map(|(_, symbol)| symbol).collect(),
        next_page_token,
        similar: Vec::new(),
    }
}
