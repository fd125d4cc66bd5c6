//! See `properties::devices`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::devices(bytes));
