//! The names and levels of initcalls.

use std::collections::{BTreeSet, HashMap};

use vmprobe_client::{Client, ClientError};

use crate::failure::Failure;

/// What the kernel's initcall table calls its entries: `__initcall__kmod_MODULE__COUNTER_LINE_FNLEVEL`
/// (`___define_initcall` in `include/linux/init.h`). There since 5.11 where all symbols are kept.
const PREFIX: &str = "__initcall__kmod_";
const ENTRIES_MAX: u32 = 20_000;

/// What is known about the functions of initcalls.
#[derive(Clone, Debug, Default)]
pub struct Names {
    functions: HashMap<u64, String>,
    levels: HashMap<String, Option<String>>,
}

impl Names {
    /// Asks the server for the names of functions, and for the levels of all initcalls.
    pub async fn ask(
        client: &Client,
        vm: &str,
        functions: &BTreeSet<u64>,
    ) -> Result<Self, Failure> {
        let mut names = Self::default();
        for &function in functions {
            match client.resolve_address(vm, function).await {
                Ok((symbol, 0)) => names.functions.insert(function, symbol.name),
                Ok((symbol, offset)) => {
                    let name = format!("{}+{offset:#x}", symbol.name);
                    names.functions.insert(function, name)
                }
                Err(ClientError::Disconnected(reason)) => {
                    return Err(ClientError::Disconnected(reason).into());
                }
                // The function stays a number.
                Err(_) => None,
            };
        }
        if !functions.is_empty() {
            let pattern = format!("{PREFIX}*");
            // A kernel without these symbols has no levels to tell.
            if let Ok((entries, _)) = client.lookup_symbols(vm, &pattern, ENTRIES_MAX).await {
                for entry in &entries {
                    names.learn_level(&entry.name);
                }
            }
        }
        Ok(names)
    }

    fn learn_level(&mut self, entry: &str) {
        let Some((function, level)) = function_and_level(entry) else {
            return;
        };
        let known = self
            .levels
            .entry(function.to_owned())
            .or_insert_with(|| Some(level.clone()));
        // Two functions have this name: which of them ran isn't known.
        if known.as_deref() != Some(&level) {
            *known = None;
        }
    }

    /// Returns the function's name, or its address.
    pub fn function(&self, address: u64) -> String {
        match self.functions.get(&address) {
            Some(name) => name.clone(),
            None => format!("{address:#x}"),
        }
    }

    /// Returns the level, by the name of its macro: `arch` for `arch_initcall`; empty where it isn't known.
    pub fn level(&self, address: u64) -> &str {
        let name = self.functions.get(&address);
        let level = name.and_then(|name| self.levels.get(name));
        level.and_then(Option::as_deref).unwrap_or("")
    }
}

/// Takes a table entry's name apart.
fn function_and_level(entry: &str) -> Option<(&str, String)> {
    let rest = entry.strip_prefix(PREFIX)?;
    // The module's name may have two underscores as well; numbers follow only the right ones.
    let numbered = rest.match_indices("__").find_map(|(at, _)| {
        let rest = skip_number(&rest[at + 2..])?;
        skip_number(rest)
    })?;
    let names = [
        ("early", "early"),
        ("rootfs", "rootfs"),
        ("con", "console"),
        ("0", "pure"),
        ("1", "core"),
        ("2", "postcore"),
        ("3", "arch"),
        ("4", "subsys"),
        ("5", "fs"),
        ("6", "device"),
        ("7", "late"),
    ];
    for (id, name) in names {
        if let Some(function) = numbered.strip_suffix(id) {
            return Some((function, name.to_owned()));
        }
        let digit = id.len() == 1;
        let sync = numbered.strip_suffix('s').filter(|_| digit);
        if let Some(function) = sync.and_then(|text| text.strip_suffix(id)) {
            return Some((function, format!("{name}_sync")));
        }
    }
    None
}

/// Returns what follows `DIGITS_`.
fn skip_number(text: &str) -> Option<&str> {
    let (digits, rest) = text.split_once('_')?;
    let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    number.then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_entry_s_name_has_function_and_level() {
        let table = [
            (
                "core__391_2229_init_hw_perf_eventsearly",
                "init_hw_perf_events",
                "early",
            ),
            ("acpi__431_1452_acpi_init4", "acpi_init", "subsys"),
            ("8250__1_2_serial8250_init6", "serial8250_init", "device"),
            ("a__b__12_34_f__7_8_g2s", "f__7_8_g", "postcore_sync"),
            (
                "initramfs__1_762_populate_rootfsrootfs",
                "populate_rootfs",
                "rootfs",
            ),
            ("x__1_2_foo27", "foo2", "late"),
            ("x__1_2_foos7s", "foos", "late_sync"),
        ];
        for (entry, function, level) in table {
            let entry = format!("{PREFIX}{entry}");
            let found = function_and_level(&entry);
            assert_eq!(found, Some((function, level.to_owned())), "{entry}");
        }
        for odd in [
            "",
            "__initcall_start",
            "__initcall__kmod_x",
            "__initcall__kmod_x__1_2_f",
        ] {
            assert_eq!(function_and_level(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_level_is_told_only_where_it_is_certain() {
        let mut names = Names::default();
        names.functions.insert(0x10, "acpi_init".into());
        names.functions.insert(0x20, "init".into());
        for entry in [
            "a__1_2_acpi_init4",
            "b__1_2_init6",
            "c__1_2_init7",
            "d__1_2_init6",
        ] {
            names.learn_level(&format!("{PREFIX}{entry}"));
        }
        assert_eq!((names.level(0x10), names.level(0x20)), ("subsys", ""));
        assert_eq!(names.function(0x30), "0x30");
        assert_eq!(names.level(0x30), "");
    }
}
