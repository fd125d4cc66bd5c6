//! See `properties::emulate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::emulate(bytes));
