//! Manual pages, one for each command.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// First lines of sections in the help, and the names that man-pages(7) has for such sections.
const SECTIONS: [(&str, &str); 2] = [("Exit codes:", "EXIT STATUS"), ("Examples:", "EXAMPLES")];

/// A page can't be written.
#[derive(Debug, thiserror::Error)]
#[error("can't write the manual page {}: {cause}", .page.display())]
pub struct ManualError {
    /// Its file.
    pub page: PathBuf,
    /// Why.
    pub cause: io::Error,
}

/// Writes a page for a command and one for each of its subcommands into a folder, which is made if it isn't there:
/// `tool.1`, `tool-sub.1`. `manual` is what the pages say that they belong to. Hidden commands have none.
///
/// # Errors
/// One can't be written.
pub fn write_manual(command: Command, manual: &str, folder: &Path) -> Result<(), ManualError> {
    let failed = |page: &Path| {
        let page = page.to_owned();
        move |cause| ManualError { page, cause }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let version = command.get_version().unwrap_or_default();
    let source = format!("{} {version}", command.get_name());
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        let subcommands = command.get_subcommands();
        left.extend(subcommands.filter(|it| !it.is_hide_set()).cloned());
        let man = Man::new(command.clone());
        let page = folder.join(man.get_filename());
        let name = page.file_stem().unwrap_or_default().to_string_lossy();
        // A page is made anew for each version, so no date says more than that (man(7)).
        let title = format!(".TH {name} 1 \"\" \"{source}\" \"{manual}\"\n");
        let text = render(title, &man, &command);
        text.and_then(|text| fs::write(&page, text))
            .map_err(failed(&page))?;
    }
    Ok(())
}

/// Renders a page. The text behind the options in the help keeps its lines as they are.
fn render(title: String, man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut page = title.into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|it| !it.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(notes(command).into_bytes());
    Ok(page)
}

fn notes(command: &Command) -> String {
    let help = command.get_after_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    let mut roff = Roff::new();
    let mut section = "";
    for paragraph in help.split("\n\n").filter(|text| !text.trim().is_empty()) {
        let known = SECTIONS.into_iter().find_map(|(first, name)| {
            Some((name, paragraph.strip_prefix(first)?.trim_matches('\n')))
        });
        let (name, text) = known.unwrap_or(("NOTES", paragraph));
        match name == section {
            true => roff.control("PP", []),
            false => roff.control("SH", [name]),
        };
        section = name;
        roff.control("nf", []);
        for line in text.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
    }
    roff.to_roff()
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn pages(command: Command) -> Vec<(String, String)> {
        let folder = tempfile::tempdir().unwrap();
        write_manual(command, "The Manual", &folder.path().join("made")).unwrap();
        let mut pages: Vec<_> = fs::read_dir(folder.path().join("made"))
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        pages.sort();
        pages
    }

    #[test]
    fn each_command_that_is_shown_has_a_page() {
        let deep = Command::new("deep").about("goes deep");
        let hidden = Command::new("hidden").hide(true);
        let outer = Command::new("outer").subcommand(deep).subcommand(hidden);
        let pages = pages(Command::new("tool").version("1.2").subcommand(outer));
        let names: Vec<&str> = pages.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["tool-outer-deep.1", "tool-outer.1", "tool.1"]);
        assert!(pages[0].1.contains("goes deep"), "{}", pages[0].1);
        assert!(pages[0].1.contains("tool 1.2"), "{}", pages[0].1);
        assert!(!pages[0].1.contains("SUBCOMMANDS"), "{}", pages[0].1);
        assert!(pages[1].1.contains("SUBCOMMANDS"), "{}", pages[1].1);
    }

    #[test]
    fn the_help_behind_the_options_keeps_its_lines_in_sections_of_their_own() {
        let help =
            "Examples:\n  tool -x\n  .tool 'y'\n\nA word.\n\nExit codes:\n  0  done\n  1  failed";
        let command = Command::new("tool")
            .arg(Arg::new("x").short('x'))
            .after_help(help);
        let page = &pages(command)[0].1;
        let order = [
            ".SH EXAMPLES",
            ".nf",
            "tool",
            ".SH NOTES",
            "A word",
            ".SH \"EXIT STATUS\"",
            "failed",
        ];
        let mut rest = &**page;
        for part in order {
            let at = rest
                .find(part)
                .unwrap_or_else(|| panic!("no {part}: {page}"));
            rest = &rest[at + part.len()..];
        }
        // A line that begins with a dot is no request of roff's (groff(7)).
        assert!(!page.contains("\n.tool"), "{page}");
    }
}
