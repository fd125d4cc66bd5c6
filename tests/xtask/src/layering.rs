//! The invariants of the workspace's layers, checked against cargo's metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

fn metadata() -> Metadata {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the names of all packages with which one is built, directly or not, tests aside.
fn built_with(metadata: &Metadata, name: &str) -> BTreeSet<String> {
    let names: BTreeMap<&str, &str> = metadata
        .packages
        .iter()
        .map(|package| (&*package.id, &*package.name))
        .collect();
    let mut todo: Vec<&str> = names
        .iter()
        .filter(|(_, found)| **found == name)
        .map(|(id, _)| *id)
        .collect();
    assert_eq!(todo.len(), 1, "package {name}");
    let mut seen = BTreeSet::new();
    while let Some(id) = todo.pop() {
        let node = metadata
            .resolve
            .nodes
            .iter()
            .find(|node| node.id == id)
            .unwrap();
        for dependency in &node.deps {
            let built = dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
            if built && seen.insert(names[&*dependency.pkg].to_owned()) {
                todo.push(&dependency.pkg);
            }
        }
    }
    seen
}

#[test]
fn no_layer_is_built_with_what_it_must_not_know() {
    let metadata = metadata();
    let forbidden: [(&str, &[&str]); 16] = [
        (
            "guest-state",
            &[
                "vmm",
                "probe-engine",
                "vmprobe-proto",
                "kvm-bindings",
                "vm-memory",
                "tokio",
                "libc",
            ],
        ),
        (
            "guest-kernel",
            &["vmm", "probe-engine", "vmprobe-proto", "tokio", "libc"],
        ),
        (
            "probe-engine",
            &[
                "vmm",
                "kvm-ioctls",
                "kvm-bindings",
                "tokio",
                "tonic",
                "rustix",
            ],
        ),
        (
            "vmm",
            &[
                "vmm-doctor",
                "probe-engine",
                "vmprobe-proto",
                "tokio",
                "tonic",
            ],
        ),
        (
            "vmm-doctor",
            &[
                "vmm",
                "guest-state",
                "probe-engine",
                "vmprobe-proto",
                "tokio",
                "tonic",
            ],
        ),
        (
            "vmprobe-client",
            &[
                "vmm",
                "vmm-doctor",
                "probe-engine",
                "vmprobe-server",
                "vmprobe-cli",
                "kvm-ioctls",
                "clap",
                "serde_json",
            ],
        ),
        (
            "vmprobe-cli",
            &[
                "vmm",
                "vmm-doctor",
                "probe-engine",
                "vmprobe-server",
                "kvm-ioctls",
            ],
        ),
        (
            "vmprobe-otlp",
            &["vmm", "probe-engine", "vmprobe-proto", "vmprobe-client"],
        ),
        (
            "vmprobe-exports",
            &[
                "vmm",
                "probe-engine",
                "vmprobe-client",
                "vmprobe-server",
                "vmprobe-cli",
            ],
        ),
        (
            "vmprobe-gdb",
            &[
                "vmm",
                "probe-engine",
                "vmprobe-server",
                "vmprobe-cli",
                "kvm-ioctls",
                "clap",
            ],
        ),
        (
            "vmprobe-proto",
            &["vmm", "probe-engine", "vmprobe-client", "vmprobe-server"],
        ),
        (
            "vmprobe-spec",
            &["vmm", "probe-engine", "vmprobe-client", "vmprobe-server"],
        ),
        (
            "vmprobe-arguments",
            &["vmm", "vmprobe-client", "vmprobe-server", "kvm-ioctls"],
        ),
        (
            "vmprobe-trace-formats",
            &[
                "vmm",
                "guest-kernel",
                "probe-engine",
                "vmprobe-client",
                "vmprobe-server",
                "vmprobe-cli",
                "vmprobe-spec",
                "clap",
            ],
        ),
        ("vmprobe-server", &["vmprobe-client", "lab", "e2e"]),
        (
            "vmprobe-command-line",
            &["vmm", "vmprobe-proto", "vmprobe-client", "tokio", "tonic"],
        ),
    ];
    for (name, forbidden) in forbidden {
        let found = built_with(&metadata, name);
        let wrong: Vec<_> = forbidden
            .iter()
            .filter(|other| found.contains(**other))
            .collect();
        assert!(wrong.is_empty(), "{name} is built with {wrong:?}");
    }
}

#[test]
fn the_server_itself_does_not_call_kvm() {
    let metadata = metadata();
    let package = metadata
        .packages
        .iter()
        .find(|package| package.name == "vmprobe-server")
        .unwrap();
    let manifest = std::fs::read_to_string(&package.manifest_path).unwrap();
    for name in ["kvm-ioctls", "kvm-bindings", "iced-x86", "vm-memory"] {
        assert!(!manifest.contains(name), "vmprobe-server names {name}");
    }
}

/// All sources of a package.
fn sources(metadata: &Metadata, name: &str) -> Vec<(PathBuf, String)> {
    let package = metadata
        .packages
        .iter()
        .find(|package| package.name == name)
        .unwrap();
    let mut found = Vec::new();
    let mut folders = vec![package.manifest_path.parent().unwrap().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

#[test]
fn the_engine_and_what_it_is_made_of_forbid_unsafe_code() {
    let metadata = metadata();
    for name in [
        "guest-state",
        "guest-kernel",
        "probe-engine",
        "vmprobe-arguments",
        "vmprobe-kernel-log",
    ] {
        let sources = sources(&metadata, name);
        let (_, root) = sources
            .iter()
            .find(|(path, _)| path.ends_with("src/lib.rs"))
            .unwrap();
        assert!(root.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}

#[test]
fn all_unsafe_code_of_the_product_is_in_the_monitor_and_its_doctor() {
    let metadata = metadata();
    for name in [
        "guest-state",
        "guest-kernel",
        "probe-engine",
        "vmprobe-proto",
        "vmprobe-spec",
        "vmprobe-arguments",
        "vmprobe-kernel-log",
        "vmprobe-trace-formats",
        "vmprobe-command-line",
        "vmprobe-client",
        "vmprobe-cli",
        "vmprobe-exports",
        "vmprobe-otlp",
        "vmprobe-server",
    ] {
        for (path, source) in sources(&metadata, name) {
            for form in ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"] {
                assert!(!source.contains(form), "`{form}` in {}", path.display());
            }
        }
    }
}

#[test]
fn the_engine_and_the_readers_of_kernels_and_of_text_depend_on_nothing_else() {
    let metadata = metadata();
    let expected: [(&str, &[&str]); 6] = [
        ("guest-state", &["thiserror"]),
        (
            "guest-kernel",
            &["guest-state", "iced-x86", "object", "strsim", "thiserror"],
        ),
        (
            "probe-engine",
            &[
                "arc-swap",
                "guest-kernel",
                "guest-state",
                "hashbrown",
                "iced-x86",
                "parking_lot",
                "rustc-hash",
                "smallvec",
                "thiserror",
            ],
        ),
        ("vmprobe-kernel-log", &[]),
        (
            "vmprobe-spec",
            &["annotate-snippets", "thiserror", "vmprobe-proto"],
        ),
        (
            "vmprobe-arguments",
            &[
                "guest-kernel",
                "guest-state",
                "probe-engine",
                "thiserror",
                "vmprobe-proto",
                "vmprobe-spec",
            ],
        ),
    ];
    for (name, expected) in expected {
        let found = built_directly_with(&metadata, name);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{name}");
    }
}

/// Returns the names of the packages in one's own list of dependencies, tests aside.
fn built_directly_with(metadata: &Metadata, name: &str) -> BTreeSet<String> {
    let package = |is: &dyn Fn(&Package) -> bool| {
        let mut packages = metadata.packages.iter();
        packages.find(|package| is(package)).unwrap()
    };
    let id = &package(&|package| package.name == name).id;
    let mut nodes = metadata.resolve.nodes.iter();
    let node = nodes.find(|node| node.id == *id).unwrap();
    node.deps
        .iter()
        .filter(|dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none()))
        .map(|dependency| {
            package(&|package| package.id == dependency.pkg)
                .name
                .clone()
        })
        .collect()
}
