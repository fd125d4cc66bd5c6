//! Functions of C, as their prototypes have them.

use super::Btf;
use super::raw::{Kind, TypeRecord};
use super::types::TypeId;

/// What a function takes and returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prototype<'a> {
    /// Its parameters, in order. The `...` of a function that takes any number is left out.
    pub parameters: Vec<Parameter<'a>>,
    /// True if it takes any number of further arguments.
    pub variadic: bool,
    /// What it returns.
    pub returns: TypeId,
}

/// A parameter of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Its name; empty where it has none.
    pub name: &'a str,
    /// Its type.
    pub type_id: TypeId,
}

/// With a module's types, these methods find only the module's functions: the kernel's may have the same names.
impl Btf {
    /// Returns true if there is a C function of this name, which keeps to the ABI.
    pub fn has_function(&self, name: &str) -> bool {
        self.function(name).is_some()
    }

    /// Returns the names of a C function's parameters, in order; the name of an unnamed parameter is empty. `None` if
    /// there is no such C function.
    pub fn parameters(&self, function: &str) -> Option<Vec<&str>> {
        let prototype = self.raw.get(self.function(function)?.size_or_type)?;
        let parameters = prototype.entries().map(|[name, _]| self.raw.name(name));
        (prototype.kind == Kind::Prototype).then(|| parameters.collect())
    }

    /// Returns the prototype of a C function; `None` if there is no such C function.
    pub fn prototype(&self, function: &str) -> Option<Prototype<'_>> {
        let record = self.raw.get(self.function(function)?.size_or_type)?;
        self.as_prototype(&record)
    }

    pub(super) fn as_prototype<'a>(&'a self, record: &TypeRecord<'a>) -> Option<Prototype<'a>> {
        if record.kind != Kind::Prototype {
            return None;
        }
        let mut parameters: Vec<_> = record
            .entries()
            .map(|[name, id]| Parameter {
                name: self.raw.name(name),
                type_id: TypeId(id),
            })
            .collect();
        // Documentation/bpf/btf.rst, BTF_KIND_FUNC_PROTO: the last has no name and no type.
        let variadic = parameters
            .last()
            .is_some_and(|last| last.name.is_empty() && last.type_id == TypeId::VOID);
        if variadic {
            parameters.pop();
        }
        Some(Prototype {
            parameters,
            variadic,
            returns: TypeId(record.size_or_type),
        })
    }

    fn function(&self, name: &str) -> Option<TypeRecord<'_>> {
        let mut named = self.own_named(name).map(|(_, record)| record);
        named.find(|record| record.kind == Kind::Function)
    }
}
