//! Compiles `proto/vmprobe/v1/*.proto` with protox, a protobuf compiler in Rust, so that a build needs
//! no `protoc`. Leaves the generated code and the encoded file descriptor set in `OUT_DIR`.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message;

const FILES: [&str; 10] = [
    "vmprobe/v1/common.proto",
    "vmprobe/v1/vm.proto",
    "vmprobe/v1/console.proto",
    "vmprobe/v1/host.proto",
    "vmprobe/v1/probe.proto",
    "vmprobe/v1/event.proto",
    "vmprobe/v1/hit.proto",
    "vmprobe/v1/debug.proto",
    "vmprobe/v1/symbol.proto",
    "vmprobe/v1/session.proto",
];

fn main() -> Result<(), Box<dyn error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let descriptors = protox::compile(FILES, [&root])?;
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .codec_path("crate::codec::Codec")
        .extern_path(".vmprobe.v1.EventBatch", "crate::batch::EventBatch")
        .compile_fds(descriptors)?;

    println!("cargo::rerun-if-changed=vmprobe");
    Ok(())
}
