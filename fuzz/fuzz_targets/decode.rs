//! See `properties::decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::decode(bytes));
