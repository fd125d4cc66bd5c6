//! Confined threads: what they may do, and what becomes of one that does more.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed helper fails its test"
)]

use std::fs::{self, File};
use std::hint::black_box;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use vmm::confinement::{Access, Confinement, Role};

/// Set where a test runs in a process of its own: a thread's confinement is for good.
const CHILD: &str = "VMPROBE_CONFINED_TEST";

/// Set to the number of a role where a test runs in a process of its own for each.
const ROLE: &str = "VMPROBE_CONFINED_ROLE";

/// The test of this name, as a process of its own.
fn process(test: &str) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "--nocapture", "--test-threads=1", test]);
    process
}

/// Runs the test of this name in a process of its own.
fn in_a_process(test: &str) -> Output {
    process(test).env(CHILD, "1").output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_forbidden_call_ends_the_process_and_is_named() {
    if is_child() {
        let confinement = Confinement::prepare(&Access::default(), true).unwrap();
        let made = confinement.spawn(Role::Entropy, "a-device".to_owned(), || {
            UdpSocket::bind("127.0.0.1:0").is_ok()
        });
        let _unreached = made.unwrap().join();
        return;
    }
    let output = in_a_process("a_forbidden_call_ends_the_process_and_is_named");
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
    let text = error_text(&output);
    let call = format!(
        "the thread a-device has made system call {}",
        libc::SYS_socket
    );
    assert!(text.contains(&call), "{text}");
}

#[test]
fn a_thread_of_each_role_may_be_the_first_to_give_memory_back() {
    if let Some(number) = std::env::var_os(ROLE) {
        let role = Role::ALL[number.to_str().unwrap().parse::<usize>().unwrap()];
        let confinement = Confinement::prepare(&Access::default(), true).unwrap();
        let thread = confinement.spawn(role, "frees".to_owned(), || {
            // Below malloc's threshold for mappings, and together above the one for memory that is given back.
            let blocks = [(); 64].map(|()| black_box(vec![1_u8; 100 << 10]));
            blocks.len()
        });
        assert_eq!(thread.unwrap().join().unwrap(), 64);
        return;
    }
    for (number, role) in Role::ALL.into_iter().enumerate() {
        let name = "a_thread_of_each_role_may_be_the_first_to_give_memory_back";
        let output = process(name).env(ROLE, number.to_string()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{role:?}: {output:?}");
    }
}

#[test]
fn a_thread_reaches_the_files_of_its_guest_and_no_others() {
    if !is_child() {
        let output = in_a_process("a_thread_reaches_the_files_of_its_guest_and_no_others");
        let text = error_text(&output);
        assert!(output.status.success(), "{text}");
        println!("{}", text.lines().last().unwrap_or_default());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["read", "write", "other"] {
        fs::create_dir(path(name)).unwrap();
        fs::write(path(name).join("file"), name).unwrap();
    }
    symlink(path("other").join("file"), path("read").join("link")).unwrap();
    let access = Access {
        read: vec![path("read")],
        write: vec![path("write")],
        sockets: vec![],
    };
    // The rules are those of all threads; the filter of a file system lets all of these calls through.
    let confinement = Confinement::prepare(&access, true).unwrap();
    confinement.seal().unwrap();
    let (read, write, other) = (path("read"), path("write"), path("other"));
    let thread = confinement.spawn(Role::FileSystem, "files".to_owned(), move || {
        let reads = |folder: &Path| File::open(folder.join("file")).map(drop);
        let makes = |folder: &Path| File::create(folder.join("new")).map(drop);
        let link = read.join("link");
        [
            reads(&read),
            makes(&write),
            reads(&write),
            makes(&read),
            reads(&other),
            File::open(&link).map(drop),
            File::open("/proc/self/mem").map(drop),
        ]
        .map(|result| result.map_err(|error| error.kind()))
    });
    let thread = thread.unwrap();
    let denied = Err(ErrorKind::PermissionDenied);
    let results = thread.join().unwrap();
    assert_eq!(results[..3], [Ok(()), Ok(()), Ok(())]);
    if results[4].is_ok() {
        eprintln!("skipped: this host's kernel has no landlock");
        return;
    }
    assert_eq!(results[3..], [denied; 4]);
}

#[test]
fn a_thread_is_confined_when_the_process_has_no_file_left_to_open() {
    if !is_child() {
        let output = in_a_process("a_thread_is_confined_when_the_process_has_no_file_left_to_open");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    use rustix::process::{Resource, Rlimit, setrlimit};
    let confinement = Confinement::prepare(&Access::default(), true).unwrap();
    confinement.seal().unwrap();
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let thread = confinement.spawn(Role::Vcpu, "vcpu0".to_owned(), || 1);
    assert_eq!(thread.unwrap().join().unwrap(), 1);
}

#[test]
fn a_thread_that_the_kernel_does_not_restrict_does_no_work_and_is_refused() {
    if !is_child() {
        let name = "a_thread_that_the_kernel_does_not_restrict_does_no_work_and_is_refused";
        let output = in_a_process(name);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let confinement = Confinement::prepare(&Access::default(), false).unwrap();
    // The kernel takes 16 sets of rules of one thread and its parents (LANDLOCK_MAX_NUM_LAYERS).
    if (0..=16).all(|_| confinement.seal().is_ok()) {
        eprintln!("skipped: this host's kernel has no landlock");
        return;
    }
    let thread = confinement.spawn(Role::Vcpu, "vcpu0".to_owned(), || panic!("it works"));
    let error = thread.map(drop).unwrap_err().to_string();
    assert!(error.contains("restrict the files"), "{error}");
}

#[test]
fn a_thread_keeps_no_capability_but_those_of_files_for_a_root_s_share() {
    if !is_child() {
        let name = "a_thread_keeps_no_capability_but_those_of_files_for_a_root_s_share";
        let output = in_a_process(name);
        assert!(output.status.success(), "{}", error_text(&output));
        return;
    }
    use rustix::thread::{CapabilitySet, capabilities};
    let own = capabilities(None).unwrap().permitted;
    let access = Access {
        read: vec!["/".into()],
        ..Access::default()
    };
    // Without filters, so that a thread may ask.
    let confinement = Confinement::prepare(&access, false).unwrap();
    let of = |role| {
        let ask = || capabilities(None).unwrap().permitted;
        let thread = confinement.spawn(role, "asks".to_owned(), ask);
        thread.unwrap().join().unwrap()
    };
    assert_eq!(of(Role::Vcpu), CapabilitySet::empty());
    assert_eq!(of(Role::Service), CapabilitySet::empty());
    let files = CapabilitySet::CHOWN | CapabilitySet::SETUID | CapabilitySet::DAC_OVERRIDE;
    assert_eq!(of(Role::FileSystem) & files, own & files);
    assert!(!of(Role::FileSystem).contains(CapabilitySet::SYS_ADMIN));
}
