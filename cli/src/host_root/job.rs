//! From arguments to the guest's job.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, absolute};

use rustix::process::{getgid, getuid};
use vmprobe_init::{Job, Root};

use super::error::RootError;
use crate::cli::RootArgs;
use crate::paths::{self, PathError};

/// What a command finds in its environment besides what the user passes on.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables that go to the guest if they are there.
const PASSED_ON: [&str; 4] = ["TERM", "LANG", "LC_ALL", "TZ"];

/// The job that `root` asks for. `tag` is what shares' tags begin with.
///
/// # Errors
/// A folder that isn't in the root, or whose path the protocol can't take.
pub fn of(root: &RootArgs, tag: &str) -> Result<Job, RootError> {
    let on_disk = root.is_disk();
    let (user, group) = if root.as_user {
        (getuid().as_raw(), getgid().as_raw())
    } else {
        (0, 0)
    };
    let base = root.root.as_deref().unwrap_or(Path::new("/"));
    let base = absolute(base).map_err(PathError::CurrentFolder)?;
    let mut mounts = BTreeMap::new();
    if on_disk && !root.writable.is_empty() {
        return Err(RootError::WritableOnDisk);
    }
    for (path, number) in root.writable.iter().zip(1..) {
        mounts.insert(inside(&base, path)?, format!("{tag}{number}"));
    }
    let here = env::current_dir().map_err(PathError::CurrentFolder)?;
    // Elsewhere the folder that the user is in means nothing.
    let folder = match &root.folder {
        Some(folder) => paths::text(folder)?,
        None if on_disk => "/".to_owned(),
        None => inside(&base, &here).unwrap_or_else(|_| "/".to_owned()),
    };
    Ok(Job {
        root: match on_disk {
            true => Root::Disk,
            false => Root::Share(tag.to_owned()),
        },
        mounts,
        command: root.command.clone(),
        environment: environment(root),
        folder,
        user,
        group,
    })
}

fn environment(root: &RootArgs) -> BTreeMap<String, String> {
    let home = if root.as_user {
        env::var("HOME").unwrap_or_else(|_| "/".to_owned())
    } else {
        "/root".to_owned()
    };
    let mut environment = BTreeMap::from([
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOME".to_owned(), home),
    ]);
    let own = |name: &str| Some((name.to_owned(), env::var(name).ok()?));
    environment.extend(PASSED_ON.into_iter().filter_map(own));
    for asked in &root.environment {
        match asked.split_once('=') {
            Some((name, value)) => drop(environment.insert(name.to_owned(), value.to_owned())),
            None => environment.extend(own(asked)),
        }
    }
    environment
}

/// Where a path of the host's is in the guest, whose root is `base`.
fn inside(base: &Path, path: &Path) -> Result<String, RootError> {
    let whole = absolute(path).map_err(PathError::CurrentFolder)?;
    let below = whole.strip_prefix(base).map_err(|_| RootError::NotInRoot {
        path: whole.clone(),
        root: base.to_owned(),
    })?;
    Ok(paths::text(&Path::new("/").join(below))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(at: &str) -> RootArgs {
        RootArgs {
            root: Some(at.into()),
            command: vec!["make".to_owned(), "check".to_owned()],
            ..Default::default()
        }
    }

    #[test]
    fn a_folder_that_may_be_written_has_its_path_in_the_root() {
        let asked = RootArgs {
            writable: vec!["/srv/tree/out".into()],
            ..root("/srv/tree")
        };
        let job = of(&asked, "root").unwrap();
        let mounts: Vec<_> = job.mounts.into_iter().collect();
        assert_eq!(mounts, [("/out".to_owned(), "root1".to_owned())]);
        let outside = RootArgs {
            writable: vec!["/etc".into()],
            ..asked
        };
        assert!(matches!(
            of(&outside, "root"),
            Err(RootError::NotInRoot { .. })
        ));
    }

    #[test]
    fn variables_are_passed_on_or_set() {
        let asked = RootArgs {
            environment: vec!["A=b=c".to_owned(), "NO_SUCH_VARIABLE".to_owned()],
            ..root("/")
        };
        let environment = of(&asked, "root").unwrap().environment;
        assert_eq!(environment["A"], "b=c");
        assert_eq!(environment["PATH"], PATH);
        assert!(!environment.contains_key("NO_SUCH_VARIABLE"));
    }

    #[test]
    fn a_command_is_root_s_or_the_user_s() {
        assert_eq!(of(&root("/"), "root").unwrap().user, 0);
        let asked = RootArgs {
            as_user: true,
            ..root("/")
        };
        assert_eq!(of(&asked, "root").unwrap().user, getuid().as_raw());
    }
}
