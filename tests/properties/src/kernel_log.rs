//! Reading the console of a guest.

use vmprobe_kernel_log::ktap::{MAX_CASES, MAX_DIAGNOSTICS, Parser, Results};
use vmprobe_kernel_log::{Lines, MAX_FRAMES, MAX_LINE, MAX_REPORT_LINES, Report, Reports};

/// Checks that any output of a console has the same lines, reports and results in whatever pieces it comes, and that
/// none exceeds its bound. The first byte is the length of the pieces.
///
/// # Panics
/// If that doesn't hold.
pub fn kernel_log(bytes: &[u8]) {
    let Some((length, console)) = bytes.split_first() else {
        return;
    };
    let lines = lines_of(&[console]);
    let chunks: Vec<_> = console.chunks(usize::from(*length).max(1)).collect();
    assert_eq!(lines_of(&chunks), lines, "lines of pieces");
    for line in &lines {
        // A byte that isn't UTF-8 becomes a character of three bytes.
        assert!(line.len() <= 3 * MAX_LINE + 64, "a line of {}", line.len());
        assert!(!line.contains(['\n', '\r', '\x1b']), "{line:?}");
    }
    let reports = reports_of(&lines);
    assert!(reports.len() <= lines.len(), "more reports than lines");
    reports.iter().for_each(check_report);
    check_results(&results_of(&lines), lines.len());
}

fn lines_of(chunks: &[&[u8]]) -> Vec<String> {
    let mut lines = Lines::new();
    let mut all: Vec<_> = chunks.iter().flat_map(|chunk| lines.push(chunk)).collect();
    all.extend(lines.finish());
    all
}

fn reports_of(lines: &[String]) -> Vec<Report> {
    let mut reports = Reports::new();
    let mut found: Vec<_> = lines.iter().filter_map(|line| reports.line(line)).collect();
    while let Some(report) = reports.finish() {
        found.push(report);
    }
    found
}

fn check_report(report: &Report) {
    assert!((1..=MAX_REPORT_LINES).contains(&report.lines.len()));
    assert!(report.stack.len() <= MAX_FRAMES);
    assert!(report.lines.contains(&report.title), "{report:?}");
    let _any = report.place();
}

fn results_of(lines: &[String]) -> Results {
    let mut parser = Parser::new();
    for line in lines {
        parser.line(line);
    }
    parser.finish()
}

fn check_results(results: &Results, lines: usize) {
    assert!(results.cases.len() <= MAX_CASES.min(2 * lines));
    for case in &results.cases {
        assert!((1..=9).contains(&case.path.len()), "{case:?}");
        assert!(case.diagnostics.len() <= MAX_DIAGNOSTICS);
    }
}
