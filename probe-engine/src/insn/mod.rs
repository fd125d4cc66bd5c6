//! Single instructions: decoding, what may be probed, how it reads.

mod decoded;
mod forms;
mod text;

pub(crate) use decoded::{Decoded, Undecodable, decode};
pub(crate) use forms::{
    Prefixes, calls_over_a_byte, forbidden, is_endbr, is_rep_string, is_trap, never_falls_through,
    prefixes_len,
};
pub(crate) use text::text;
