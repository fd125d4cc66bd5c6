//! Symbols and types.

use super::*;

#[tonic::async_trait]
impl SymbolService for Fake {
    async fn lookup_symbols(
        &self,
        request: Request<LookupSymbolsRequest>,
    ) -> Answer<LookupSymbolsResponse> {
        let LookupSymbolsRequest {
            pattern,
            page_token,
            ..
        } = request.into_inner();
        let prefix = pattern.trim_end_matches('*');
        let found = SYMBOLS.iter().filter(|(name, _)| name.starts_with(prefix));
        let found: Vec<Symbol> = found.map(symbol).collect();
        let (symbols, next_page_token) = page(&found, &page_token);
        Ok(Response::new(LookupSymbolsResponse {
            symbols,
            next_page_token,
            similar: Vec::new(),
        }))
    }

    async fn resolve_address(
        &self,
        request: Request<ResolveAddressRequest>,
    ) -> Answer<ResolveAddressResponse> {
        let address = request.into_inner().address;
        let mut symbols = SYMBOLS.iter().rev();
        let found = symbols.find(|(_, start)| *start <= address);
        let found = found.ok_or_else(|| Status::not_found("no symbol"))?;
        Ok(Response::new(ResolveAddressResponse {
            symbol: Some(symbol(found)),
            offset: address - found.1,
            size: match found.0 {
                "vfs_read" | "vfs_write" => 0x800,
                _ => 0x1000,
            },
            module: String::new(),
        }))
    }

    async fn describe_type(
        &self,
        request: Request<DescribeTypeRequest>,
    ) -> Answer<DescribeTypeResponse> {
        let declaration = match &*request.into_inner().name {
            "struct file" => "struct file {\n\tunsigned int f_mode;\n}; /* size: 4 */\n",
            name => {
                let text = format!("the guest kernel has no type {name:?}");
                return Err(Status::not_found(text));
            }
        };
        let declaration = declaration.to_owned();
        Ok(Response::new(DescribeTypeResponse { declaration }))
    }

    async fn list_types(&self, request: Request<ListTypesRequest>) -> Answer<ListTypesResponse> {
        let ListTypesRequest {
            pattern,
            page_token,
            ..
        } = request.into_inner();
        let all = ["struct file", "union file_any", "struct filename"].map(str::to_owned);
        let all = if pattern == "file*" { &all[..] } else { &[] };
        let (names, next_page_token) = page(all, &page_token);
        Ok(Response::new(ListTypesResponse {
            names,
            next_page_token,
        }))
    }
}

fn symbol((name, address): &(&str, u64)) -> Symbol {
    Symbol {
        name: (*name).into(),
        address: *address,
        kind: "T".into(),
    }
}
