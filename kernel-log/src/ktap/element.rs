//! The lines of KTAP, one by one.

/// A line that says something about tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element<'a> {
    /// `KTAP version 1`: results begin.
    Version,
    /// `# Subtest: name`: the name of the suite whose results begin, or have just begun.
    Subtest(&'a str),
    /// `1..3`: how many results there will be.
    Plan(u64),
    Result(TestResult<'a>),
    /// `Bail out! why`: there will be no more.
    BailOut(&'a str),
}

/// `ok 1 name # SKIP why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TestResult<'a> {
    pub(super) ok: bool,
    pub(super) number: u64,
    /// May be empty.
    pub(super) name: &'a str,
    pub(super) directive: Option<Directive>,
    /// What is behind the directive.
    pub(super) remark: &'a str,
}

/// The directives of `ktap.rst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Directive {
    Skip,
    /// `TODO` and `XFAIL`.
    Todo,
    Timeout,
    Error,
}

/// An element, and the column that it begins in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) column: usize,
    /// A `#` is in front of it: kselftest puts one in front of each line that a test prints
    /// (`prefix.pl` beside `runner.sh`).
    pub(super) commented: bool,
    pub(super) element: Element<'a>,
}

/// How many signs of comments (`#`) in a row are looked behind.
const COMMENTS: usize = 8;

/// Finds the element in a line. A tab counts as eight columns.
pub(super) fn find(line: &str) -> Option<Found<'_>> {
    let mut rest = line;
    let mut column = 0;
    for comments in 0..COMMENTS {
        let text = rest.trim_start_matches([' ', '\t']);
        let blank = &rest[..rest.len() - text.len()];
        column += blank
            .bytes()
            .map(|byte| if byte == b'\t' { 8 } else { 1 })
            .sum::<usize>();
        if let Some(element) = element(text) {
            let commented = comments > 0;
            return Some(Found {
                column,
                commented,
                element,
            });
        }
        rest = text.strip_prefix("# ")?;
        column += 2;
    }
    None
}

fn element(text: &str) -> Option<Element<'_>> {
    if let Some(version) = text
        .strip_prefix("KTAP version ")
        .or_else(|| text.strip_prefix("TAP version "))
    {
        return number(version.trim_end()).map(|_| Element::Version);
    }
    if let Some(name) = text.strip_prefix("# Subtest: ") {
        return Some(Element::Subtest(name.trim()));
    }
    if let Some(why) = text.strip_prefix("Bail out!") {
        return Some(Element::BailOut(why.trim()));
    }
    if let Some(plan) = text.strip_prefix("1..") {
        let count = plan.split_once(" #").map_or(plan, |(count, _)| count);
        return number(count.trim_end()).map(Element::Plan);
    }
    result(text).map(Element::Result)
}

fn result(text: &str) -> Option<TestResult<'_>> {
    let (ok, rest) = match text.strip_prefix("ok ") {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix("not ok ")?),
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    let number = number(digits)?;
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let rest = rest.trim();
    // TAP has a dash in front of the name.
    let rest = rest.strip_prefix("- ").unwrap_or(rest);
    let (name, comment) = match rest.strip_prefix('#') {
        Some(comment) => ("", comment),
        None => rest.split_once(" #").unwrap_or((rest, "")),
    };
    let (directive, remark) = directive(comment.trim());
    // `ksft_test_result_skip` in kselftest.h prints the name behind the directive.
    let name = if name.trim().is_empty() {
        remark
    } else {
        name.trim()
    };
    Some(TestResult {
        ok,
        number,
        name,
        directive,
        remark,
    })
}

fn directive(comment: &str) -> (Option<Directive>, &str) {
    let (word, rest) = comment.split_once([' ', ':']).unwrap_or((comment, ""));
    let directive = match word.to_ascii_uppercase().as_str() {
        "SKIP" => Directive::Skip,
        "TODO" | "XFAIL" => Directive::Todo,
        "TIMEOUT" => Directive::Timeout,
        "ERROR" => Directive::Error,
        _ => return (None, comment),
    };
    (Some(directive), rest.trim())
}

fn number(digits: &str) -> Option<u64> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(column: usize, element: Element<'_>) -> Option<Found<'_>> {
        let commented = false;
        Some(Found {
            column,
            commented,
            element,
        })
    }

    #[test]
    fn a_line_of_ktap_is_an_element_in_a_column() {
        let result = |ok, number, name, directive, remark| {
            Element::Result(TestResult {
                ok,
                number,
                name,
                directive,
                remark,
            })
        };
        let table = [
            ("KTAP version 1", found(0, Element::Version)),
            ("    KTAP version 1", found(4, Element::Version)),
            ("TAP version 13", found(0, Element::Version)),
            ("\tTAP version 14 ", found(8, Element::Version)),
            ("    # Subtest: a b", found(4, Element::Subtest("a b"))),
            ("1..3", found(0, Element::Plan(3))),
            ("1..0 # SKIP not here", found(0, Element::Plan(0))),
            ("Bail out! no room", found(0, Element::BailOut("no room"))),
            ("ok 1 a", found(0, result(true, 1, "a", None, ""))),
            (
                "not ok 2 - a b",
                found(0, result(false, 2, "a b", None, "")),
            ),
            ("ok 3", found(0, result(true, 3, "", None, ""))),
            (
                "ok 1 a # SKIP why not",
                found(0, result(true, 1, "a", Some(Directive::Skip), "why not")),
            ),
            (
                "ok 1 a #skip",
                found(0, result(true, 1, "a", Some(Directive::Skip), "")),
            ),
            (
                "ok 1 # SKIP a",
                found(0, result(true, 1, "a", Some(Directive::Skip), "a")),
            ),
            (
                "not ok 1 a # TODO b",
                found(0, result(false, 1, "a", Some(Directive::Todo), "b")),
            ),
            (
                "ok 1 # XFAIL a",
                found(0, result(true, 1, "a", Some(Directive::Todo), "a")),
            ),
            (
                "not ok 1 a # TIMEOUT 45 seconds",
                found(
                    0,
                    result(false, 1, "a", Some(Directive::Timeout), "45 seconds"),
                ),
            ),
            (
                "not ok 1 a # error: b",
                found(0, result(false, 1, "a", Some(Directive::Error), "b")),
            ),
            (
                "not ok 1 a # exit=1",
                found(0, result(false, 1, "a", None, "exit=1")),
            ),
            ("# text", None),
            ("ok a", None),
            ("ok 1a", None),
            ("ok", None),
            ("not ok ", None),
            ("1..", None),
            ("1..x", None),
            ("1..99999999999999999999", None),
            ("KTAP version x", None),
            ("", None),
        ];
        for (line, expected) in table {
            // A plan or a version without a number is no element.
            assert_eq!(find(line), expected, "{line:?}");
        }
        let within = find("# # ok 1 a").unwrap();
        assert_eq!((within.column, within.commented), (4, true));
    }
}
