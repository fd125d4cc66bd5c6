//! The types of the guest's kernel and its modules.

use std::sync::Arc;

use guest_kernel::btf::{Btf, TypeError};
use tonic::{Code, Status};
use vmprobe_proto::v1;

use super::Machine;
use crate::page::Page;
use crate::status::{self, Precondition};

impl Machine {
    /// Returns the declaration of a type: the kernel's, or with a module's name before it the module's.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` for a kernel without types, `NOT_FOUND` for a name that no type has and a module
    /// without types.
    pub fn describe_type(&self, name: &str) -> Result<String, Status> {
        let (types, name) = self.types("name", name)?;
        describe(&types, name)
    }

    /// Returns a page of the names of the types that match a pattern: the kernel's, or with a module's name before it
    /// those that only the module has. The key of a name is its place among those that match.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` for a kernel without types, `NOT_FOUND` for a module without.
    pub fn list_types(
        &self,
        pattern: &str,
        page: &Page<usize>,
    ) -> Result<v1::ListTypesResponse, Status> {
        let (types, pattern) = self.types("pattern", pattern)?;
        Ok(list(&types, pattern, page))
    }

    /// Returns the types that a field's text is about, and the rest of the text: `MODULE:NAME`, or `NAME` of the
    /// kernel.
    fn types<'a>(&self, field: &'static str, text: &'a str) -> Result<(Arc<Btf>, &'a str), Status> {
        let types = self.engine.kernel().types.as_ref();
        let types = types.ok_or_else(|| {
            status::precondition(
                Precondition::Kernel,
                "CONFIG_DEBUG_INFO_BTF",
                "the guest's kernel carries no type information (BTF): it was built without \
                 CONFIG_DEBUG_INFO_BTF",
            )
        })?;
        let Some((module, name)) = text.split_once(':') else {
            return Ok((Arc::clone(types), text));
        };
        let types = self.module_types(module).ok_or_else(|| {
            let why = format!(
                "no types of a module {module:?}: it isn't loaded, or was built without BTF"
            );
            status::with_field(Code::NotFound, field, why)
        })?;
        Ok((types, name))
    }
}

fn describe(types: &Btf, name: &str) -> Result<String, Status> {
    types.declaration(name).map_err(|error| {
        let code = match error {
            TypeError::Unknown { .. } => Code::NotFound,
            // The kernel's own types are wrong, not the request.
            _ => Code::FailedPrecondition,
        };
        status::with_field(code, "name", error.to_string())
    })
}

fn list(types: &Btf, pattern: &str, page: &Page<usize>) -> v1::ListTypesResponse {
    let before = page.after().map_or(0, |last| last.saturating_add(1));
    // One name more than the page has shows whether there is a next page.
    let most = before.saturating_add(page.size()).saturating_add(1);
    let names = types.types_matching(pattern, most).into_iter().enumerate();
    let (found, next_page_token) = page.cut(names.skip(before), |(place, _)| *place);
    v1::ListTypesResponse {
        names: found.into_iter().map(|(_, name)| name).collect(),
        next_page_token,
    }
}

#[cfg(test)]
mod tests {
    use guest_kernel::btf::synthetic::Builder;

    use super::*;

    fn types() -> Btf {
        let mut builder = Builder::new();
        let int = builder.int("unsigned int", 4);
        builder.structure("file", 8, &[("f_flags", int, 0), ("f_mode", int, 4)]);
        builder.structure("filename", 4, &[("refcnt", int, 0)]);
        builder.union("file_any", 4, &[("one", int, 0)]);
        Btf::parse(&builder.bytes()).unwrap()
    }

    #[test]
    fn a_type_is_described_by_its_name_with_or_without_its_keyword() {
        let types = types();
        let whole = describe(&types, "struct file").unwrap();
        assert!(whole.starts_with("struct file {\n"), "{whole}");
        assert!(whole.contains("unsigned int f_mode;"), "{whole}");
        assert_eq!(describe(&types, "file").unwrap(), whole);
        for name in ["struct nobody", "union file"] {
            let refused = describe(&types, name).unwrap_err();
            assert_eq!(refused.code(), Code::NotFound, "{name}");
        }
    }

    #[test]
    fn names_come_once_in_order_page_by_page() {
        let types = types();
        let mut found = Vec::new();
        let mut token = String::new();
        loop {
            let page = Page::asked(2, &token, "types").unwrap();
            let answer = list(&types, "file*", &page);
            assert!(answer.names.len() <= 2);
            found.extend(answer.names);
            token = answer.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found, ["struct file", "union file_any", "struct filename"]);
        let page = Page::asked(0, "", "types").unwrap();
        assert_eq!(list(&types, "union f*", &page).names, ["union file_any"]);
    }
}
