//! The probes that a command is asked to trace.

use std::fs;
use std::path::{Path, PathBuf};

use vmprobe_client::spec::{self, Command, STACK_DEFAULT, SpecError};
use vmprobe_client::v1::{Capture, ProbeSpec};

use crate::cli::TracedArgs;
use crate::failure::Failure;
use crate::output::note;

/// A probe that is to be there for the time of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    pub spec: ProbeSpec,
    /// As the user wrote it.
    pub text: String,
}

/// The probes whose events are wanted; if there are none, all probes of the VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    pub definitions: Vec<Definition>,
    /// Names of registered probes, or their ids.
    pub names: Vec<String>,
}

impl Wanted {
    /// Reads the probes that the arguments ask for.
    ///
    /// # Errors
    /// A definition, a file or the filter can't be read, or there is a filter and nothing that it could be for.
    pub fn read(traced: &TracedArgs) -> Result<Self, Failure> {
        let mut wanted = Self::default();
        for probe in &traced.probes {
            if is_definition(probe) {
                wanted.add(probe)?;
            } else {
                wanted.names.push(probe.clone());
            }
        }
        for file in &traced.files {
            wanted.add_file(file)?;
        }
        if let Some(filter) = &traced.filter {
            wanted.filter(filter)?;
        }
        Ok(wanted)
    }

    /// Reads definitions only, each a text.
    ///
    /// # Errors
    /// One of them, or the filter, can't be read.
    pub fn defined(texts: &[String], filter: Option<&str>) -> Result<Self, Failure> {
        let mut wanted = Self::default();
        for text in texts {
            wanted.add(text)?;
        }
        if let Some(filter) = filter {
            wanted.filter(filter)?;
        }
        Ok(wanted)
    }

    /// Adds stacks to the events of all definitions.
    #[must_use]
    pub fn with_stacks(mut self) -> Self {
        for Definition { spec, .. } in &mut self.definitions {
            if spec.stack == 0 {
                spec.stack = STACK_DEFAULT;
            }
        }
        self
    }

    /// Notes which definitions have no events: `count` is easily taken for an argument.
    pub fn tell_of_counting(&self) {
        for Definition { spec, text } in &self.definitions {
            let options = spec.options.as_ref();
            if options.is_some_and(|options| options.capture() == Capture::Count) {
                note(format!(
                    "`{text}` counts hits and has no events: for a parameter called count, write \
                     count=count"
                ));
            }
        }
    }

    fn add(&mut self, text: &str) -> Result<(), SpecError> {
        self.definitions.push(Definition {
            spec: spec::parse(text)?,
            text: text.to_owned(),
        });
        Ok(())
    }

    fn add_file(&mut self, file: &Path) -> Result<(), Failure> {
        let path = || PathBuf::from(file);
        let text = fs::read_to_string(file).map_err(|cause| Failure::ReadFile {
            file: path(),
            cause,
        })?;
        for command in spec::definitions(&text) {
            let command = command.map_err(|error| Failure::SpecFile {
                file: path(),
                error: Box::new(error),
            })?;
            match command {
                Command::Register(spec) => self.definitions.push(Definition {
                    text: spec::definition(&spec),
                    spec,
                }),
                Command::Remove { name, only } => {
                    let before = self.definitions.len();
                    self.definitions.retain(|Definition { spec, .. }| {
                        !is_called(&spec.name, &name) || !is_at(spec, &only)
                    });
                    if self.definitions.len() == before {
                        return Err(Failure::Removal { file: path(), name });
                    }
                }
            }
        }
        Ok(())
    }

    fn filter(&mut self, text: &str) -> Result<(), Failure> {
        let text = text.trim();
        spec::filter::parse(text).map_err(|wrong| {
            let before = text.get(..wrong.span.start).unwrap_or(text);
            let inside = text.get(wrong.span.clone()).unwrap_or("");
            SpecError {
                text: text.to_owned(),
                line: None,
                column: before.chars().count() + 1,
                length: inside.chars().count(),
                reason: wrong.reason.to_string(),
                kernel: None,
            }
        })?;
        if self.definitions.is_empty() {
            return Err(Failure::FilterOfNothing);
        }
        for Definition { spec, .. } in &mut self.definitions {
            if spec.filter.is_empty() {
                text.clone_into(&mut spec.filter);
            }
        }
        Ok(())
    }
}

/// Returns true if `-:NAME` means a probe: by its name with or without the group, or by the group alone, `GROUP/`
/// (`trace_kprobe_match` in `kernel/trace/trace_kprobe.c`).
fn is_called(probe: &str, name: &str) -> bool {
    let (group, event) = probe.split_once('/').unwrap_or(("", probe));
    match name.split_once('/') {
        None => name == event,
        Some((of, "")) => of == group,
        Some(_) => name == probe,
    }
}

/// Returns true if the words behind the name in `-:NAME` mean a probe: its place, and its arguments from the first on.
fn is_at(spec: &ProbeSpec, only: &[String]) -> bool {
    let Some((place, arguments)) = only.split_first() else {
        return true;
    };
    let is_there = spec::parse(place).is_ok_and(|other| other.place == spec.place);
    is_there && spec.arguments.starts_with(arguments)
}

/// Returns true for what can't be the name of a probe, or what begins as definitions do.
fn is_definition(text: &str) -> bool {
    let kind = text.split_once(':').map(|(kind, _)| kind);
    let is_kind = |kind: &str| {
        let count = kind.strip_prefix('r');
        let is_return = count.is_some_and(|count| count.bytes().all(|byte| byte.is_ascii_digit()));
        is_return || kind == "p" || kind == "w"
    };
    text.contains(|c: char| c.is_whitespace() || "=*?".contains(c)) || kind.is_some_and(is_kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::UntilArgs;

    #[test]
    fn a_definition_is_told_from_a_name() {
        for (text, definition) in [
            ("open", false),
            ("7", false),
            ("fs/open", false),
            ("vfs_read+0x5", false),
            ("vfs_read+0x5%return", false),
            ("ext4:ext4_sync_file+0x0", false),
            ("p vfs_read", true),
            ("p:open", true),
            ("r16:done", true),
            ("w:tick", true),
            ("open=vfs_read", true),
            ("tcp_*", true),
        ] {
            assert_eq!(is_definition(text), definition, "{text}");
        }
    }

    #[test]
    fn a_removal_means_a_name_or_a_group() {
        for (probe, name, meant) in [
            ("open", "open", true),
            ("fs/open", "open", true),
            ("fs/open", "fs/open", true),
            ("fs/open", "fs/", true),
            ("fs/open", "net/", false),
            ("fs/open", "net/open", false),
            ("", "open", false),
        ] {
            assert_eq!(is_called(probe, name), meant, "{probe} {name}");
        }
    }

    #[test]
    fn a_removal_may_mean_one_place_and_the_arguments_there() {
        let definition = spec::parse("p:gone do_exit code=$arg1 %dx").unwrap();
        for (only, meant) in [
            (&[][..], true),
            (&["do_exit"], true),
            (&["do_exit", "code=$arg1"], true),
            (&["do_exit", "code=$arg1", "%dx"], true),
            (&["do_exit", "code=$arg1", "%dx", "%cx"], false),
            (&["do_exit", "code=$arg2"], false),
            (&["do_exit+5"], false),
            (&["do_group_exit"], false),
        ] {
            let words: Vec<String> = only.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(is_at(&definition, &words), meant, "{only:?}");
        }
    }

    fn traced(probes: &[&str], filter: Option<&str>) -> Result<Wanted, Failure> {
        Wanted::read(&TracedArgs {
            probes: probes.iter().map(|probe| (*probe).to_owned()).collect(),
            files: Vec::new(),
            filter: filter.map(str::to_owned),
            until: UntilArgs {
                count: None,
                seconds: None,
            },
        })
    }

    #[test]
    fn a_filter_is_for_the_definitions_without_one() {
        let probes = ["p vfs_read if pid == 1", "p vfs_write", "open"];
        let wanted = traced(&probes, Some(" comm == \"sh\" ")).unwrap();
        let filters: Vec<&str> = wanted
            .definitions
            .iter()
            .map(|definition| &*definition.spec.filter)
            .collect();
        assert_eq!(filters, ["pid == 1", "comm == \"sh\""]);
        assert_eq!(wanted.names, ["open"]);
    }

    #[test]
    fn a_filter_that_cannot_be_is_shown_with_its_column() {
        let error = traced(&["p vfs_read"], Some("comm = 1")).unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("1 | comm = 1\n  |      ^"), "{text}");
        assert_eq!(error.exit_code(), Some(2));
        let error = traced(&["open"], Some("pid == 1")).unwrap_err();
        assert!(matches!(error, Failure::FilterOfNothing));
    }

    #[test]
    fn stacks_are_added_where_there_are_none() {
        let wanted = traced(&["p vfs_read stack=5", "p vfs_read"], None).unwrap();
        let stacks: Vec<u32> = wanted
            .with_stacks()
            .definitions
            .iter()
            .map(|definition| definition.spec.stack)
            .collect();
        assert_eq!(stacks, [5, STACK_DEFAULT]);
    }
}
