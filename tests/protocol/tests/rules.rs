//! Checks that `proto/` keeps buf's rules.
#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use npm_part::{NpmPart, run};

/// The package of the program alone, without the one that chooses a platform's.
const BUF: NpmPart = NpmPart {
    package: "@bufbuild/buf-linux-x64@1.75.0",
    within: "package/bin",
    name: "buf-1.75.0",
    checksums: "fad1e38d6909bbb583a4da81d8c02a01046e2cd663bde7e337dd24277393764b  buf\n",
};

#[test]
fn the_protocol_keeps_the_rules_that_its_configuration_names() {
    let program = BUF.ensure().unwrap().join("buf");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let lint = |folder: &Path| {
        run(
            "buf",
            Command::new(&program).arg("lint").current_dir(folder),
        )
    };
    assert_eq!(lint(&folder).unwrap(), "");

    // Checks that the rules reject a bad file.
    let broken = tempfile::tempdir().unwrap();
    let package = broken.path().join("vmprobe/v1");
    fs::create_dir_all(&package).unwrap();
    let rules = "buf.yaml";
    fs::copy(folder.join(rules), broken.path().join(rules)).unwrap();
    let file = "syntax = \"proto3\";\npackage vmprobe.v1;\nmessage bad_name { bool Field = 1; }\n";
    fs::write(package.join("a.proto"), file).unwrap();
    let refused = lint(broken.path()).unwrap_err().to_string();
    for rule in ["bad_name", "Field"] {
        assert!(refused.contains(rule), "{refused}");
    }
}
