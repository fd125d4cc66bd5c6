//! Where members of structs and unions are.

/// A member of a struct or union.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Where it begins, in bytes from the start of the outermost type. For a bit field, where the
    /// first of its bits is.
    pub offset: u64,
    /// Its size in bytes; for a bit field, of its declared type. An array without a length has 0.
    pub size: u64,
    /// For arrays: what is in it.
    pub array: Option<Array>,
    /// For bit fields: which bits.
    pub bits: Option<BitField>,
}

/// What an array holds. One with several dimensions holds arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Array {
    /// How many elements.
    pub count: u64,
    /// The size of an element in bytes.
    pub element_size: u64,
}

/// The bits of a bit field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitField {
    /// The first bit, from the lowest bit of the byte at [`Member::offset`].
    pub shift: u8,
    /// How many bits.
    pub len: u8,
}
