//! The calls about the symbols and types of the guest's kernel.

use vmprobe_proto::v1::{
    DescribeTypeRequest, ListTypesRequest, LookupSymbolsRequest, ResolveAddressRequest,
    ResolveAddressResponse, Symbol,
};

use crate::client::PAGE;
use crate::{Client, ClientError};

/// The most symbols that a look-up without a limit finds.
const SYMBOLS: u32 = 1000;

impl Client {
    /// Returns symbols of the guest's kernel by name or by a pattern with `*` and `?`; at most `limit`, or 1000 if that
    /// is 0. The flag is true if more matched.
    pub async fn lookup_symbols(
        &self,
        vm: &str,
        pattern: &str,
        limit: u32,
    ) -> Result<(Vec<Symbol>, bool), ClientError> {
        let limit = match limit {
            0 => SYMBOLS,
            limit => limit,
        };
        let mut found = Vec::new();
        let mut page_token = String::new();
        loop {
            let missing = limit.saturating_sub(u32::try_from(found.len()).unwrap_or(u32::MAX));
            let request = LookupSymbolsRequest {
                vm: vm.into(),
                pattern: pattern.into(),
                page_size: missing.min(PAGE),
                page_token,
            };
            let page = self.symbols().lookup_symbols(request).await?.into_inner();
            found.extend(page.symbols);
            page_token = page.next_page_token;
            let more = !page_token.is_empty();
            if !more || found.len() >= limit as usize {
                return Ok((found, more));
            }
        }
    }

    /// Returns names of symbols that are like a name that no symbol has, the likest first.
    pub async fn similar_symbols(&self, vm: &str, name: &str) -> Result<Vec<String>, ClientError> {
        let request = LookupSymbolsRequest {
            vm: vm.into(),
            pattern: name.into(),
            page_size: 1,
            page_token: String::new(),
        };
        let answer = self.symbols().lookup_symbols(request).await?;
        Ok(answer.into_inner().similar)
    }

    /// Returns the symbol that covers an address, and the address' offset in it.
    pub async fn resolve_address(
        &self,
        vm: &str,
        address: u64,
    ) -> Result<(Symbol, u64), ClientError> {
        let answer = self.locate(vm, address).await?;
        Ok((
            answer.symbol.ok_or(ClientError::Protocol("symbol"))?,
            answer.offset,
        ))
    }

    /// Does as [`Client::resolve_address`], and also returns the symbol's size.
    pub async fn locate(
        &self,
        vm: &str,
        address: u64,
    ) -> Result<ResolveAddressResponse, ClientError> {
        let request = ResolveAddressRequest {
            vm: vm.into(),
            address,
        };
        Ok(self.symbols().resolve_address(request).await?.into_inner())
    }

    /// Returns the declaration of a type of the guest's kernel, such as `struct file`, in C: lines with the offset and
    /// the size of each member.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] if there is no such type, [`ClientError::FailedPrecondition`] for a kernel without
    /// type information.
    pub async fn describe_type(&self, vm: &str, name: &str) -> Result<String, ClientError> {
        let request = DescribeTypeRequest {
            vm: vm.into(),
            name: name.into(),
        };
        let answer = self.symbols().describe_type(request).await?;
        Ok(answer.into_inner().declaration)
    }

    /// Returns the names of all types of the guest's kernel that match a name or a pattern with `*` and `?`, in their
    /// order, each with its keyword: `struct file`.
    ///
    /// # Errors
    /// [`ClientError::FailedPrecondition`] for a kernel without type information.
    pub async fn list_types(&self, vm: &str, pattern: &str) -> Result<Vec<String>, ClientError> {
        let mut names = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListTypesRequest {
                vm: vm.into(),
                pattern: pattern.into(),
                page_size: PAGE,
                page_token,
            };
            let page = self.symbols().list_types(request).await?.into_inner();
            names.extend(page.names);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(names);
            }
        }
    }
}
