//! From arguments to the guest's job.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, absolute};

use rustix::process::{getgid, getuid};
use vmprobe_init::{Changes, Command, Job, Root, Task};

use super::error::RootError;
use crate::cli::{RootArgs, RootPlace};
use crate::paths::{self, PathError};

/// What a command finds in its environment besides what the user passes on.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables that go to the guest if they are there.
const PASSED_ON: [&str; 4] = ["TERM", "LANG", "LC_ALL", "TZ"];

/// Makes the job that `root` asks for, where the root is at `place`. `tag` is what shares' tags begin with.
///
/// # Errors
/// A folder that isn't in the root, or whose path the protocol can't take.
pub fn of(
    root: &RootArgs,
    (place, changes): (&RootPlace, Changes),
    tag: &str,
) -> Result<Job, RootError> {
    let base = match place {
        RootPlace::Folder(folder) => Some(absolute(folder).map_err(PathError::CurrentFolder)?),
        RootPlace::Disk(_) => None,
    };
    let mut mounts = BTreeMap::new();
    for (path, number) in root.writable.iter().zip(1..) {
        let base = base.as_deref().ok_or(RootError::WritableOnDisk)?;
        mounts.insert(inside(base, path)?, format!("{tag}{number}"));
    }
    Ok(Job {
        root: match place {
            RootPlace::Folder(_) => Root::Share(tag.to_owned()),
            RootPlace::Disk(_) => Root::Disk,
        },
        changes,
        mounts,
        task: match &root.init {
            Some(program) => Task::Init(program.clone()),
            None => Task::Command(command(root, base.as_deref())?),
        },
    })
}

/// Makes the command, in a root that is the host's folder `base` or no folder of the host's.
fn command(root: &RootArgs, base: Option<&Path>) -> Result<Command, RootError> {
    let (user, group) = if root.as_user {
        (getuid().as_raw(), getgid().as_raw())
    } else {
        (0, 0)
    };
    let here = env::current_dir().map_err(PathError::CurrentFolder)?;
    // In another root, the folder that the user is in means nothing.
    let same_folder = || base.and_then(|base| inside(base, &here).ok());
    let folder = match &root.folder {
        Some(folder) => paths::text(folder)?,
        None => same_folder().unwrap_or_else(|| "/".to_owned()),
    };
    Ok(Command {
        words: root.command.clone(),
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

/// Returns where a path of the host's is in the guest, whose root is `base`.
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

    fn asked() -> RootArgs {
        RootArgs {
            command: vec!["make".to_owned(), "check".to_owned()],
            ..Default::default()
        }
    }

    fn job(asked: &RootArgs, at: &str) -> Result<Job, RootError> {
        let place = RootPlace::Folder(at.into());
        of(asked, (&place, Changes::Memory), "root")
    }

    fn command_of(asked: &RootArgs) -> Command {
        match job(asked, "/").unwrap().task {
            Task::Command(command) => command,
            Task::Init(program) => panic!("{program} is the system's"),
        }
    }

    #[test]
    fn a_folder_that_may_be_written_has_its_path_in_the_root() {
        let asked = RootArgs {
            writable: vec!["/srv/tree/out".into()],
            ..asked()
        };
        let mounts: Vec<_> = job(&asked, "/srv/tree")
            .unwrap()
            .mounts
            .into_iter()
            .collect();
        assert_eq!(mounts, [("/out".to_owned(), "root1".to_owned())]);
        let outside = RootArgs {
            writable: vec!["/etc".into()],
            ..asked.clone()
        };
        assert!(matches!(
            job(&outside, "/srv/tree"),
            Err(RootError::NotInRoot { .. })
        ));
        let disk = RootPlace::Disk("/srv/image".parse().unwrap());
        let refused = of(&asked, (&disk, Changes::Root), "root");
        assert!(matches!(refused, Err(RootError::WritableOnDisk)));
    }

    #[test]
    fn a_system_s_program_is_the_whole_task() {
        let asked = RootArgs {
            init: Some("/sbin/init".to_owned()),
            ..RootArgs::default()
        };
        let disk = RootPlace::Disk("/srv/image".parse().unwrap());
        let job = of(&asked, (&disk, Changes::Root), "root").unwrap();
        assert_eq!(job.root, Root::Disk);
        assert_eq!(job.task, Task::Init("/sbin/init".to_owned()));
    }

    #[test]
    fn variables_are_passed_on_or_set() {
        let asked = RootArgs {
            environment: vec!["A=b=c".to_owned(), "NO_SUCH_VARIABLE".to_owned()],
            ..asked()
        };
        let environment = command_of(&asked).environment;
        assert_eq!(environment["A"], "b=c");
        assert_eq!(environment["PATH"], PATH);
        assert!(!environment.contains_key("NO_SUCH_VARIABLE"));
    }

    #[test]
    fn a_command_is_root_s_or_the_user_s() {
        assert_eq!(command_of(&asked()).user, 0);
        let asked = RootArgs {
            as_user: true,
            ..asked()
        };
        assert_eq!(command_of(&asked).user, getuid().as_raw());
    }
}
