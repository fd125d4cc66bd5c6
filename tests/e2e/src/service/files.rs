//! The files of the host that a client may name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;
use vmprobe_client::v1::network::Backend;
use vmprobe_client::v1::{CreateVmRequest, Devices, Disk, Network, Passt, Share, Vsock};
use vmprobe_client::{Client, ClientError};

use crate::context::Context;
use crate::remote::Remote;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const FOLDERS: Test = Test {
    name: "clients_name_files_below_the_owner_s_folders_and_learn_of_no_other_file",
    ids: &["SV11"],
    needs: Needs::None,
    run: folders,
};

pub const NONE: Test = Test {
    name: "without_folders_only_the_server_s_own_user_names_files_of_its_host",
    ids: &["SV11"],
    needs: Needs::None,
    run: none,
};

pub const SWAPPED: Test = Test {
    name: "a_link_that_is_swapped_in_while_a_vm_is_made_leads_out_of_no_folder",
    ids: &["SV11"],
    needs: Needs::None,
    run: swapped,
};

/// The content of a file outside. No answer may contain it.
const SECRET: &str = "root:$y$j9T$secret";

/// A field of a request that a path is put into.
type Field = (&'static str, fn(&mut CreateVmRequest, String));

fn devices(request: &mut CreateVmRequest) -> &mut Devices {
    request.devices.get_or_insert_default()
}

const FIELDS: [Field; 8] = [
    ("kernel", |request, path| request.kernel = path),
    ("initramfs", |request, path| request.initramfs = path),
    ("symbols", |request, path| request.symbols = path),
    ("disk to be read", |request, path| {
        devices(request).disks.push(Disk {
            path,
            read_only: true,
            ..Disk::default()
        });
    }),
    ("disk", |request, path| {
        devices(request).disks.push(Disk {
            path,
            ..Disk::default()
        });
    }),
    ("share", |request, path| {
        let tag = "t".to_owned();
        devices(request).shares.push(Share { tag, path, mode: 0 });
    }),
    ("vsock", |request, path| {
        devices(request).vsock = Some(Vsock { path, cid: 3 });
    }),
    ("passt", |request, socket| {
        devices(request).networks.push(Network {
            backend: Some(Backend::Passt(Passt { socket })),
            ..Network::default()
        });
    }),
];

/// A folder for clients, and files outside of it.
struct Host {
    folder: TempDir,
}

impl Host {
    fn new() -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let at = |name: &str| folder.path().join(name);
        let made = || {
            fs::create_dir_all(at("files/inner"))?;
            fs::create_dir(at("outside"))?;
            fs::write(at("outside/file"), SECRET)?;
            fs::write(at("files/inner/file"), SECRET)?;
            symlink("../outside/file", at("files/link"))?;
            symlink("../outside/missing", at("files/link-to-none"))?;
            symlink("/etc/passwd", at("files/absolute"))?;
            symlink("../outside", at("files/folder"))
        };
        made().map_err(Failure::io("make files"))?;
        fs::write(at("files/kernel"), crate::tiny::power_off_image()?)
            .map_err(Failure::io("write a kernel"))?;
        Ok(Self { folder })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn request(&self) -> CreateVmRequest {
        CreateVmRequest {
            kernel: self.path("files/kernel"),
            memory_mib: 64,
            hold: true,
            ..CreateVmRequest::default()
        }
    }

    /// Paths that lead out of the folder: of each pair, the first exists and the second doesn't.
    fn pairs(&self) -> Vec<[String; 2]> {
        let pair = |one: &str, other: &str| [self.path(one), self.path(other)];
        let own = |name: &str| name.to_owned();
        vec![
            pair("outside/file", "outside/missing"),
            pair("files/../outside/file", "files/../outside/missing"),
            pair("files/inner/../../outside/file", "files/inner/../../none"),
            pair("files/link", "files/link-to-none"),
            pair("files/absolute", "files/folder/missing"),
            pair("files/folder/file", "files/folder/none"),
            [own("/etc/passwd"), own("/etc/missing")],
            [own("/proc/self/fd/0"), own("/proc/self/fd/4000")],
            [own("/proc/self/exe"), own("/proc/self/root/missing")],
            [own("."), own("missing")],
        ]
    }
}

/// Why a request was refused.
async fn refusal(client: &Client, request: CreateVmRequest) -> Result<ClientError, Failure> {
    match client.create_vm(request.clone()).await {
        Err(error) => Ok(error),
        Ok(_) => Err(wrong!("{request:?} was accepted")),
    }
}

/// The range of pairs that each field is given; the first field is given all.
const PAIRS_OF_EACH: [usize; 2] = [0, 3];

/// Checks that paths are refused in each of the fields, with messages that don't tell whether the files exist.
async fn all_refused(host: &Host, client: &Client, fields: &[Field]) -> Result<(), Failure> {
    for (index, (field, put)) in fields.iter().enumerate() {
        let mut texts = Vec::new();
        let pairs = host.pairs().into_iter().enumerate();
        let pairs = pairs.filter(|(pair, _)| index == 0 || PAIRS_OF_EACH.contains(pair));
        for path in pairs.flat_map(|(_, pair)| pair) {
            let mut request = host.request();
            put(&mut request, path.clone());
            match refusal(client, request).await? {
                ClientError::PermissionDenied(text) => {
                    let text = text.replacen(&format!("as {path}:"), "", 1);
                    texts.push(text.replacen(&format!("and {path} "), "", 1));
                }
                other => return Err(wrong!("{field} {path}: {other:?}")),
            }
        }
        texts.dedup();
        check_eq!(texts.len(), 1, "answers for the field {field}: {texts:?}");
    }
    Ok(())
}

fn folders(cx: &Context) -> TestResult {
    let host = Host::new()?;
    let remote = Remote::start(cx, &["alice=control"], |command| {
        command.args(["--files", &host.path("files")]);
    })?;
    cx.block_on(async {
        let alice = remote.client("alice").await?;
        all_refused(&host, &alice, &FIELDS).await?;
        // The owner's folders also limit clients of the socket.
        let own = remote.server.client().await?;
        all_refused(&host, &own, &FIELDS[..1]).await?;
        // Files in the folder are found, but nothing is told about their content.
        let below = host.path("files/inner/file");
        for (field, put) in [FIELDS[0], FIELDS[2]] {
            let mut request = host.request();
            put(&mut request, below.clone());
            let error = refusal(&alice, request).await?;
            let told = error.to_string();
            check!(
                !matches!(error, ClientError::PermissionDenied(_)),
                "{field}: {error:?}"
            );
            let start: String = SECRET
                .bytes()
                .take(4)
                .map(|it| format!("{it:02x}"))
                .collect();
            for part in [&SECRET[..4], &start, "72 6f 6f"] {
                check!(!told.contains(part), "{field} {below} is told of: {told}");
            }
        }
        let missing = CreateVmRequest {
            kernel: host.path("files/missing"),
            ..host.request()
        };
        let told = refusal(&alice, missing).await?.to_string();
        check!(told.contains("No such file"), "{told}");
        check_eq!(alice.list_vms().await?.len(), 0, "VMs left behind");
        pass()
    })
}

fn none(cx: &Context) -> TestResult {
    let host = Host::new()?;
    let remote = Remote::start(cx, &["alice=control"], |_| {})?;
    cx.block_on(async {
        let alice = remote.client("alice").await?;
        all_refused(&host, &alice, &FIELDS).await?;
        let own = remote.server.client().await?;
        let request = CreateVmRequest {
            kernel: host.path("outside/file"),
            ..host.request()
        };
        let error = refusal(&own, request).await?;
        check!(
            error.to_string().contains("neither a bzImage nor"),
            "{error:?}"
        );
        pass()
    })?;
    // If the named folder is none, the server says so at its start.
    let started = Server::start_with(cx, |command| {
        command.args(["--files", &host.path("outside/file")]);
    });
    check!(started.is_err(), "a server with a file for a folder");
    pass()
}

/// A path is swapped between a file outside, which is a kernel, and one in the folder, which is none.
fn swapped(cx: &Context) -> TestResult {
    const ROUNDS: usize = 40;
    let host = Host::new()?;
    let copied = fs::copy(host.path("files/kernel"), host.path("outside/file"));
    copied.map_err(Failure::io("copy a kernel"))?;
    let remote = Remote::start(cx, &["alice=control"], |command| {
        command.args(["--files", &host.path("files")]);
    })?;
    let (inner, link) = (host.path("files/inner"), host.path("files/folder"));
    let is_over = AtomicBool::new(false);
    let attempts = async {
        let alice = remote.client("alice").await?;
        for _ in 0..ROUNDS {
            let request = CreateVmRequest {
                kernel: host.path("files/inner/file"),
                ..host.request()
            };
            match refusal(&alice, request).await? {
                ClientError::PermissionDenied(_) => {}
                error => check!(
                    error.to_string().contains("neither a bzImage nor"),
                    "{error:?}"
                ),
            }
        }
        pass()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                swap(Path::new(&inner), Path::new(&link));
            }
        });
        let done = cx.block_on(attempts);
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

fn swap(one: &Path, other: &Path) {
    let swapped = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
    assert!(swapped.is_ok(), "{swapped:?}");
}
