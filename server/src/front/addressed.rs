//! Which VM a call is for: in the field `vm` of its first message, or of a message in that.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use tonic::Status;
use vmprobe_proto::v1;

use crate::{described, status};

const PACKAGE: &str = "vmprobe.v1";
const FIELD: &str = "vm";
/// The number of the field `vm`, and of the field with its message.
const NUMBER: i32 = 1;

/// Where a call's first message has the name of its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// In its field `vm`.
    Direct,
    /// In the field `vm` of the message that is its first field.
    Within,
}

#[derive(Message)]
struct Direct {
    #[prost(string, tag = "1")]
    vm: String,
}

#[derive(Message)]
struct Within {
    #[prost(message, optional, tag = "1")]
    message: Option<Direct>,
}

impl Address {
    /// Returns the VM's name in a call's first message, or an empty name if the message has none.
    ///
    /// # Errors
    /// `INTERNAL`, as for other messages: the message can't be decoded.
    pub fn vm(self, message: Bytes) -> Result<String, Status> {
        let vm = match self {
            Self::Direct => Direct::decode(message).map(|direct| direct.vm),
            Self::Within => Within::decode(message)
                .map(|within| within.message.unwrap_or_default())
                .map(|direct| direct.vm),
        };
        vm.map_err(|error| Status::internal(error.to_string()))
    }

    /// Returns the refusal of a stream that ended without a message.
    pub fn missing(self) -> Status {
        status::invalid(FIELD, "the first message names the VM")
    }
}

/// Returns the calls that name a VM, by their paths, according to the protocol's descriptors.
pub fn addresses() -> HashMap<String, Address> {
    // The set is made by this program's build.
    let set = FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).unwrap_or_default();
    let files = set.file.iter().filter(|file| file.package() == PACKAGE);
    let messages: HashMap<String, &DescriptorProto> = files
        .flat_map(|file| &file.message_type)
        .map(|message| (format!(".{PACKAGE}.{}", message.name()), message))
        .collect();
    let addressed = described::calls(&set).filter_map(|(path, input)| {
        let address = address(messages.get(input)?, &messages)?;
        Some((path, address))
    });
    addressed.collect()
}

fn address(
    message: &DescriptorProto,
    messages: &HashMap<String, &DescriptorProto>,
) -> Option<Address> {
    if has_vm(message) {
        return Some(Address::Direct);
    }
    let mut fields = message.field.iter();
    let first = fields.find(|field| field.number() == NUMBER)?;
    let inner = messages.get(first.type_name())?;
    has_vm(inner).then_some(Address::Within)
}

fn has_vm(message: &DescriptorProto) -> bool {
    message.field.iter().any(|field| {
        field.name() == FIELD && field.number() == NUMBER && field.r#type() == Type::String
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_calls_name_their_vm_but_those_about_vms_as_such_images_and_the_host() {
        let addressed = addresses();
        let set = FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).unwrap();
        let paths = described::calls(&set).map(|(path, _)| path);
        let others: BTreeSet<_> = paths.filter(|path| !addressed.contains_key(path)).collect();
        let expected = [
            "HostService/GetHost",
            "ImageService/DeleteImage",
            "ImageService/GetImage",
            "ImageService/ListImages",
            "ImageService/UploadImage",
            "VmService/CreateVm",
            "VmService/ListVms",
        ];
        let expected = expected.map(|call| format!("/vmprobe.v1.{call}"));
        assert_eq!(others, BTreeSet::from(expected));
    }

    #[test]
    fn a_vm_is_found_in_the_message_or_in_the_one_within() {
        let direct = v1::GetVmRequest { vm: "a".into() };
        let direct = direct.encode_to_vec().into();
        assert_eq!(Address::Direct.vm(direct).unwrap(), "a");
        let begin = v1::BeginHits {
            vm: "b".into(),
            answer_ms: 7,
            ..Default::default()
        };
        let within = v1::HandleHitsRequest {
            request: Some(v1::handle_hits_request::Request::Begin(begin)),
        };
        assert_eq!(
            Address::Within.vm(within.encode_to_vec().into()).unwrap(),
            "b"
        );
        let other = v1::HandleHitsRequest::default().encode_to_vec().into();
        assert_eq!(Address::Within.vm(other).unwrap(), "");
        assert!(Address::Direct.vm(Bytes::from_static(b"\x0a\xff")).is_err());
    }
}
