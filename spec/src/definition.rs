//! From a probe back to its text.

use std::fmt::Write;

use vmprobe_proto::v1::condition::Operand;
use vmprobe_proto::v1::probe_spec::{Kind, Place};
use vmprobe_proto::v1::{
    Capture, Condition, InstructionProbe, ProbeOptions, ProbeSpec, ReturnProbe, SymbolPlace,
    Watchpoint,
};

use crate::limits::STACK_DEFAULT;
use crate::names;
use crate::reader::options::{AND, FILTER, NO_REGISTER, RELATIONS, is_option};

/// Returns the text of a probe in the kernel's form, such as `p:open do_sys_openat2 post`. [`parse`] reads the same
/// probe from it, provided that its name and symbol are ones that can be typed.
///
/// [`parse`]: crate::parse
#[must_use]
pub fn definition(spec: &ProbeSpec) -> String {
    let default = Kind::Instruction(InstructionProbe::default());
    let kind = spec.kind.as_ref().unwrap_or(&default);
    let mut text = match kind {
        Kind::Instruction(_) => "p".to_owned(),
        Kind::Return(ReturnProbe { maxactive: 0, .. }) => "r".to_owned(),
        Kind::Return(ReturnProbe { maxactive, .. }) => format!("r{maxactive}"),
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
        Kind::Return(ReturnProbe { rets, .. }) => text += if *rets { " rets" } else { "" },
        Kind::Watchpoint(Watchpoint { length, reads }) => {
            if *length != 0 {
                let _ = write!(text, "/{length}");
            }
            text += if *reads { ":rw" } else { ":w" };
        }
    }
    for argument in &spec.arguments {
        // A parameter that is called like an option gets a name of its own.
        match is_option(argument) {
            true => {
                let _ = write!(text, " {argument}={argument}");
            }
            false => {
                let _ = write!(text, " {argument}");
            }
        }
    }
    text += if is_enabled(spec) { "" } else { " disabled" };
    match spec.stack {
        0 => {}
        STACK_DEFAULT => text += " stack",
        wanted => {
            let _ = write!(text, " stack={wanted}");
        }
    }
    if let Some(options) = &spec.options {
        for word in option_words(options) {
            text.push(' ');
            text += &word;
        }
    }
    if !spec.filter.is_empty() {
        let _ = write!(text, " {FILTER} {}", spec.filter);
    }
    text
}

/// Returns the words of a probe's text that ask for its options, such as `count` and `if=pid==100`; none for the
/// default.
#[must_use]
pub fn option_words(options: &ProbeOptions) -> Vec<String> {
    let mut words = Vec::new();
    match (options.capture(), &*options.registers) {
        (Capture::Unspecified | Capture::Full, _) => {}
        (Capture::Count, _) => words.push("count".to_owned()),
        (Capture::Registers, []) => words.push(format!("regs={NO_REGISTER}")),
        (Capture::Registers, _) => {
            words.push(format!("regs={}", register_names(options).join("+")));
        }
    }
    let conditions: Vec<String> = options.conditions.iter().map(condition_text).collect();
    if !conditions.is_empty() {
        words.push(format!("if={}", conditions.join(AND)));
    }
    if options.lossless {
        words.push("lossless".to_owned());
    }
    if !may_optimize(options) {
        words.push("nojump".to_owned());
    }
    words
}

/// Returns the names of the registers that a probe's events have, without registers whose names aren't known.
#[must_use]
pub fn register_names(options: &ProbeOptions) -> Vec<&'static str> {
    options
        .registers()
        .filter_map(names::register_name)
        .collect()
}

/// Returns true if a probe is enabled from its registration on, as it is by default.
#[must_use]
pub fn is_enabled(spec: &ProbeSpec) -> bool {
    spec.enabled.unwrap_or(true)
}

/// Returns true if a probe may become a jump, as it may by default.
#[must_use]
pub fn may_optimize(options: &ProbeOptions) -> bool {
    options.optimize.unwrap_or(true)
}

/// Returns a condition as `if=` has it, such as `edi==0xffffff9c`.
#[must_use]
pub fn condition_text(condition: &Condition) -> String {
    let constant = condition.constant;
    let (operand, is_register) = match &condition.operand {
        Some(operand) => (
            names::operand_name(operand).unwrap_or("?"),
            matches!(operand, Operand::Register(_)),
        ),
        None => ("?", false),
    };
    let wanted = condition.relation();
    let relation = RELATIONS.iter().find(|(_, relation)| *relation == wanted);
    let relation = relation.map_or("", |(text, _)| text);
    let number = constant.cast_signed();
    match condition.signed {
        true if number < 0 => format!("{operand}{relation}{number}"),
        true => format!("{operand}{relation}s{number}"),
        // Numbers that people know by their decimal digits.
        false if !is_register => format!("{operand}{relation}{constant}"),
        false => format!("{operand}{relation}{constant:#x}"),
    }
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
