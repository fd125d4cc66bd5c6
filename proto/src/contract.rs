//! The protocol's contract: what clients and servers built at different times rely on.
//!
//! `proto/contract.txt` has a line for each thing that must not change: a call with its messages, a field with its
//! number and type, a value of an enum with its number. The test compares these lines with the protocol.
//! `VMPROBE_UPDATE_CONTRACT=1 cargo test -p vmprobe-proto` adds new lines to the file. A change that breaks the
//! contract has to be made in the file by hand.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

use crate::v1;

const PACKAGE: &str = "vmprobe.v1";

/// Returns the lines of the protocol as it is now.
fn lines() -> Vec<String> {
    let set = FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).unwrap();
    let files = set.file.iter().filter(|file| file.package() == PACKAGE);
    let mut lines = Vec::new();
    for file in files {
        lines.extend(file.service.iter().flat_map(calls));
        lines.extend(file.message_type.iter().flat_map(fields));
        lines.extend(file.enum_type.iter().flat_map(values));
    }
    lines.sort();
    lines
}

/// Returns lines such as `rpc VmService.GetVm(GetVmRequest) returns (GetVmResponse)`.
fn calls(service: &ServiceDescriptorProto) -> Vec<String> {
    let stream = |is_stream| if is_stream { "stream " } else { "" };
    let call = |call: &prost_types::MethodDescriptorProto| {
        format!(
            "rpc {}.{}({}{}) returns ({}{})",
            service.name(),
            call.name(),
            stream(call.client_streaming()),
            short(call.input_type()),
            stream(call.server_streaming()),
            short(call.output_type()),
        )
    };
    service.method.iter().map(call).collect()
}

/// Returns lines such as `field Probe.id = 1: uint64`, after one for the message itself, which may have no fields.
fn fields(message: &DescriptorProto) -> Vec<String> {
    // Lines of inner types would need the outer message's name.
    assert!(message.nested_type.is_empty() && message.enum_type.is_empty());
    let field = |field: &FieldDescriptorProto| {
        let (name, number) = (field.name(), field.number());
        format!(
            "field {}.{name} = {number}: {}",
            message.name(),
            type_of(message, field)
        )
    };
    let mut lines = vec![format!("message {}", message.name())];
    lines.extend(message.field.iter().map(field));
    lines
}

/// Returns the type of a field, with how often it occurs: `repeated`, `optional` or the name of its oneof.
fn type_of(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => short(field.type_name()).to_owned(),
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    };
    let oneof = field
        .oneof_index
        .and_then(|index| message.oneof_decl.get(index as usize));
    match (field.label(), oneof) {
        (Label::Repeated, _) => format!("repeated {name}"),
        _ if field.proto3_optional() => format!("optional {name}"),
        (_, Some(oneof)) => format!("{name} in oneof {}", oneof.name()),
        _ => name,
    }
}

/// Returns lines such as `value VmState.VM_STATE_CREATED = 1`.
fn values(of: &EnumDescriptorProto) -> Vec<String> {
    let value = |value: &prost_types::EnumValueDescriptorProto| {
        format!("value {}.{} = {}", of.name(), value.name(), value.number())
    };
    of.value.iter().map(value).collect()
}

/// Returns a type's name without the package.
fn short(name: &str) -> &str {
    let own = name
        .strip_prefix('.')
        .and_then(|name| name.strip_prefix(PACKAGE));
    own.map_or(name, |name| name.trim_start_matches('.'))
}

/// Returns the lines that only the first list has.
fn without<'a>(one: &'a [String], other: &[String]) -> Vec<&'a str> {
    let other: BTreeSet<&String> = other.iter().collect();
    let only = one.iter().filter(|line| !other.contains(line));
    only.map(String::as_str).collect()
}

#[test]
fn the_protocol_keeps_its_contract() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("contract.txt");
    let text = fs::read_to_string(&file).unwrap();
    let contract: Vec<String> = text.lines().map(str::to_owned).collect();
    let now = lines();
    let broken = without(&contract, &now);
    assert!(
        broken.is_empty(),
        "these are in contract.txt and no longer in the protocol, which breaks its users: {broken:#?}"
    );
    if env::var_os("VMPROBE_UPDATE_CONTRACT").is_some() {
        fs::write(&file, now.join("\n") + "\n").unwrap();
        return;
    }
    let new = without(&now, &contract);
    assert!(
        new.is_empty(),
        "these are new: VMPROBE_UPDATE_CONTRACT=1 adds them to contract.txt: {new:#?}"
    );
}

#[test]
fn each_kind_of_line_tells_what_a_peer_relies_on() {
    let lines = lines();
    for line in [
        "rpc ProbeService.ListCalls(ListCallsRequest) returns (stream ListCallsResponse)",
        "rpc VmService.GetVm(GetVmRequest) returns (GetVmResponse)",
        "message DeleteVmResponse",
        "field ProbeSelector.ids = 1: repeated uint64",
        "field ProbeSpec.enabled = 7: optional bool",
        "field ProbeSpec.symbol = 2: SymbolPlace in oneof place",
        "field Registers.rip = 17: fixed64",
        "field Vm.state = 2: VmState",
        "value Register.REGISTER_RFLAGS = 17",
    ] {
        assert!(lines.iter().any(|found| found == line), "{line}");
    }
}
