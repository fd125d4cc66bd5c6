//! Patterns for names: `*` stands for any text, `?` for one character, all else for itself.

/// Returns true if a whole name matches a pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // The last `*` seen, and how far into the name it reaches: where to go on after a mismatch.
    // Only the last one needs to be tried, so the work is at most the lengths' product.
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, reach)) = star else {
                    return false;
                };
                star = Some((at, reach + 1));
                p = at + 1;
                n = reach + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_pattern_covers_the_whole_name() {
        for (pattern, name, expected) in [
            ("vfs_read", "vfs_read", true),
            ("vfs_read", "vfs_readv", false),
            ("vfs_*", "vfs_read", true),
            ("vfs_*", "vfs_", true),
            ("*read", "vfs_read", true),
            ("*read", "vfs_readv", false),
            ("*_s?s_*at*", "__x64_sys_openat2", true),
            ("?", "", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**", "abc", true),
            ("a*b*c", "a__b__b__c", true),
            ("a*b*c", "a__b__b__cd", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_long_time() {
        assert!(!matches(&"*a".repeat(60), &"a".repeat(59)));
        assert!(!matches(&("*a".repeat(50) + "b"), &"a".repeat(500)));
    }
}
