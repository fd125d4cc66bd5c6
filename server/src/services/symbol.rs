//! `SymbolService`: the symbols and types of the guest's kernel.

use std::sync::Arc;

use tonic::{Request, Response, Status, async_trait};
use vmprobe_proto::v1::symbol_service_server::SymbolService;
use vmprobe_proto::v1::{
    DescribeTypeRequest, DescribeTypeResponse, ListTypesRequest, ListTypesResponse,
    LookupSymbolsRequest, LookupSymbolsResponse, ResolveAddressRequest, ResolveAddressResponse,
};

use crate::blocking::blocking;
use crate::one_vm::OneVm;
use crate::page::Page;
use crate::{limits, status};

/// The service.
#[derive(Debug)]
pub struct Symbols(pub Arc<OneVm>);

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
        let work = move || machine.lookup_symbols(&pattern, &page);
        Ok(Response::new(blocking(work).await?))
    }

    async fn resolve_address(
        &self,
        request: Request<ResolveAddressRequest>,
    ) -> Result<Response<ResolveAddressResponse>, Status> {
        let ResolveAddressRequest { vm, address } = request.into_inner();
        let machine = self.0.get(&vm)?;
        let work = move || machine.resolve_address(address);
        Ok(Response::new(blocking(work).await?))
    }

    async fn describe_type(
        &self,
        request: Request<DescribeTypeRequest>,
    ) -> Result<Response<DescribeTypeResponse>, Status> {
        let DescribeTypeRequest { vm, name } = request.into_inner();
        check_text("name", &name, "the name of a type is missing")?;
        let machine = self.0.get(&vm)?;
        let declaration = blocking(move || machine.describe_type(&name)).await?;
        Ok(Response::new(DescribeTypeResponse { declaration }))
    }

    async fn list_types(
        &self,
        request: Request<ListTypesRequest>,
    ) -> Result<Response<ListTypesResponse>, Status> {
        let ListTypesRequest {
            vm,
            pattern,
            page_size,
            page_token,
        } = request.into_inner();
        let missing = "a name or a pattern is missing; `*` is all";
        check_text("pattern", &pattern, missing)?;
        let page = Page::asked(page_size, &page_token, ("types", &vm, &pattern))?;
        let machine = self.0.get(&vm)?;
        let work = move || machine.list_types(&pattern, &page);
        Ok(Response::new(blocking(work).await?))
    }
}

/// Refuses a text that is empty or longer than any name.
fn check_text(field: &str, text: &str, missing: &str) -> Result<(), Status> {
    let most = limits::PATTERN_BYTES;
    if text.is_empty() {
        return Err(status::invalid(field, missing));
    }
    if text.len() > most {
        let message = format!("it has at most {most} characters");
        return Err(status::invalid(field, message));
    }
    Ok(())
}
