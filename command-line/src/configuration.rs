//! Options from a file.
//!
//! A file has the long names of options as its keys, in TOML. What may be there, and with which values, is what the
//! command line takes; so there is one list of options, and one set of rules for them. The environment comes on top of
//! the file, and the command line on top of both.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::{Spanned, Value};

/// Why a file is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// It can't be read.
    #[error("can't read the configuration {}: {cause}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Something in it is wrong.
    #[error("{}:{line}: {wrong}", .file.display())]
    Wrong {
        /// The file.
        file: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// What is wrong, and what would be right.
        wrong: String,
    },
}

/// Adds the options of the file that option `named_by` of `command` names, if it is given. `words` are those of the
/// command line, with the program's name as the first one, and so is the result, which `command` can parse. Options
/// in `not_in_file`, and what has no long name, are for the command line only.
///
/// # Errors
/// See [`ConfigurationError`]. What is wrong about `words` is no error here.
pub fn with_file(
    command: &Command,
    words: Vec<OsString>,
    named_by: &str,
    not_in_file: &[&str],
) -> Result<Vec<OsString>, ConfigurationError> {
    // What is wrong with the words is told when they are parsed.
    let given = command.clone().ignore_errors(true);
    let given = given.try_get_matches_from(&words).unwrap_or_default();
    let file = given.try_get_one::<PathBuf>(named_by).ok().flatten();
    // A subcommand takes none of these options.
    let Some(path) = file.filter(|_| given.subcommand_name().is_none()) else {
        return Ok(words);
    };
    let text = fs::read_to_string(path).map_err(|cause| ConfigurationError::Read {
        file: path.clone(),
        cause,
    })?;
    let mut command = command.clone();
    command.build();
    let reader = Reader {
        command: &command,
        given: &given,
        others: &[not_in_file, &[named_by]].concat(),
        path,
        text: &text,
    };
    let added = reader.words()?;
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default();
    Ok([program].into_iter().chain(added).chain(words).collect())
}

struct Reader<'a> {
    command: &'a Command,
    given: &'a ArgMatches,
    others: &'a [&'a str],
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn words(&self) -> Result<Vec<OsString>, ConfigurationError> {
        let keys: BTreeMap<String, Spanned<Value>> =
            toml::from_str(self.text).map_err(|error| {
                let at = error.span().map_or(0, |span| span.start);
                self.wrong(at, error.message().to_owned())
            })?;
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_by_key(|(_, value)| value.span().start);
        let mut words = Vec::new();
        for (key, value) in keys {
            let at = value.span().start;
            let arg = self.option(at, &key)?;
            let added = self.option_words(arg, at, value.get_ref())?;
            for word in &added {
                self.check(&key, at, word)?;
            }
            if !self.is_given(arg) {
                words.extend(added);
            }
        }
        Ok(words)
    }

    /// Returns the option that a key names.
    fn option(&self, at: usize, key: &str) -> Result<&Arg, ConfigurationError> {
        let mut options: Vec<(&str, &Arg)> = self
            .command
            .get_arguments()
            .filter(|arg| !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version))
            .filter_map(|arg| Some((arg.get_long()?, arg)))
            .filter(|(name, _)| {
                !self
                    .others
                    .iter()
                    .any(|other| other.replace('_', "-") == *name)
            })
            .collect();
        if let Some((_, arg)) = options.iter().find(|(name, _)| *name == key) {
            return Ok(arg);
        }
        options.sort_by_key(|(name, _)| *name);
        let names: Vec<&str> = options.into_iter().map(|(name, _)| name).collect();
        let wrong = format!(
            "there is no option `{key}`; there are: {}",
            names.join(", ")
        );
        Err(self.wrong(at, wrong))
    }

    /// Returns the words of the command line that say the same.
    fn option_words(
        &self,
        arg: &Arg,
        at: usize,
        value: &Value,
    ) -> Result<Vec<OsString>, ConfigurationError> {
        let name = arg.get_long().unwrap_or_default();
        let wanted = match arg.get_action() {
            ArgAction::SetTrue => "true or false",
            ArgAction::Append => "a text, a number or a list of these",
            _ => "a text or a number",
        };
        let wrong = || self.wrong(at, format!("`{name}` takes {wanted}"));
        let word = |value: &Value| match value {
            Value::String(text) => Some(format!("--{name}={text}").into()),
            Value::Integer(number) => Some(format!("--{name}={number}").into()),
            _ => None,
        };
        match (arg.get_action(), value) {
            (ArgAction::SetTrue, Value::Boolean(true)) => Ok(vec![format!("--{name}").into()]),
            (ArgAction::SetTrue, Value::Boolean(false)) => Ok(Vec::new()),
            (ArgAction::SetTrue, _) => Err(wrong()),
            (ArgAction::Append, Value::Array(list)) => {
                let words = list.iter().map(word);
                words.collect::<Option<_>>().ok_or_else(wrong)
            }
            _ => Ok(vec![word(value).ok_or_else(wrong)?]),
        }
    }

    /// Refuses a value that the option doesn't take. Options that go together may be given in several places, so what
    /// is wrong about those is told when all are parsed.
    fn check(&self, name: &str, at: usize, word: &OsString) -> Result<(), ConfigurationError> {
        let program = OsString::from(self.command.get_name());
        let Err(error) = self.command.clone().try_get_matches_from([&program, word]) else {
            return Ok(());
        };
        let is_value = matches!(
            error.kind(),
            ErrorKind::ValueValidation | ErrorKind::InvalidValue
        );
        // The error may be about a value in the environment instead.
        let is_this = matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(arg))
            if arg.split([' ', '=']).next() == Some(&format!("--{name}")));
        if !(is_value && is_this) {
            return Ok(());
        }
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Err(self.wrong(at, first.trim_start_matches("error: ").to_owned()))
    }

    /// Returns true if the command line or the environment has the option, or one that excludes it.
    fn is_given(&self, arg: &Arg) -> bool {
        let is_given = |arg: &Arg| {
            matches!(
                self.given.value_source(arg.get_id().as_str()),
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            )
        };
        let excluding = self.command.get_arg_conflicts_with(arg);
        is_given(arg) || excluding.into_iter().any(is_given)
    }

    fn wrong(&self, at: usize, wrong: String) -> ConfigurationError {
        let before = self.text.get(..at).unwrap_or_default();
        ConfigurationError::Wrong {
            file: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::value_parser;

    use super::*;

    fn command() -> Command {
        let text = |name: &'static str| Arg::new(name).long(name);
        Command::new("tool")
            .arg(text("config").value_parser(value_parser!(PathBuf)))
            .arg(text("listen").action(ArgAction::Append))
            .arg(
                text("most")
                    .value_parser(value_parser!(u32))
                    .env("MOST_OF_A_TEST"),
            )
            .arg(text("cert").requires("key"))
            .arg(text("key").requires("cert"))
            .arg(
                text("plain")
                    .action(ArgAction::SetTrue)
                    .conflicts_with("cert"),
            )
            .arg(text("once").action(ArgAction::SetTrue))
            .subcommand(Command::new("sub"))
            .args_conflicts_with_subcommands(true)
    }

    /// Returns the words for a file of this text, and more words behind the file's name.
    fn layered(text: &str, more: &[&str]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tool.toml");
        fs::write(&file, text).unwrap();
        let config = format!("--config={}", file.display());
        let words = ["tool", &config]
            .into_iter()
            .chain(more.iter().copied())
            .map(OsString::from);
        let all = with_file(&command(), words.collect(), "config", &["once"]);
        let all = all.map_err(|error| {
            let text = error.to_string();
            text.rsplit('/').next().unwrap_or_default().to_owned()
        })?;
        let text = all.into_iter().map(|word| word.into_string().unwrap());
        Ok(text.filter(|word| *word != config).skip(1).collect())
    }

    #[test]
    fn each_key_is_the_option_of_its_name() {
        let file = "# a comment\nlisten = ['a', \"b\"]\nmost = 7\nplain = true\n";
        let words = layered(file, &["--listen=c"]).unwrap();
        // A list of the command line takes the place of the file's.
        assert_eq!(words, ["--most=7", "--plain", "--listen=c"]);
        let words = layered(file, &[]).unwrap();
        assert_eq!(words, ["--listen=a", "--listen=b", "--most=7", "--plain"]);
        assert!(layered("plain = false", &[]).unwrap().is_empty());
    }

    #[test]
    fn the_command_line_takes_the_place_of_the_file_and_of_what_it_excludes_there() {
        assert_eq!(layered("most = 7", &["--most=8"]).unwrap(), ["--most=8"]);
        let words = layered("plain = true", &["--cert=c", "--key=k"]).unwrap();
        assert_eq!(words, ["--cert=c", "--key=k"]);
        // Options that go together may be in different places.
        let words = layered("key = 'k'", &["--cert=c"]).unwrap();
        assert!(
            command()
                .try_get_matches_from([&["tool".to_owned()], &*words].concat())
                .is_ok()
        );
    }

    #[test]
    fn the_environment_takes_the_place_of_the_file() {
        // A variable that cargo sets for each test, and a number.
        let command = command().mut_arg("most", |arg| arg.env("CARGO_PKG_VERSION_MINOR"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tool.toml");
        fs::write(&file, "most = 7").unwrap();
        let words = vec!["tool".into(), "--config".into(), file.into_os_string()];
        assert_eq!(
            with_file(&command, words.clone(), "config", &[]).unwrap(),
            words
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_would_be_right() {
        for (text, told) in [
            (
                "most = 1\nmots = 2",
                "tool.toml:2: there is no option `mots`; there are: cert, key, listen, most, plain",
            ),
            ("once = true", "tool.toml:1: there is no option `once`"),
            (
                "\n\nmost = 'x'",
                "tool.toml:3: invalid value 'x' for '--most <most>'",
            ),
            ("plain = 1", "tool.toml:1: `plain` takes true or false"),
            ("most = [1]", "tool.toml:1: `most` takes a text or a number"),
            (
                "listen = [[]]",
                "tool.toml:1: `listen` takes a text, a number or a list of these",
            ),
            ("most = ", "tool.toml:1: "),
            ("most = 1\nmost = 2", "tool.toml:2: duplicate key"),
            (
                "[table]\nmost = 1",
                "tool.toml:1: there is no option `table`",
            ),
        ] {
            let error = layered(text, &[]).unwrap_err();
            assert!(error.starts_with(told), "{text:?}: {error}");
        }
        let words = vec!["tool".into(), "--config=/no/such".into()];
        let error = with_file(&command(), words, "config", &[]).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }

    #[test]
    fn without_a_file_and_with_a_subcommand_the_words_stay_as_they_are() {
        for words in [
            vec!["tool"],
            vec!["tool", "--help"],
            vec!["tool", "--bad"],
            vec!["tool", "sub"],
        ] {
            let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
            let all = with_file(&command(), words.clone(), "config", &[]).unwrap();
            assert_eq!(all, words);
        }
    }
}
