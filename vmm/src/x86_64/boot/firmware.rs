//! All the firmware there is: a PC begins at the reset vector after a reset.

use crate::{devices::end_register::RESET_VALUE, x86_64::layout};

/// What goes to [`layout::RESET_VECTOR`]: real-mode code that writes to the reset
/// register, `mov al, RESET_VALUE; mov dx, RESET_PORT; out dx, al; hlt`.
pub(crate) const RESET_VECTOR_CODE: [u8; 7] = {
    let [low, high] = layout::RESET_PORT.to_le_bytes();
    [0xb0, RESET_VALUE, 0xba, low, high, 0xee, 0xf4]
};
