//! What is wrong with a text.

use std::fmt::{Display, Formatter};

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use thiserror::Error;

/// Where and why the text of a probe can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct SpecError {
    /// The whole text, or the line of it.
    pub text: String,
    /// The line's number, from 1, if there are several.
    pub line: Option<usize>,
    /// Column of the first character that is wrong, from 1; one past the end when something is
    /// missing there.
    pub column: usize,
    /// How many characters are wrong; 0 when something is missing.
    pub length: usize,
    /// What is wrong, and what belongs there.
    pub reason: String,
    /// The kernel's own name for it (`ERRORS` in `kernel/trace/trace_probe.h` and
    /// `kernel/trace/trace_events_filter.c`), if it has one.
    pub kernel: Option<&'static str>,
}

impl Display for SpecError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self {
            text,
            column,
            reason,
            ..
        } = self;
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        write!(f, "bad probe `{text}`, column {column}: {reason}")
    }
}

/// Returns the error as several lines of plain text: the reason, and what it is about below the text, without a line's
/// end at the last. `source` says where the text is from, such as a file's name. U+FFFD stands for each control
/// character, so that a text from elsewhere can't steer a terminal.
///
/// ```
/// let error = vmprobe_spec::parse("p vfs_read +0(%di").unwrap_err();
/// let expected = "\
/// error: `)` is missing
///   |
/// 1 | p vfs_read +0(%di
///   |                  ^";
/// assert_eq!(vmprobe_spec::render(&error, None), expected);
/// ```
#[must_use]
pub fn render(error: &SpecError, source: Option<&str>) -> String {
    let text = &error.text;
    let byte = |characters: usize| {
        let found = text.char_indices().nth(characters);
        found.map_or(text.len(), |(byte, _)| byte)
    };
    let start = error.column.saturating_sub(1);
    let span = byte(start)..byte(start.saturating_add(error.length));
    let mut snippet = Snippet::source(text)
        .line_start(error.line.unwrap_or(1))
        .annotation(AnnotationKind::Primary.span(span));
    if let Some(source) = source {
        snippet = snippet.path(source);
    }
    let report = [Level::ERROR.primary_title(&*error.reason).element(snippet)];
    let rendered = Renderer::plain().render(&report);
    rendered.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}
