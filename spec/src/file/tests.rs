use super::*;
use crate::{definition, render};

fn lines(text: &str) -> Vec<String> {
    definitions(text)
        .map(|found| match found {
            Ok(Command::Register(spec)) => definition(&spec),
            Ok(Command::Remove { name, only }) => format!("-{name} {}", only.join(" ")),
            Err(SpecError { line, column, .. }) => format!("{}:{column}", line.unwrap_or(0)),
        })
        .collect()
}

#[test]
fn each_line_is_a_command_a_comment_or_empty() {
    let table: [(&str, &[&str]); 13] = [
        ("", &[]),
        ("\n \n# p a\n  # x\n", &[]),
        ("p a\nr:x b $retval\r\n", &["p a", "r:x b $retval"]),
        ("p a#c\np b # p c", &["p a", "p b"]),
        ("p a if comm == \"#1\" # c", &["p a if comm == \"#1\""]),
        ("p a if comm == '#1'#'", &["p a if comm == '#1'"]),
        ("p a \\\"it's\"#x", &["p a \\\"it's\""]),
        ("p a # it's", &["p a"]),
        (
            "-:x\n -:g/x f $stack\n-:g/",
            &["-x ", "-g/x f $stack", "-g/ "],
        ),
        ("p a\n\np b+\n  p c *", &["p a", "3:5", "4:7"]),
        ("-x\n-:\n -:a*b", &["1:1", "2:3", "3:5"]),
        ("-:/x\n-:a.b/c", &["1:3", "2:3"]),
        ("p a \\\np b", &["1:6", "p b"]),
    ];
    for (text, expected) in table {
        assert_eq!(lines(text), expected, "{text}");
    }
}

#[test]
fn an_error_shows_its_line() {
    let error = definitions("p a\np vfs_read é=%di x=+0(%dx)\n")
        .find_map(Result::err)
        .unwrap();
    let expected = "\
error: an argument's name has letters, digits and _ only, and begins with no digit
 --> probes.txt:2:12
  |
2 | p vfs_read é=%di x=+0(%dx)
  |            ^";
    assert_eq!(render(&error, Some("probes.txt")), expected);
    let message = error.to_string();
    assert!(message.starts_with("line 2: bad probe `p vfs_read é=%di x=+0(%dx)`, column 12: an"));
    assert_eq!(error.kernel, Some("BAD_ARG_NAME"));
}
