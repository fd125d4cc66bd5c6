//! From a probe back to its text.

use std::fmt::Write;

use vmprobe_proto::v1::probe_spec::{Kind, Place};
use vmprobe_proto::v1::{InstructionProbe, ProbeSpec, ReturnProbe, SymbolPlace, Watchpoint};

/// The text of a probe in the kernel's form, such as `p:open do_sys_openat2 post`. [`parse`] reads
/// the same probe from it, provided that its name and symbol are ones that can be typed.
///
/// [`parse`]: crate::parse
#[must_use]
pub fn definition(spec: &ProbeSpec) -> String {
    let default = Kind::Instruction(InstructionProbe::default());
    let kind = spec.kind.as_ref().unwrap_or(&default);
    let mut text = match kind {
        Kind::Instruction(_) => "p".to_owned(),
        Kind::Return(ReturnProbe { maxactive: 0 }) => "r".to_owned(),
        Kind::Return(ReturnProbe { maxactive }) => format!("r{maxactive}"),
        Kind::Watchpoint(_) => "w".to_owned(),
    };
    // Writing to a string can't fail.
    if !spec.name.is_empty() {
        let _ = write!(text, ":{}", spec.name);
    }
    text.push(' ');
    match &spec.place {
        Some(Place::Symbol(place)) => symbol(&mut text, place),
        Some(Place::Address(address)) => {
            let _ = write!(text, "{address:#x}");
        }
        None => {}
    }
    match kind {
        Kind::Instruction(InstructionProbe { post, fault }) => {
            text += if *post { " post" } else { "" };
            text += if *fault { " fault" } else { "" };
        }
        Kind::Return(_) => {}
        Kind::Watchpoint(Watchpoint { length, reads }) => {
            if *length != 0 {
                let _ = write!(text, "/{length}");
            }
            text += if *reads { ":rw" } else { ":w" };
        }
    }
    text += if spec.disabled { " disabled" } else { "" };
    text
}

fn symbol(text: &mut String, place: &SymbolPlace) {
    if !place.module.is_empty() {
        let _ = write!(text, "{}:", place.module);
    }
    *text += &place.symbol;
    if place.offset != 0 {
        let _ = write!(text, "+{:#x}", place.offset);
    }
}
