//! What a probe does to the guest, as text of the command line.
//!
//! | text | action |
//! | --- | --- |
//! | `set rdi=5`, `set rip=0xffffffff81000000` | sets a register: a general one, `rflags` or `rip` |
//! | `write 0xffff888000000000=0a0b`, `write rdi+0x10=00` | writes bytes, in hexadecimal, at an address or where a register points |
//! | `override -1` | returns a value in a function's place |
//! | `pause` | pauses the VM |
//!
//! Numbers are decimal or, with `0x`, hexadecimal; a negative one has all its upper bits set.

use vmprobe_proto::v1::action::Action as Kind;
use vmprobe_proto::v1::{Action, OverrideReturn, PauseGuest, Register, SetRegister, WriteMemory};

use crate::names;

/// The kernel's functions return an error as its number below 0, down to so much (`include/linux/err.h`).
const MAX_ERRNO: i64 = 4095;

/// Reads the action of setting a register: `rdi=5`.
///
/// # Errors
/// What is wrong, in words.
pub fn set(text: &str) -> Result<Action, String> {
    let (name, value) = halves(text, "REGISTER=VALUE, such as rdi=5")?;
    let register = names::settable(name).ok_or_else(|| {
        format!("`{name}` is no register that can be set: rax to r15, rflags or rip")
    })?;
    Ok(action(Kind::SetRegister(SetRegister {
        register: register.into(),
        value: number(value)?,
    })))
}

/// Reads the action of returning a value in a function's place: `-1`.
///
/// # Errors
/// It is no number of 64 bits.
pub fn override_return(text: &str) -> Result<Action, String> {
    let value = number(text)?;
    Ok(action(Kind::OverrideReturn(OverrideReturn { value })))
}

/// Reads the action of writing memory: `ADDRESS=BYTES`, `REGISTER=BYTES` or `REGISTER+OFFSET=BYTES`, the bytes in
/// hexadecimal, in the order of their addresses.
///
/// # Errors
/// What is wrong, in words.
pub fn write(text: &str) -> Result<Action, String> {
    let (place, bytes) = halves(text, "ADDRESS=BYTES, such as rdi+0x10=0a0b")?;
    let at_sign = place.find(['+', '-']).filter(|at| *at > 0);
    let (name, offset) = place.split_at(at_sign.unwrap_or(place.len()));
    let (base, address) = match names::register(name).filter(|it| *it != Register::Rflags) {
        Some(register) if offset.is_empty() => (register, 0),
        Some(register) => (
            register,
            number(offset.strip_prefix('+').unwrap_or(offset))?,
        ),
        None => (Register::Unspecified, number(place)?),
    };
    Ok(action(Kind::WriteMemory(WriteMemory {
        base: base.into(),
        address,
        data: hex(bytes)?,
    })))
}

/// Makes the action of pausing the VM.
pub fn pause() -> Action {
    action(Kind::Pause(PauseGuest {}))
}

/// Returns an action as text, in the form of the module's table.
pub fn text(action: &Action) -> String {
    let name = |register| {
        let known = Register::try_from(register).ok();
        known.and_then(names::settable_name).unwrap_or("?")
    };
    match &action.action {
        Some(Kind::SetRegister(set)) => format!("set {}={:#x}", name(set.register), set.value),
        Some(Kind::OverrideReturn(it)) => match it.value.cast_signed() {
            error if (-MAX_ERRNO..0).contains(&error) => format!("override {error}"),
            _ => format!("override {:#x}", it.value),
        },
        Some(Kind::WriteMemory(write)) => {
            let bytes = write.data.iter().map(|byte| format!("{byte:02x}"));
            let bytes: String = bytes.collect();
            match (write.base(), write.address) {
                (Register::Unspecified, address) => format!("write {address:#x}={bytes}"),
                (_, 0) => format!("write {}={bytes}", name(write.base)),
                (_, offset) => format!("write {}+{offset:#x}={bytes}", name(write.base)),
            }
        }
        Some(Kind::Pause(PauseGuest {})) => "pause".to_owned(),
        None => "?".to_owned(),
    }
}

fn action(kind: Kind) -> Action {
    Action { action: Some(kind) }
}

fn halves<'t>(text: &'t str, form: &str) -> Result<(&'t str, &'t str), String> {
    let halves = text.split_once('=');
    let (name, value) = halves.ok_or_else(|| format!("`{text}` is not of the form {form}"))?;
    Ok((name.trim(), value.trim()))
}

fn number(text: &str) -> Result<u64, String> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(digits) if digits.starts_with(|c: char| c.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        None if digits.starts_with(|c: char| c.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    };
    let fits = |value: &u64| !negative || *value <= 1 << 63;
    let value = value.filter(fits);
    let value = value.ok_or_else(|| format!("`{text}` is no number of 64 bits"))?;
    Ok(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("`{text}` is no row of bytes in hexadecimal, such as 0a0b");
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| u8::try_from(digit.to_digit(16)?).ok())
        .collect();
    let digits = digits
        .filter(|digits| !digits.is_empty())
        .ok_or_else(wrong)?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(wrong());
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_written_as_it_is_read() {
        for (read, written) in [
            (set("rdi=5"), "set rdi=0x5"),
            (
                set("rip = 0xffffffff81000000"),
                "set rip=0xffffffff81000000",
            ),
            (set("rflags=1"), "set rflags=0x1"),
            (override_return("-1"), "override -1"),
            (override_return("-4095"), "override -4095"),
            (override_return("-4096"), "override 0xfffffffffffff000"),
            (override_return("0x10"), "override 0x10"),
            (write("0x10=0a0B"), "write 0x10=0a0b"),
            (write("rdi=ff"), "write rdi=ff"),
            (write("r15+0x10=00"), "write r15+0x10=00"),
            (write("rsp-8=00"), "write rsp+0xfffffffffffffff8=00"),
            (Ok(pause()), "pause"),
        ] {
            let action = read.unwrap();
            assert_eq!(text(&action), written);
        }
    }

    #[test]
    fn what_is_no_action_is_refused_with_the_reason() {
        for (read, why) in [
            (set("rdi"), "form"),
            (set("edi=1"), "`edi`"),
            (set("rdi=x"), "`x`"),
            (set("rdi=0x"), "`0x`"),
            (set("rdi=+1"), "`+1`"),
            (set("rdi=18446744073709551616"), "64 bits"),
            (override_return("-9223372036854775809"), "64 bits"),
            (override_return(""), "64 bits"),
            (write("rdi=abc"), "hexadecimal"),
            (write("rdi="), "hexadecimal"),
            (write("rflags=00"), "`rflags`"),
            (write("rdi+=00"), "64 bits"),
        ] {
            let error = read.unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
