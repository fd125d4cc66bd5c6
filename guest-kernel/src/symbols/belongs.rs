//! Checks whether symbols are those of a kernel image, by what the image has at their addresses.

use super::Symbols;
use crate::image::Image;

/// The banner (`init/version-timestamp.c`), and how it begins.
const BANNER: (&str, &[u8]) = ("linux_banner", b"Linux version ");
/// The bounds of the lists of exported symbols (`include/asm-generic/vmlinux.lds.h`).
const EXPORTS: [(&str, &str); 2] = [
    ("__start___ksymtab", "__stop___ksymtab"),
    ("__start___ksymtab_gpl", "__stop___ksymtab_gpl"),
];
/// `struct kernel_symbol` (`include/linux/module.h`): the distances of the symbol, of its name and of its namespace
/// from the words themselves (`CONFIG_HAVE_ARCH_PREL32_RELOCATIONS`, which x86-64 has).
const EXPORT_LEN: u64 = 12;
/// Longer than any name, in bytes.
const NAME_MAX: usize = 512;

/// Returns what differs, if anything does. The image and the symbols are both as linked, or both moved.
pub(super) fn check(symbols: &Symbols, image: &Image<'_>) -> Result<(), String> {
    let text = symbols.text();
    if !image.is_code(&(text.start.0..text.end.0)) {
        return Err(format!(
            "its text, {} to {}, isn't code of the kernel",
            text.start, text.end
        ));
    }
    let start = image.range().start;
    if let Some(text) = symbols.by_name("_text").next()
        && text.address.0 != start
    {
        let at = text.address;
        return Err(format!(
            "it says that the kernel begins at {at}, and it begins at {start:#x}"
        ));
    }
    let (name, begins) = BANNER;
    if let Some(banner) = symbols.by_name(name).next() {
        let found = image.from(banner.address.0);
        if !found.is_some_and(|found| found.starts_with(begins)) {
            let at = banner.address;
            return Err(format!("{name} isn't at {at}"));
        }
    }
    EXPORTS
        .into_iter()
        .try_for_each(|bounds| check_exports(symbols, image, bounds))
}

/// Compares the addresses of exported symbols with those that the kernel itself has for its modules.
fn check_exports(symbols: &Symbols, image: &Image<'_>, bounds: (&str, &str)) -> Result<(), String> {
    let bound = |name| symbols.by_name(name).next().map(|symbol| symbol.address.0);
    let (Some(start), Some(end)) = (bound(bounds.0), bound(bounds.1)) else {
        return Ok(());
    };
    let count = end.saturating_sub(start) / EXPORT_LEN;
    let mut unknown = 0;
    for entry in (0..count).map(|index| start + index * EXPORT_LEN) {
        let Some((name, address)) = export(image, entry) else {
            unknown += 1;
            continue;
        };
        let mut named = symbols.by_name(name).peekable();
        if named.peek().is_none() {
            unknown += 1;
        } else if !named.any(|symbol| symbol.address.0 == address) {
            return Err(format!(
                "the kernel exports {name} at {address:#x}, where the file has no symbol of that name"
            ));
        }
    }
    match unknown * 2 > count {
        true => Err(format!(
            "at {start:#x}, where {} is said to be, is no list of exported symbols",
            bounds.0
        )),
        false => Ok(()),
    }
}

/// Returns an exported symbol's name and address.
fn export<'a>(image: &Image<'a>, entry: u64) -> Option<(&'a str, u64)> {
    let target = |at: u64| {
        let distance = image.from(at)?.first_chunk()?;
        Some(at.wrapping_add_signed(i32::from_le_bytes(*distance).into()))
    };
    let address = target(entry)?;
    let name = image.from(target(entry + 4)?)?;
    let name = name.get(..NAME_MAX).unwrap_or(name);
    let end = name.iter().position(|byte| *byte == 0)?;
    let name = str::from_utf8(&name[..end]).ok()?;
    (!name.is_empty()).then_some((name, address))
}
