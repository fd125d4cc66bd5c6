//! See `properties::relocate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::relocate(bytes));
