//! Reading damaged kernels.

use guest_kernel::Kernel;
use guest_kernel::symbols::Symbols;
use guest_kernel::symbols::synthetic::{Definition, Layout, TEXT, elf, unstripped, vmlinux};
use guest_state::GuestVirtAddr;

use crate::input::Input;

/// Symbols of the undamaged image.
const SYMBOLS: u64 = 300;

/// Checks that reading any image of a kernel ends, with symbols that answer any lookup, or with an
/// error.
///
/// The bytes: a choice of image, and changes to it, as offsets and values; or, for the last
/// choices, the image itself or the contents of its segment.
///
/// # Panics
/// If that doesn't hold.
pub fn symbols(bytes: &[u8]) {
    let mut input = Input(bytes);
    let choice = usize::from(input.byte() % 10);
    let mut image = match (Layout::ALL.get(choice), choice) {
        (Some(layout), _) => vmlinux(&definitions(), *layout),
        (None, 6) => unstripped(&definitions()),
        (None, 7) => elf(input.0),
        _ => input.0.to_vec(),
    };
    while choice < 7 && !input.0.is_empty() {
        let (at, value) = (input.array::<3>(), input.byte());
        let at = at.iter().fold(0, |at, byte| at << 8 | usize::from(*byte));
        let len = image.len();
        image[at % len] = value;
    }
    if let Ok(found) = Symbols::from_vmlinux(&image) {
        ask(&found);
    }
    if let Ok(found) = Symbols::from_elf_symtab(&image) {
        ask(&found);
    }
    if let Ok(kernel) = Kernel::from_image(&image) {
        ask(&kernel.symbols);
    }
}

fn ask(symbols: &Symbols) {
    assert_eq!(symbols.iter().count(), symbols.len());
    for name in ["_text", "function_7", "", "*"] {
        let _any = symbols.find(name);
        let _any = symbols.find_matching(name).count();
    }
    for at in [0, TEXT, TEXT + 0x123, u64::MAX] {
        if let Some(found) = symbols.resolve(GuestVirtAddr(at)) {
            assert!(found.offset <= at);
        }
    }
    for symbol in symbols.iter().take(20) {
        let _any = symbols.resolve(symbol.address);
    }
}

fn definitions() -> Vec<Definition> {
    let mut symbols = vec![
        (TEXT, 'T', "_text".to_owned()),
        (TEXT, 'T', "_stext".to_owned()),
    ];
    symbols.extend((0..SYMBOLS).map(|i| (TEXT + 0x10 + i * 4, 't', format!("function_{i}"))));
    for (offset, kind, name) in [
        (0xe00, 'T', "_etext"),
        (0xf00, 'T', "_sinittext"),
        (0xf80, 'T', "_einittext"),
        (0x1000, 'R', "linux_banner"),
    ] {
        symbols.push((TEXT + offset, kind, name.to_owned()));
    }
    symbols
}
