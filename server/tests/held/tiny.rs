//! A kernel of three functions. It never runs.

const FUNCTIONS: [&str; 3] = ["first", "second", "third"];
/// `push %rbp; mov %rsp,%rbp; pop %rbp; ret` and padding.
const FUNCTION: [u8; 16] = [
    0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
];

/// Returns its ELF file.
pub fn image() -> Vec<u8> {
    let image = tiny_kernel::build(|a, names| {
        for name in FUNCTIONS {
            names.here(a, name)?;
            a.db(&FUNCTION)?;
        }
        Ok(())
    });
    image.unwrap()
}
