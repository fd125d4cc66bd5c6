//! Reading the text of definitions and filters.

use vmprobe_spec::{
    Command, SpecError, definition, definitions, filter, from_cmdline, parse, render,
};

/// Checks that each line of any text of definitions is read as a probe that is printed and read as the same one, or is
/// an error that can be shown. So is the same text on a command line.
///
/// # Panics
/// If that doesn't hold.
pub fn definitions_of(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for found in definitions(&text) {
        match found {
            Ok(Command::Register(spec)) => {
                let printed = definition(&spec);
                assert_eq!(parse(&printed), Ok(spec), "{printed}");
            }
            Ok(Command::Remove { name, .. }) => assert!(!name.is_empty()),
            Err(error) => show(&error),
        }
    }
    let _any = from_cmdline(&text);
    for error in from_cmdline(&format!("vmprobe.probe={text}"))
        .iter()
        .filter_map(|found| found.as_ref().err())
    {
        show(error);
    }
}

/// Checks that any text of a filter is read as a filter that is printed and read as the same one, or is an error at a
/// place within it.
///
/// # Panics
/// If that doesn't hold.
pub fn filters(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match filter::parse(&text) {
        Ok(found) => {
            let printed = found.to_string();
            let again = filter::parse(&printed).map(|again| again.to_string());
            assert_eq!(again, Ok(printed));
        }
        Err(wrong) => assert!(text.get(wrong.span).is_some()),
    }
}

fn show(error: &SpecError) {
    let end = error.text.chars().count() + 1;
    assert!(error.column + error.length <= end, "{error}");
    let rendered = render(error, Some("text"));
    // Control characters are replaced, so that a definition can't control a terminal.
    assert!(!rendered.contains(|c: char| c.is_control() && c != '\n'));
    if !error.reason.contains(char::is_control) {
        assert!(rendered.contains(&error.reason));
    }
}
