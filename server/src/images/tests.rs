use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tonic::Code;
use tonic_types::StatusExt;
use vmprobe_proto::v1;

use super::grant::image_status;
use super::upload::Upload;
use super::*;
use crate::access::Account;
use crate::files::GrantedFiles;
use crate::limits::{self, Limits};

const MIB: usize = 1 << 20;

fn account(name: &str) -> Account {
    Account::Client(name.into())
}

fn open(folder: &TempDir, limits: &Limits) -> Arc<ImageStore> {
    ImageStore::open(folder.path(), limits).unwrap()
}

fn folder() -> TempDir {
    TempDir::new().unwrap()
}

fn begin(bytes: &[u8], name: &str) -> Begin {
    Begin {
        name: name.into(),
        size: bytes.len() as u64,
        digest: Digest(Sha256::digest(bytes).into()),
    }
}

fn begun(store: &Arc<ImageStore>, client: &str, wanted: Begin) -> Result<Begun, ImageError> {
    store.begin(&account(client), wanted, store.upload_place()?)
}

fn upload(store: &Arc<ImageStore>, client: &str, wanted: Begin) -> Result<Upload, ImageError> {
    match begun(store, client, wanted)? {
        Begun::Upload(upload) => Ok(*upload),
        Begun::There(image) => panic!("{image:?} is there already"),
    }
}

fn push(
    store: &Arc<ImageStore>,
    client: &str,
    bytes: &[u8],
    name: &str,
) -> Result<KeptImage, ImageError> {
    let mut upload = upload(store, client, begin(bytes, name))?;
    for chunk in bytes.chunks(limits::IMAGE_CHUNK) {
        upload.write(chunk)?;
    }
    store.keep(upload)
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Returns the numbers of contents and of unfinished files.
fn counts(folder: &TempDir) -> (usize, usize) {
    let of = |name| files(&folder.path().join(name));
    (of("content"), of("unfinished"))
}

#[test]
fn an_image_is_its_clients_by_name_and_digest_and_outlasts_the_server() {
    let folder = folder();
    let limits = Limits::default();
    let store = open(&folder, &limits);
    let pushed = push(&store, "alice", b"kernel", "linux").unwrap();
    assert_eq!(fs::read(store.content(pushed.digest)).unwrap(), b"kernel");
    drop(store);
    let store = open(&folder, &limits);
    let digest = format!("sha256-{}", pushed.digest);
    for text in ["linux", &digest] {
        assert_eq!(store.find(&account("alice"), text).unwrap(), pushed);
        for other in [account("bob"), Account::User(0), Account::Anonymous] {
            let error = store.find(&other, text).unwrap_err();
            assert!(matches!(error, ImageError::Missing(_)), "{error}");
            assert!(store.list(&other).is_empty());
        }
    }
    assert_eq!(store.list(&account("alice")), [pushed]);
    assert_eq!(counts(&folder), (1, 0));
}

#[test]
fn an_upload_that_is_not_what_was_announced_leaves_nothing() {
    let folder = folder();
    let limits = Limits {
        client_images_mib: 1,
        ..Limits::default()
    };
    let store = open(&folder, &limits);
    let announced = || begin(&[7; 1000], "a");
    let started = || upload(&store, "alice", announced()).unwrap();
    let mut short = started();
    short.write(&[7; 999]).unwrap();
    let error = store.keep(short).unwrap_err();
    assert!(
        matches!(error, ImageError::Short { found: 999, .. }),
        "{error}"
    );
    let mut long = started();
    long.write(&[7; 1000]).unwrap();
    let error = long.write(&[7]).unwrap_err();
    assert!(
        matches!(error, ImageError::Long { found: 1001, .. }),
        "{error}"
    );
    drop(long);
    let mut other = started();
    other.write(&[8; 1000]).unwrap();
    let error = store.keep(other).unwrap_err();
    assert!(matches!(error, ImageError::Content { .. }), "{error}");
    let mut parts = started();
    for error in [
        parts.write(&[]).unwrap_err(),
        parts.write(&vec![7; limits::IMAGE_CHUNK + 1]).unwrap_err(),
        parts.write_zeros(0).unwrap_err(),
        parts.write_zeros(limits::IMAGE_ZEROS + 1).unwrap_err(),
    ] {
        assert!(matches!(error, ImageError::Part), "{error}");
    }
    drop(parts);
    let cut_off = started();
    assert_eq!(counts(&folder), (0, 1));
    drop(cut_off);
    assert_eq!(counts(&folder), (0, 0));
    assert!(store.list(&account("alice")).is_empty());
    // Those images take no room any more either.
    push(&store, "alice", &vec![1; MIB], "").unwrap();
}

#[test]
fn what_can_be_no_image_is_refused_before_its_content() {
    let folder = folder();
    let store = open(&folder, &Limits::default());
    for name in ["a b", "a/b", "..\n", "sha256-a", &"x".repeat(65)] {
        let error = begun(&store, "alice", begin(b"a", name)).unwrap_err();
        assert!(matches!(error, ImageError::Name), "{error}");
    }
    let error = begun(&store, "alice", begin(b"", "")).unwrap_err();
    assert!(matches!(error, ImageError::Empty), "{error}");
    assert_eq!(counts(&folder), (0, 0));
}

#[test]
fn zeros_count_for_the_content_and_take_no_room_on_the_disk() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder();
    let store = open(&folder, &Limits::default());
    let mut bytes = vec![0; 8 * MIB];
    bytes[3 * MIB] = 1;
    let mut upload = upload(&store, "alice", begin(&bytes, "")).unwrap();
    upload.write_zeros(3 * MIB as u64).unwrap();
    upload.write(&bytes[3 * MIB..4 * MIB]).unwrap();
    upload.write_zeros(4 * MIB as u64).unwrap();
    let image = store.keep(upload).unwrap();
    let file = store.content(image.digest);
    assert!(fs::read(&file).unwrap() == bytes);
    let found = fs::metadata(&file).unwrap();
    assert!(found.blocks() * 512 < 2 * MIB as u64, "{}", found.blocks());
    assert_eq!(found.mode() & 0o777, 0o400);
}

#[test]
fn the_same_content_is_kept_once_and_whoever_wants_it_hands_it_over() {
    let folder = folder();
    let store = open(&folder, &Limits::default());
    push(&store, "alice", b"same", "a").unwrap();
    // Bob doesn't learn that alice has it.
    let theirs = push(&store, "bob", b"same", "b").unwrap();
    assert_eq!(counts(&folder), (1, 0));
    let Begun::There(image) = begun(&store, "bob", begin(b"same", "c")).unwrap() else {
        panic!("bob's own has to come again");
    };
    assert_eq!(image.names, ["b", "c"]);
    store.delete(&account("alice"), "a").unwrap();
    assert_eq!(counts(&folder), (1, 0));
    assert_eq!(fs::read(store.content(theirs.digest)).unwrap(), b"same");
    store.delete(&account("bob"), "c").unwrap();
    assert_eq!(counts(&folder), (0, 0));
    let error = store.find(&account("bob"), "b").unwrap_err();
    assert!(matches!(error, ImageError::Missing(_)), "{error}");
}

#[test]
fn uploads_of_the_same_content_at_the_same_time_become_one_file() {
    let folder = folder();
    let store = open(&folder, &Limits::default());
    let wanted = || begin(&[7; 3000], "a");
    let started: Vec<_> = ["alice", "alice", "bob", "carol"]
        .map(|client| upload(&store, client, wanted()).unwrap())
        .into_iter()
        .collect();
    thread::scope(|scope| {
        for mut upload in started {
            let store = &store;
            scope.spawn(move || {
                for part in [1000, 1500, 500] {
                    upload.write(&vec![7; part]).unwrap();
                }
                store.keep(upload).unwrap();
            });
        }
    });
    assert_eq!(counts(&folder), (1, 0));
    for client in ["alice", "bob", "carol"] {
        assert_eq!(store.list(&account(client)).len(), 1);
    }
}

#[test]
fn a_name_is_given_to_the_image_that_was_last_called_so() {
    let folder = folder();
    let store = open(&folder, &Limits::default());
    let first = push(&store, "alice", b"first", "linux").unwrap();
    push(&store, "bob", b"other", "linux").unwrap();
    let second = push(&store, "alice", b"second", "linux").unwrap();
    let found = store.find(&account("alice"), "linux").unwrap();
    assert_eq!(found.digest, second.digest);
    let first = format!("sha256-{}", first.digest);
    let first = store.find(&account("alice"), &first).unwrap();
    assert!(first.names.is_empty());
    assert_eq!(
        store.find(&account("bob"), "linux").unwrap().names,
        ["linux"]
    );
}

#[test]
fn what_is_too_much_is_refused_by_the_limit_s_name() {
    let folder = folder();
    let limits = Limits {
        image_mib: 3,
        client_images_mib: 4,
        images_mib: 7,
        image_count: 4,
        uploads: 2,
        ..Limits::default()
    };
    let store = open(&folder, &limits);
    let refused = |error: ImageError, option: &str| {
        let status = image_status(&error, None);
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().ends_with(option), "{status}");
    };
    let of = |byte: u8, mib: usize| vec![byte; mib * MIB];
    let begin = |client: &str, bytes: &[u8]| begun(&store, client, begin(bytes, ""));
    refused(begin("alice", &of(1, 4)).unwrap_err(), "--max-image");
    push(&store, "alice", &of(1, 2), "").unwrap();
    let under_way = upload(&store, "alice", super::tests::begin(&of(2, 2), "")).unwrap();
    refused(
        begin("alice", b"one more").unwrap_err(),
        "--max-client-images",
    );
    push(&store, "bob", &of(3, 1), "").unwrap();
    refused(begin("bob", &of(4, 3)).unwrap_err(), "--max-images");
    drop(under_way);
    push(&store, "bob", &of(4, 2), "").unwrap();
    push(&store, "alice", b"small", "").unwrap();
    refused(begin("carol", b"c").unwrap_err(), "--max-image-count");
    let places: Vec<_> = (0..2).map(|_| store.upload_place().unwrap()).collect();
    refused(store.upload_place().unwrap_err(), "--max-uploads");
    drop(places);
    // A private copy counts as well.
    let room = store.room(&account("alice"), 1 << 20).unwrap();
    refused(
        store.room(&account("alice"), 1 << 20).unwrap_err(),
        "--max-client-images",
    );
    refused(
        store.room(&account("alice"), u64::MAX).unwrap_err(),
        "--max-client-images",
    );
    drop(room);
    assert!(store.room(&account("alice"), 1 << 20).is_ok());
}

#[test]
fn what_a_crash_has_left_is_removed_and_what_it_has_lost_is_forgotten() {
    let folder = folder();
    let limits = Limits::default();
    let store = open(&folder, &limits);
    let kept = push(&store, "alice", b"kept", "kept").unwrap();
    let lost = push(&store, "alice", b"lost", "lost").unwrap();
    fs::remove_file(store.content(lost.digest)).unwrap();
    drop(store);
    fs::write(folder.path().join("unfinished/.tmpX"), "part").unwrap();
    fs::write(
        folder.path().join("content").join("0".repeat(64)),
        "not listed",
    )
    .unwrap();
    let store = open(&folder, &limits);
    assert_eq!(counts(&folder), (1, 0));
    assert_eq!(store.list(&account("alice")), [kept]);
}

#[test]
fn a_folder_is_one_servers_and_nobody_else_can_write_to_it() {
    let folder = folder();
    let limits = Limits::default();
    let store = open(&folder, &limits);
    let error = ImageStore::open(folder.path(), &limits).unwrap_err();
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    drop(store);
    fs::write(folder.path().join("images.json"), "{}").unwrap();
    let error = ImageStore::open(folder.path(), &limits).unwrap_err();
    assert!(error.to_string().contains("images.json"), "{error}");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let error = ImageStore::open(folder.path(), &limits).unwrap_err();
    assert!(matches!(error, OpenError::Others(_)), "{error}");
}

fn request(kernel: &str, disks: &[(&str, bool, v1::DiskFormat)]) -> v1::CreateVmRequest {
    let disks = disks.iter().map(|(path, read_only, format)| v1::Disk {
        path: (*path).to_owned(),
        read_only: *read_only,
        format: (*format).into(),
        limit: None,
    });
    v1::CreateVmRequest {
        name: "vm".into(),
        kernel: kernel.into(),
        devices: Some(v1::Devices {
            disks: disks.collect(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn a_vm_holds_the_images_that_it_uses_and_room_for_its_copies() {
    const RAW: v1::DiskFormat = v1::DiskFormat::Unspecified;
    let folder = folder();
    let limits = Limits {
        client_images_mib: 4,
        ..Limits::default()
    };
    let store = open(&folder, &limits);
    let alice = account("alice");
    push(&store, "alice", b"kernel", "k").unwrap();
    let disk = push(&store, "alice", &vec![1; MIB], "d").unwrap();
    let asked = request(
        "image:k",
        &[
            ("/path", false, RAW),
            ("image:d", true, RAW),
            ("image:d", false, RAW),
            ("image:d", false, RAW),
        ],
    );
    let mut granted = GrantedFiles::default();
    let held = grant(Some(&store), &alice, &asked, &mut granted).unwrap();
    let names: Vec<_> = granted
        .images
        .iter()
        .map(|image| image.name.as_str())
        .collect();
    assert_eq!(names, ["k", "d"]);
    assert_eq!(granted.images[1].file, store.content(disk.digest));
    assert_eq!(granted.copies, Some(store.unfinished()));
    for name in ["k", "d"] {
        assert_eq!(store.find(&alice, name).unwrap().vms, ["vm"]);
        let error = store.delete(&alice, name).unwrap_err();
        let status = image_status(&error, None);
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("vm"), "{status}");
    }
    // There is only room for two copies and the images.
    let again = grant(Some(&store), &alice, &asked, &mut GrantedFiles::default());
    let status = again.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let field = &status.get_details_bad_request().unwrap().field_violations[0].field;
    assert_eq!(field, "devices.disks[2].path");
    drop(held);
    assert!(store.find(&alice, "d").unwrap().vms.is_empty());
    store.delete(&alice, "d").unwrap();
    for (store, account, code) in [
        (Some(&store), &alice, Code::NotFound),
        (Some(&store), &account("bob"), Code::NotFound),
        (None, &alice, Code::FailedPrecondition),
    ] {
        let asked = request("/path", &[("image:d", true, RAW)]);
        let status = grant(store, account, &asked, &mut GrantedFiles::default()).unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        let field = &status.get_details_bad_request().unwrap().field_violations[0].field;
        assert_eq!(field, "devices.disks[0].path");
    }
}

#[test]
fn a_copy_of_a_qcow2_image_may_grow_to_all_that_the_disk_has() {
    const QCOW2: v1::DiskFormat = v1::DiskFormat::Qcow2;
    let folder = folder();
    let store = open(&folder, &Limits::default());
    let alice = account("alice");
    let mut header = b"QFI\xfb".to_vec();
    header.resize(24, 0);
    header.extend((1_u64 << 62).to_be_bytes());
    push(&store, "alice", &header, "huge").unwrap();
    push(&store, "alice", b"QFI", "none").unwrap();
    let grant = |path, read_only, format| {
        let asked = request("/path", &[(path, read_only, format)]);
        grant(Some(&store), &alice, &asked, &mut GrantedFiles::default())
    };
    let status = grant("image:huge", false, QCOW2).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(grant("image:huge", true, QCOW2).is_ok());
    assert!(grant("image:huge", false, v1::DiskFormat::Raw).is_ok());
    assert!(grant("image:none", false, QCOW2).is_ok());
}
