//! What may be wrong with a kernel's types.

use thiserror::Error;

/// Why the types of a kernel can't be read.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The section goes beyond its end.
    #[error("the kernel's type information (.BTF) is cut short; check that the file is whole")]
    Truncated,
    /// Another format.
    #[error(
        "the kernel's type information (.BTF) is not in the known version of its format; report \
         the kernel's version"
    )]
    NotBtf,
    /// A type that isn't understood, so that those after it can't be found.
    #[error(
        "type {id} of the kernel's type information (.BTF) is damaged or of an unknown kind; \
         report the kernel's version"
    )]
    BadType {
        /// Its number.
        id: usize,
    },
}

/// What a kernel's types don't have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TypeError {
    /// No type of this name with a size.
    #[error("the guest kernel has no type {name:?}")]
    Unknown {
        /// The name.
        name: String,
    },
    /// No member of this name.
    #[error("the guest kernel's type {of:?} has no member {path:?}")]
    NoMember {
        /// The type.
        of: String,
        /// The path from the type, up to the step that fails.
        path: String,
    },
    /// No constant of this name.
    #[error("the guest kernel's enum {of:?} has no constant {name:?}")]
    NoConstant {
        /// The enum.
        of: String,
        /// The constant.
        name: String,
    },
    /// The type contains itself or has no end.
    #[error("the guest kernel's type {name:?} is damaged")]
    Damaged {
        /// The type.
        name: String,
    },
}
