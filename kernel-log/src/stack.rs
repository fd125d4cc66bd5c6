//! The places that a stack or a register names.

use crate::bound::start_of;

/// A place in the kernel's code as its log writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// `name+0x12/0x34 [module]` (`__sprint_symbol` in `kernel/kallsyms.c`).
    Symbol {
        /// The function.
        name: String,
        /// Bytes from its start.
        offset: u64,
        /// Its size in bytes, where the line says it.
        size: Option<u64>,
        /// The module that it is in.
        module: Option<String>,
    },
    /// An address: what a kernel without `CONFIG_KALLSYMS` prints, or one that is in no function.
    Address(u64),
}

impl Place {
    /// Returns the function, if the kernel has told it.
    #[must_use]
    pub fn function(&self) -> Option<&str> {
        match self {
            Self::Symbol { name, .. } => Some(name),
            Self::Address(_) => None,
        }
    }

    /// Parses a text that is a place and nothing else: `f+0x1/0x2`, `f+0x1/0x2 [m]`, `0xffffffff8101abcd`,
    /// `[<ffffffff8101abcd>]`, `[<ffffffff8101abcd>] f+0x1/0x2`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some((address, rest)) = text
            .strip_prefix("[<")
            .and_then(|text| text.split_once(">]"))
        {
            let rest = rest.trim();
            if rest.is_empty() {
                return hex(address).map(Self::Address);
            }
            let rest = rest.strip_prefix("? ").unwrap_or(rest);
            return Self::parse_bare(rest);
        }
        Self::parse_bare(text)
    }

    fn parse_bare(text: &str) -> Option<Self> {
        let (place, module) = match text.split_once(' ') {
            None => (text, None),
            Some((place, rest)) => {
                let inside = rest.strip_prefix('[')?.strip_suffix(']')?;
                // Behind the module there may be its build ID (CONFIG_STACKTRACE_BUILD_ID).
                (
                    place,
                    inside.split(' ').next().filter(|name| !name.is_empty()),
                )
            }
        };
        let Some((name, offset)) = place.rsplit_once("+0x") else {
            return place
                .strip_prefix("0x")
                .and_then(address)
                .map(Self::Address);
        };
        let (offset, size) = match offset.split_once('/') {
            Some((offset, size)) => (offset, Some(hex(size.strip_prefix("0x")?)?)),
            None => (offset, None),
        };
        let is_name = !name.is_empty() && !name.contains(|c: char| c == '"' || c.is_control());
        is_name.then_some(())?;
        Some(Self::Symbol {
            name: start_of(name, NAME_MAX).to_owned(),
            offset: hex(offset)?,
            size,
            module: module.map(|name| start_of(name, NAME_MAX).to_owned()),
        })
    }
}

/// The longest name of a function (`KSYM_NAME_LEN`, `include/linux/kallsyms.h`).
const NAME_MAX: usize = 512;

/// A call on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Where execution continues.
    pub place: Place,
    /// True if the kernel's unwinder vouches for the frame. A line with `?` is an address that happens to be on the
    /// stack (`printk_stack_address` in `arch/x86/kernel/dumpstack.c`).
    pub reliable: bool,
}

impl Frame {
    /// Parses a line of a stack.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let place = text.strip_prefix("? ");
        let reliable = place.is_none() && !text.contains(">] ? ");
        let place = Place::parse(place.unwrap_or(text))?;
        Some(Self { place, reliable })
    }
}

/// Returns the kernel's instruction pointer: the place of `RIP: 0010:f+0x1/0x2`. Segment 0x10 is the kernel's code
/// (`arch/x86/include/asm/segment.h`); with 0x33 it is a program's.
pub(crate) fn kernel_rip(text: &str) -> Option<Place> {
    let rest = text.trim().strip_prefix("RIP: 0010:")?;
    // Old kernels print the address twice before the symbol.
    let rest = rest.rsplit_once(">] ").map_or(rest, |(_, symbol)| symbol);
    Place::parse(rest)
}

fn hex(digits: &str) -> Option<u64> {
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex && !digits.is_empty()).then_some(())?;
    u64::from_str_radix(digits, 16).ok()
}

/// Parses an address of the kernel's half: 16 digits. Shorter numbers are something else.
fn address(digits: &str) -> Option<u64> {
    hex(digits).filter(|_| digits.len() == 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, offset: u64, size: Option<u64>, module: Option<&str>) -> Option<Place> {
        Some(Place::Symbol {
            name: name.into(),
            offset,
            size,
            module: module.map(Into::into),
        })
    }

    #[test]
    fn a_line_of_a_stack_is_a_place() {
        let address = Some(Place::Address(0xffff_ffff_8101_abcd));
        let table = [
            (" f+0x12/0x340", symbol("f", 0x12, Some(0x340), None), true),
            (
                " ? f.part.0+0x1/0x2",
                symbol("f.part.0", 1, Some(2), None),
                false,
            ),
            (
                " f+0x1/0x2 [nf_x]",
                symbol("f", 1, Some(2), Some("nf_x")),
                true,
            ),
            (
                " f+0x1/0x2 [m 0123ab]",
                symbol("f", 1, Some(2), Some("m")),
                true,
            ),
            (
                " _RNvCs+0x1+0x2/0x3",
                symbol("_RNvCs+0x1", 2, Some(3), None),
                true,
            ),
            (" f+0x1", symbol("f", 1, None, None), true),
            (" 0xffffffff8101abcd", address.clone(), true),
            (" ? 0xffffffff8101abcd", address.clone(), false),
            (" [<ffffffff8101abcd>]", address.clone(), true),
            (
                " [<ffffffff8101abcd>] f+0x1/0x2",
                symbol("f", 1, Some(2), None),
                true,
            ),
            (
                " [<ffffffff8101abcd>] ? f+0x1/0x2",
                symbol("f", 1, Some(2), None),
                false,
            ),
        ];
        for (line, place, reliable) in table {
            let expected = place.map(|place| Frame { place, reliable });
            assert_eq!(Frame::parse(line), expected, "{line:?}");
        }
        for line in [
            "",
            "?",
            " <TASK>",
            "Code: 0f 0b",
            " 0x10",
            " f+0x",
            " +0x1/0x2",
            " f+0xg/0x2",
            " f+0x1/0x2 x",
            "RAX: 0x1",
        ] {
            assert_eq!(Frame::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn only_the_kernels_instruction_pointer_counts() {
        let table = [
            ("RIP: 0010:f+0x1/0x2", symbol("f", 1, Some(2), None)),
            (
                "RIP: 0010:f+0x1/0x2 [m]",
                symbol("f", 1, Some(2), Some("m")),
            ),
            (
                "RIP: 0010:0xffffffff8101abcd",
                Some(Place::Address(0xffff_ffff_8101_abcd)),
            ),
            (
                "RIP: 0010:[<ffffffff8101abcd>]  [<ffffffff8101abcd>] f+0x1/0x2",
                symbol("f", 1, Some(2), None),
            ),
            ("RIP: 0033:0x7f1234567890", None),
            ("RIP: 0010:0x0", None),
        ];
        for (line, expected) in table {
            assert_eq!(kernel_rip(line), expected, "{line:?}");
        }
    }
}
