//! The functions of the guest's kernel and its modules, and which of them can be probed.

use std::collections::HashMap;
use std::ops::Range;

use vmprobe_client::v1::{BlacklistEntry, BlacklistKind, VmState};
use vmprobe_client::{Client, ClientError, words};

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub address: u64,
    /// Why it can't be probed by its name; none if it can, as far as that is known.
    pub why_not: Option<String>,
}

/// Returns the functions that match a name or a pattern with `*` and `?`, each name once, sorted. With a module's name
/// before it, `tun:tun_*`, it matches the module's functions, whose names have that before them too.
///
/// # Errors
/// See [`Client::lookup_symbols`] and [`Client::blacklist`].
pub async fn functions(
    client: &Client,
    vm: &str,
    pattern: &str,
) -> Result<Vec<Function>, ClientError> {
    let (symbols, _) = client.lookup_symbols(vm, pattern, u32::MAX).await?;
    let module = pattern.split_once(':').map(|(module, _)| module);
    let text = symbols.into_iter().filter(|symbol| is_text(&symbol.kind));
    let place = |name: String| match module {
        Some(module) => format!("{module}:{name}"),
        None => name,
    };
    let found: Vec<(String, u64)> = text
        .map(|symbol| (place(symbol.name), symbol.address))
        .collect();
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let mut refused = HashMap::new();
    let mut entries = client.blacklist(vm, pattern).await?;
    while let Some(batch) = entries.next().await? {
        refused.extend(batch.iter().filter_map(refusal));
    }
    let init = match module {
        // The freed functions of a module aren't among its functions any more.
        Some(_) => 0..0,
        None => freed_text(client, vm).await?,
    };
    Ok(sorted(found, &refused, &init))
}

/// Returns true for the letters of nm for code: of the kernel's own symbols, weak ones included.
fn is_text(kind: &str) -> bool {
    matches!(kind, "T" | "t" | "W" | "w")
}

/// Returns the address of a function and why all of it is refused, if the entry is about that. Other entries are about
/// single instructions.
fn refusal(entry: &BlacklistEntry) -> Option<(u64, String)> {
    use BlacklistKind as K;
    let whole = matches!(
        entry.kind(),
        K::Noinstr
            | K::Entry
            | K::Kprobes
            | K::Blacklist
            | K::Copied
            | K::FtraceTrampoline
            | K::StaticCallTrampoline
    );
    let kind = words::blacklist_kind(entry.kind());
    (whole && entry.offset == 0).then(|| (entry.start, format!("{kind}: {}", entry.reason)))
}

/// Returns the kernel's init text if the guest has begun to run: the kernel frees it when it has started.
async fn freed_text(client: &Client, vm: &str) -> Result<Range<u64>, ClientError> {
    if client.get_vm(vm).await?.state() == VmState::Created {
        return Ok(0..0);
    }
    // include/asm-generic/sections.h
    let mut bounds = [0, 0];
    for (bound, name) in bounds.iter_mut().zip(["_sinittext", "_einittext"]) {
        let (found, _) = client.lookup_symbols(vm, name, 1).await?;
        *bound = found.first().map_or(0, |symbol| symbol.address);
    }
    let [start, end] = bounds;
    Ok(start..end)
}

fn sorted(
    mut found: Vec<(String, u64)>,
    refused: &HashMap<u64, String>,
    init: &Range<u64>,
) -> Vec<Function> {
    found.sort();
    found.dedup();
    found
        .chunk_by(|(one, _), (other, _)| one == other)
        .filter_map(|same| {
            let (name, address) = same.first()?;
            let why_not = match same.len() {
                1 if init.contains(address) => {
                    Some("init: the kernel frees it once it has started".to_owned())
                }
                1 => refused.get(address).cloned(),
                count => Some(format!("not unique: {count} functions have this name")),
            };
            Some(Function {
                name: name.clone(),
                address: *address,
                why_not,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_refused_at_a_functions_start_as_a_whole_rules_it_out() {
        let mut entry = BlacklistEntry {
            start: 0x10,
            reason: "why".into(),
            ..Default::default()
        };
        for (kind, offset, whole) in [
            (BlacklistKind::Noinstr, 0, true),
            (BlacklistKind::Noinstr, 4, false),
            (BlacklistKind::Ftrace, 0, false),
            (BlacklistKind::Alternative, 0, false),
            (BlacklistKind::Blacklist, 0, true),
        ] {
            entry.set_kind(kind);
            entry.offset = offset;
            assert_eq!(refusal(&entry).is_some(), whole, "{kind:?} {offset}");
        }
        assert_eq!(
            refusal(&BlacklistEntry { offset: 0, ..entry }),
            Some((0x10, "blacklist: why".to_owned()))
        );
    }

    #[test]
    fn a_name_comes_once_with_the_reason_against_it() {
        let found = [
            ("b", 0x20),
            ("a", 0x10),
            ("b", 0x30),
            ("c", 0x40),
            ("d", 0x50),
        ];
        let found = found.map(|(name, address)| (name.to_owned(), address));
        let refused = HashMap::from([(0x40, "noinstr: why".to_owned())]);
        let functions = sorted(found.to_vec(), &refused, &(0x50..0x60));
        let rows: Vec<_> = functions
            .iter()
            .map(|function| (&*function.name, function.why_not.as_deref()))
            .collect();
        assert_eq!(
            rows,
            [
                ("a", None),
                ("b", Some("not unique: 2 functions have this name")),
                ("c", Some("noinstr: why")),
                ("d", Some("init: the kernel frees it once it has started")),
            ]
        );
    }
}
