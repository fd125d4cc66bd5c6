//! See `properties::symbols`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::symbols(bytes));
