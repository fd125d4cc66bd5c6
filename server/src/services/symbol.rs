//! `SymbolService`: the symbols of the guest's kernel.

use std::sync::Arc;

use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::symbol_service_server::SymbolService;
use vmprobe_proto::v1::{
    LookupSymbolsRequest, LookupSymbolsResponse, ResolveAddressRequest, ResolveAddressResponse,
};

use crate::blocking::blocking;
use crate::machines::Machines;
use crate::page::Page;
use crate::status;

/// The service.
#[derive(Debug)]
pub struct Symbols(pub Arc<Machines>);

#[async_trait]
impl SymbolService for Symbols {
    async fn lookup_symbols(
        &self,
        request: Request<LookupSymbolsRequest>,
    ) -> Result<Response<LookupSymbolsResponse>, Status> {
        let LookupSymbolsRequest {
            vm,
            pattern,
            page_size,
            page_token,
        } = request.into_inner();
        if pattern.is_empty() {
            return Err(status::invalid(
                "pattern",
                "a name or a pattern is missing; `*` is all",
            ));
        }
        let page = Page::asked(page_size, &page_token, ("symbols", &vm, &pattern))?;
        let machine = self.0.get(&vm)?;
        let work = move || Ok(machine.lookup_symbols(&pattern, &page));
        Ok(Response::new(blocking(work).await?))
    }

    async fn resolve_address(
        &self,
        request: Request<ResolveAddressRequest>,
    ) -> Result<Response<ResolveAddressResponse>, Status> {
        let ResolveAddressRequest { vm, address } = request.into_inner();
        let (symbol, offset) = self.0.get(&vm)?.resolve_address(address)?;
        Ok(Response::new(ResolveAddressResponse {
            symbol: Some(symbol),
            offset,
        }))
    }
}
