//! See `properties::types`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::types(bytes));
