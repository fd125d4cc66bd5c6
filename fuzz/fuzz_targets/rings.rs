//! See `properties::rings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::rings(bytes));
