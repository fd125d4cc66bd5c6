//! Log events as lines.

use std::fmt;

use serde_json::Value;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::copies::Copies;
use super::record::{Record, VM};

/// Lines for people.
pub struct TextLines {
    inner: Format<Full>,
    /// The VM that all events are about.
    vm: Option<String>,
    copies: Option<Copies>,
}

impl TextLines {
    pub fn new(vm: Option<String>, colours: bool, copies: Option<Copies>) -> Self {
        Self {
            inner: Format::default().with_ansi(colours),
            vm,
            copies,
        }
    }
}

impl<S, N> FormatEvent<S, N> for TextLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.inner
            .format_event(context, Writer::new(&mut line), event)?;
        for part in line.trim_end().split_inclusive(['\n', '\r']) {
            match part.strip_suffix(['\n', '\r']) {
                None => to.write_str(part)?,
                Some(before) => write!(to, "{before}{}", part[before.len()..].escape_default())?,
            }
        }
        if let Some(vm) = &self.vm
            && event.metadata().fields().field(VM).is_none()
        {
            write!(to, " vm={vm:?}")?;
        }
        if let Some(copies) = &self.copies {
            copies.add(|| Record::of(event, self.vm.as_deref()));
        }
        writeln!(to)
    }
}

/// Lines for programs.
pub struct JsonLines {
    vm: Option<String>,
    copies: Option<Copies>,
}

impl JsonLines {
    pub fn new(vm: Option<String>, copies: Option<Copies>) -> Self {
        Self { vm, copies }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let record = Record::of(event, self.vm.as_deref());
        let line = serde_json::to_string(&record).map_err(|_| fmt::Error)?;
        if let Some(copies) = &self.copies {
            copies.add(|| record);
        }
        writeln!(to, "{line}")
    }
}

/// Returns the text before and after that of a forbidden system call, which a signal's handler writes as it is. So it
/// has no time.
pub fn violation_frame(vm: Option<&str>) -> [String; 2] {
    let vm = vm.map_or_else(String::new, |vm| format!("\"vm\":{},", Value::from(vm)));
    let before =
        format!("{{\"level\":\"ERROR\",\"target\":\"vmm::confinement\",{vm}\"message\":\"");
    [before, "\"}".to_owned()]
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::subscriber::with_default;

    use super::*;

    /// The lines that were written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Kept {
        fn lines(&self) -> Vec<String> {
            let bytes = self.0.lock().clone();
            let text = String::from_utf8(bytes).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    fn logged(json: bool, vm: Option<&str>, tell: impl FnOnce()) -> Vec<String> {
        let kept = Kept::default();
        let writer = kept.clone();
        let vm = vm.map(str::to_owned);
        let builder = tracing_subscriber::fmt().with_writer(move || writer.clone());
        match json {
            true => with_default(
                builder.event_format(JsonLines::new(vm, None)).finish(),
                tell,
            ),
            false => {
                let format = TextLines::new(vm, false, None);
                with_default(builder.event_format(format).finish(), tell);
            }
        }
        kept.lines()
    }

    fn tell() {
        tracing::warn!(lost = 7, why = ?Some(1), "a\nb \"c\"");
        tracing::error!(vm = "other", "d");
    }

    #[test]
    fn an_event_is_one_object_of_json_on_a_line_with_the_vm_that_it_is_about() {
        let lines = logged(true, Some("a"), tell);
        let lines: Vec<Value> = lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let [first, second] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(first["level"], "WARN");
        assert_eq!(
            (&first["vm"], &second["vm"]),
            (&"a".into(), &"other".into())
        );
        assert_eq!(first["message"], "a\nb \"c\"");
        assert_eq!(first["fields"]["lost"], 7);
        assert_eq!(first["fields"]["why"], "Some(1)");
        assert_eq!(second.get("fields"), None);
        let time = first["time"].as_str().unwrap();
        humantime::parse_rfc3339(time).unwrap();
        assert_eq!(first["target"], module_path!());
        let server = logged(true, None, || tracing::info!("e"));
        assert!(!server[0].contains("\"vm\""), "{server:?}");
    }

    #[test]
    fn an_event_is_one_line_of_text_with_the_vm_that_it_is_about() {
        let lines = logged(false, Some("a"), tell);
        let [first, second] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert!(
            first.contains(r#" a\nb "c" lost=7 why=Some(1) vm="a""#),
            "{first}"
        );
        assert!(second.ends_with(" d vm=\"other\""), "{second}");
    }

    #[test]
    fn a_forbidden_call_is_an_object_as_well() {
        let [before, behind] = violation_frame(Some("a"));
        let line = format!("{before}the thread x has made system call 7{behind}");
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&line["vm"], &line["level"]),
            (&"a".into(), &"ERROR".into())
        );
    }
}
