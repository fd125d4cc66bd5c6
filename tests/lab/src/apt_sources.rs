//! Reading the machine's own apt sources, to learn which Debian mirror it uses.
//!
//! Both forms of sources.list(5): one-line (`deb [options] URI suite component...`) and deb822
//! stanzas (`Types:`, `URIs:`, `Suites:`, `Components:`).

use std::fs;
use std::path::Path;

/// The keyring of Debian's `debian-archive-keyring` package.
pub(crate) const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Suites of Debian's main archive. A third party's archive may use them too, see [`find`].
const SUITES: [&str; 10] = [
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

/// Where to fetch Debian's packages from, and who signs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    pub(crate) uri: String,
    pub(crate) keyring: String,
}

/// The mirrors that a machine uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirrors {
    pub(crate) main: Mirror,
    /// The mirror of the security updates, if the machine uses them.
    pub(crate) security: Option<Mirror>,
}

/// One archive as a source file gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: Option<String>,
}

/// Reads all source files under `/etc/apt` (or another folder like it).
pub(crate) fn read(etc_apt: &Path) -> Option<Mirrors> {
    let mut files = vec![etc_apt.join("sources.list")];
    if let Ok(dir) = fs::read_dir(etc_apt.join("sources.list.d")) {
        let mut parts: Vec<_> = dir.flatten().map(|file| file.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let mut entries = Vec::new();
    for file in files {
        let parse: fn(&str) -> Vec<Entry> = match file.extension().and_then(|e| e.to_str()) {
            Some("list") => parse_one_line,
            Some("sources") => parse_deb822,
            _ => continue,
        };
        // If a file can't be read, others may still be readable.
        entries.extend(
            fs::read_to_string(&file)
                .map(|text| parse(&text))
                .unwrap_or_default(),
        );
    }
    find(&entries)
}

/// The mirrors among the entries. Third parties use Debian's suite names for archives of their
/// own; Debian's mirrors are in a folder named `debian`, so those win.
fn find(entries: &[Entry]) -> Option<Mirrors> {
    let pick = |is_suite: &dyn Fn(&str) -> bool, folder: &str| {
        let fits = |entry: &&Entry| {
            entry.suites.iter().any(|suite| is_suite(suite))
                && entry.components.iter().any(|component| component == "main")
        };
        let mirrors = || {
            entries.iter().filter(fits).flat_map(|entry| {
                entry.uris.iter().map(|uri| Mirror {
                    uri: uri.trim_end_matches('/').to_owned(),
                    keyring: entry
                        .signed_by
                        .clone()
                        .unwrap_or_else(|| DEBIAN_KEYRING.to_owned()),
                })
            })
        };
        mirrors()
            .find(|mirror| mirror.uri.ends_with(folder))
            .or_else(|| mirrors().next())
    };
    Some(Mirrors {
        main: pick(&|suite| SUITES.contains(&suite), "/debian")?,
        security: pick(&|suite| suite.ends_with("-security"), "-security"),
    })
}

fn parse_one_line(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line
            .strip_prefix("deb")
            .filter(|r| r.starts_with([' ', '\t']))
        else {
            continue;
        };
        let mut rest = rest.trim_start();
        let mut signed_by = None;
        if let Some(bracket) = rest.strip_prefix('[') {
            let Some((options, after)) = bracket.split_once(']') else {
                continue;
            };
            signed_by = options
                .split_whitespace()
                .find_map(|option| option.strip_prefix("signed-by="))
                .and_then(keyring_path);
            rest = after;
        }
        let mut words = rest.split_whitespace().map(str::to_owned);
        if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
            entries.push(Entry {
                uris: usable(vec![uri]),
                suites: vec![suite],
                components: words.collect(),
                signed_by,
            });
        }
    }
    entries
}

fn parse_deb822(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut stanza: Vec<(String, String)> = Vec::new();
    // The empty line at the end closes the last stanza.
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            entries.extend(entry_of_stanza(&stanza));
            stanza.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            stanza.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    entries
}

fn entry_of_stanza(stanza: &[(String, String)]) -> Option<Entry> {
    let field = |name: &str| {
        stanza
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, v)| v.as_str())
    };
    let words = |name: &str| -> Option<Vec<String>> {
        Some(field(name)?.split_whitespace().map(str::to_owned).collect())
    };
    let enabled = field("enabled").is_none_or(|v| !["no", "false", "0"].contains(&v));
    let binary = words("types")?.iter().any(|kind| kind == "deb");
    (enabled && binary).then_some(())?;
    Some(Entry {
        uris: usable(words("uris")?),
        suites: words("suites")?,
        components: words("components").unwrap_or_default(),
        signed_by: field("signed-by").and_then(keyring_path),
    })
}

/// Returns the path of a keyring. Our own sources can name only a file, not a fingerprint or an
/// inline key.
fn keyring_path(value: &str) -> Option<String> {
    (value.starts_with('/') && !value.contains(char::is_whitespace)).then(|| value.to_owned())
}

/// Removes install media: they hold one release only.
fn usable(mut uris: Vec<String>) -> Vec<String> {
    uris.retain(|uri| !uri.starts_with("cdrom:"));
    uris
}

#[cfg(test)]
mod tests {
    use super::*;

    fn main_and_security(entries: &[Entry]) -> Option<(String, Option<String>)> {
        find(entries).map(|m| (m.main.uri, m.security.map(|s| s.uri)))
    }

    fn both(main: &str, security: &str) -> Option<(String, Option<String>)> {
        Some((main.into(), Some(security.into())))
    }

    #[test]
    fn one_line_sources_are_understood() {
        let text = "
# deb http://old.test/debian bookworm main
deb cdrom:[Debian 12]/ bookworm main
deb-src http://src.test/debian bookworm main
deb [arch=amd64] http://other.test/tool bookworm main
deb [arch=amd64 signed-by=/k/a.gpg]\thttp://m.test/debian/ bookworm main contrib # mine
deb http://m.test/debian bookworm-updates main
deb http://sec.test/debian-security bookworm-security main
deb http://broken.test
";
        let entries = parse_one_line(text);
        let expected = both("http://m.test/debian", "http://sec.test/debian-security");
        assert_eq!(main_and_security(&entries), expected);
        assert_eq!(find(&entries).unwrap().main.keyring, "/k/a.gpg");
    }

    #[test]
    fn deb822_sources_are_understood() {
        let text = "Types: deb
URIs: http://third.test/x
Suites: stable
Components: main

# a comment
Types: deb deb-src
# in a stanza
URIs: http://m.test/debian
 http://second.test/debian
Suites: trixie
 trixie-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://off.test/debian
Suites: trixie-security
Components: main
Enabled: no

Types: deb
URIs: http://m.test/debian-security/
Suites: trixie-security
Components: main
Signed-By: /k/deb.gpg";
        let entries = parse_deb822(text);
        let expected = both("http://m.test/debian", "http://m.test/debian-security");
        assert_eq!(main_and_security(&entries), expected);
        let mirrors = find(&entries).unwrap();
        assert_eq!(mirrors.main.keyring, DEBIAN_KEYRING);
        assert_eq!(mirrors.security.unwrap().keyring, "/k/deb.gpg");
    }

    #[test]
    fn a_mirror_in_a_folder_of_another_name_will_do_if_it_is_the_only_one() {
        let entries = parse_one_line("deb http://m.test/mirrors/deb12 bookworm main");
        let expected = Some(("http://m.test/mirrors/deb12".to_owned(), None));
        assert_eq!(main_and_security(&entries), expected);
    }

    #[test]
    fn sources_without_debian_give_no_mirror() {
        for text in [
            "",
            "deb http://m.test/x nodistro main",
            "deb http://m.test/debian stable tool",
        ] {
            assert_eq!(main_and_security(&parse_one_line(text)), None, "{text:?}");
        }
    }
}
