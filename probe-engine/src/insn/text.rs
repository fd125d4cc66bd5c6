//! Instructions for people to read.

use iced_x86::{Formatter, GasFormatter, Instruction};

/// Returns the instruction in AT&T syntax, as objdump writes it.
pub(crate) fn text(insn: &Instruction) -> String {
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_first_operand_char_index(0);
    options.set_space_after_operand_separator(false);
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_show_branch_size(false);
    options.set_rip_relative_addresses(false);
    let mut text = String::new();
    formatter.format(insn, &mut text);
    text
}
