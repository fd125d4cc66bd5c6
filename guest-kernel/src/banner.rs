//! The banner of a kernel image, which says which kernel it is.

use crate::image::Image;
use crate::symbols::Symbols;

/// The symbol of the banner (`init/version-timestamp.c`; before Linux 6.2 `init/version.c`).
const BANNER: &str = "linux_banner";
/// How the banner begins. The rest of it is what a bzImage's header has as its version.
const START: &str = "Linux version ";
/// Longer than any kernel's banner, in bytes.
const MOST: usize = 512;

/// Returns the release of a vmlinux, and who built it and when, such as `6.1.0-56-cloud-amd64 (...)
/// #1 SMP ...`. `None` if the image has no banner, or no symbol for it.
pub(crate) fn version(image: &Image<'_>, symbols: &Symbols) -> Option<String> {
    let at = symbols.by_name(BANNER).next()?.address.0;
    let text = image.from(at)?;
    let text = &text[..text.len().min(MOST)];
    // A banner ends with a line's end and a NUL. Text that is cut off before them isn't one.
    let end = text.iter().position(u8::is_ascii_control)?;
    let text = std::str::from_utf8(&text[..end]).ok()?;
    let version = text.strip_prefix(START)?.trim();
    (!version.is_empty()).then(|| version.to_owned())
}
