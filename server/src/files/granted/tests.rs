use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{RenameFlags, renameat_with};
use tempfile::TempDir;
use tonic_types::StatusExt;

use super::*;

/// Two folders, and a file outside of them.
struct Host {
    folder: TempDir,
}

impl Host {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        for inner in ["read/inner", "write"] {
            fs::create_dir_all(folder.path().join(inner)).unwrap();
        }
        for file in ["read/file", "read/inner/file", "write/file", "secret"] {
            fs::write(folder.path().join(file), file).unwrap();
        }
        Self { folder }
    }

    fn path(&self, rest: &str) -> String {
        format!("{}/{rest}", self.folder.path().display())
    }

    fn granted(&self) -> GrantedFiles {
        GrantedFiles {
            files: vec![self.path("read").into()],
            writable_files: vec![self.path("write").into()],
            ..GrantedFiles::default()
        }
    }
}

fn read(file: &HostPath) -> String {
    fs::read_to_string(file.path()).unwrap()
}

/// Returns the text of a refusal, and checks that it doesn't have the path that was asked for.
fn refused(asked: Result<HostPath, Status>, path: &str) -> String {
    let status = asked.expect_err(path);
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let details = status.get_details_bad_request().unwrap();
    assert_eq!(details.field_violations[0].field, "kernel");
    let (told, path) = (
        status.message(),
        [format!("as {path}:"), format!("and {path} ")],
    );
    assert!(path.iter().any(|path| told.contains(path)), "{status}");
    path.iter()
        .fold(told.to_owned(), |told, path| told.replace(path, ""))
}

#[test]
fn files_below_the_folders_are_found_by_their_own_names_and_by_links_that_stay_below() {
    let host = Host::new();
    let granted = host.granted();
    symlink("inner/file", host.path("read/link")).unwrap();
    symlink("../file", host.path("read/inner/up")).unwrap();
    for (path, content) in [
        ("read/file", "read/file"),
        ("read/inner/../file", "read/file"),
        ("read//inner/./file", "read/inner/file"),
        ("read/link", "read/inner/file"),
        ("read/inner/up", "read/file"),
        ("write/file", "write/file"),
    ] {
        let path = host.path(path);
        let found = granted.file("kernel", &path).unwrap();
        assert_eq!(read(&found), content, "{path}");
        assert_eq!(found.to_string(), path);
    }
    let missing = host.path("read/missing");
    let error = granted.file("kernel", &missing).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("No such file"), "{error}");
    let disk = granted.disk("path", &host.path("write/file"), Use::Write);
    let disk = disk.unwrap();
    fs::write(disk.path(), "changed").unwrap();
    assert_eq!(
        fs::read_to_string(host.path("write/file")).unwrap(),
        "changed"
    );
    assert!(
        granted
            .folder("path", &host.path("read"), Use::Read)
            .is_ok()
    );
}

#[test]
fn what_leads_out_of_the_folders_is_refused_in_the_same_words_whether_it_is_there_or_not() {
    let host = Host::new();
    let granted = host.granted();
    let link = |to: &str, name: &str| symlink(to, host.path(name)).unwrap();
    link("../secret", "read/out");
    link("../none", "read/to-none");
    link("/etc/passwd", "read/absolute");
    link("/etc/none", "read/absolute-none");
    link("..", "read/above");
    link(&host.path("read/file"), "read/absolute-within");
    link("loop", "read/loop");
    let out = [
        host.path("secret"),
        host.path("none"),
        host.path("read/../secret"),
        host.path("read/../none"),
        host.path("read/../read/file"),
        host.path("read/inner/../../secret"),
        host.path("read/out"),
        host.path("read/to-none"),
        host.path("read/absolute"),
        host.path("read/absolute-none"),
        host.path("read/above/secret"),
        host.path("read/above/none"),
        host.path("read/absolute-within"),
        host.path("read/loop"),
        host.path("readable"),
        "/etc/passwd".to_owned(),
        "/etc/none".to_owned(),
        "/proc/self/fd/0".to_owned(),
        "relative".to_owned(),
        "../relative".to_owned(),
        "/".to_owned(),
    ];
    let mut texts: Vec<_> = out
        .iter()
        .map(|path| refused(granted.file("kernel", path), path))
        .collect();
    texts.dedup();
    let [text] = &texts[..] else {
        panic!("{texts:#?}");
    };
    assert!(text.contains(&host.path("read")), "{text}");
    assert!(text.contains("vmprobe image push"), "{text}");
    // Files that are only to be read may not be changed either.
    for path in ["read/file", "read/missing", "secret"] {
        let path = host.path(path);
        let text = refused(granted.disk("kernel", &path, Use::Write), &path);
        assert!(!text.contains(&host.path("read ")), "{text}");
        refused(granted.folder("kernel", &path, Use::Write), &path);
        refused(granted.new_socket("kernel", &path), &path);
        refused(granted.socket("kernel", &path), &path);
    }
}

#[test]
fn a_link_of_the_system_to_an_open_file_leads_nowhere() {
    let open = fs::File::open("/etc/passwd").unwrap();
    let granted = GrantedFiles {
        files: vec!["/proc".into()],
        ..GrantedFiles::default()
    };
    let pid = std::process::id();
    let number = std::os::fd::AsRawFd::as_raw_fd(&open);
    for path in [
        format!("/proc/{pid}/fd/{number}"),
        format!("/proc/{pid}/root/etc/passwd"),
        format!("/proc/{pid}/exe"),
    ] {
        refused(granted.file("kernel", &path), &path);
    }
}

#[test]
fn no_file_may_be_named_where_the_owner_has_named_no_folder() {
    let granted = GrantedFiles::below(&Folders::default());
    let mut texts: Vec<_> = ["/etc/passwd", "/etc/none", "relative"]
        .iter()
        .map(|path| refused(granted.file("kernel", path), path))
        .collect();
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:#?}");
    assert!(texts[0].contains("--files"), "{texts:?}");
}

/// While a folder on the way is swapped for a link that leads out, a path leads to the file below, or is refused.
#[test]
fn a_link_that_takes_a_folder_s_place_meanwhile_leads_nowhere() {
    const ROUNDS: usize = 20_000;
    let host = Host::new();
    let granted = host.granted();
    fs::create_dir(host.path("outside")).unwrap();
    fs::write(host.path("outside/file"), "secret").unwrap();
    symlink("../outside", host.path("read/swapped")).unwrap();
    let (inner, swapped) = (host.path("read/inner"), host.path("read/swapped"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let exchange = RenameFlags::EXCHANGE;
                renameat_with(CWD, &inner, CWD, &swapped, exchange).unwrap();
            }
        });
        let path = host.path("read/inner/file");
        let (mut found, mut refusals) = (0, 0);
        while found < ROUNDS && refusals < ROUNDS || found == 0 || refusals == 0 {
            match granted.file("kernel", &path) {
                Ok(file) => {
                    assert_eq!(read(&file), "read/inner/file");
                    found += 1;
                }
                Err(status) => {
                    refused(Err(status), &path);
                    refusals += 1;
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_socket_is_made_in_the_folder_that_was_found() {
    let host = Host::new();
    let granted = host.granted();
    let socket = granted.new_socket("kernel", &host.path("write/s")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(socket.path()).unwrap();
    assert!(fs::symlink_metadata(host.path("write/s")).is_ok());
    let found = granted.socket("kernel", &host.path("write/s")).unwrap();
    assert!(std::os::unix::net::UnixStream::connect(found.path()).is_ok());
    for path in ["write/..", "write/missing/s"] {
        assert!(granted.new_socket("kernel", &host.path(path)).is_err());
    }
}

#[test]
fn an_image_is_read_as_it_is_and_changed_in_a_copy() {
    let host = Host::new();
    let image = || GrantedImage {
        name: "a".into(),
        file: host.path("secret").into(),
    };
    let granted = GrantedFiles {
        images: vec![image()],
        copies: Some(host.folder.path().into()),
        ..GrantedFiles::default()
    };
    assert_eq!(read(&granted.file("kernel", "image:a").unwrap()), "secret");
    let disk = granted.disk("path", "image:a", Use::Write).unwrap();
    assert_eq!(disk.to_string(), "image:a");
    fs::write(disk.path(), "changed").unwrap();
    assert_eq!(read(&disk), "changed");
    let again = granted.disk("path", "image:a", Use::Write).unwrap();
    assert_eq!(read(&again), "secret");
    let missing = granted.file("kernel", "image:b").unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    // The image's own file may not be named.
    let path = host.path("secret");
    refused(granted.file("kernel", &path), &path);
}

#[test]
fn a_confined_process_reaches_the_folders_that_its_request_may_name() {
    let host = Host::new();
    let granted = host.granted();
    let paths = |paths: &[&str]| {
        paths
            .iter()
            .map(|path| host.path(path).into())
            .collect::<Vec<_>>()
    };
    let (access, held) = granted.access(
        &paths(&["read/inner", "outside"]),
        &paths(&["read/inner", "write"]),
        &paths(&["write", "read"]),
    );
    let expected = [&access.read, &access.write, &access.sockets].map(Vec::len);
    assert_eq!((expected, held.len()), ([1, 1, 1], 3));
    assert!(access.read[0].join("file").is_file());
}
