//! The `vmprobe.v1` gRPC protocol: messages, client stubs and server traits, generated from
//! `proto/vmprobe/v1/*.proto` at build time. The code in this crate itself encodes and decodes
//! messages.
//!
//! The `.proto` files say what each call, message and field means. Their comments are the docs of
//! the items here.

pub mod batch;
pub mod codec;
pub mod socket;

/// Version 1 of the protocol, protobuf package `vmprobe.v1`.
pub mod v1 {
    // Generated: a field without a comment in the .proto file has no docs, and the code's style is
    // its generator's.
    #![allow(missing_docs, rust_2018_idioms, clippy::all, clippy::pedantic)]

    tonic::include_proto!("vmprobe.v1");

    pub use crate::batch::EventBatch;

    /// The encoded `FileDescriptorSet` of this package, for gRPC server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("descriptors");
}

#[cfg(test)]
mod contract;

#[cfg(test)]
mod tests {
    use super::v1;
    use prost::Message;

    #[test]
    fn the_descriptor_set_names_every_service() {
        let set = prost_types::FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).unwrap();
        let mut services: Vec<_> = set
            .file
            .iter()
            .filter(|file| file.package() == "vmprobe.v1")
            .flat_map(|file| file.service.iter().map(|service| service.name().to_owned()))
            .collect();
        services.sort();
        assert_eq!(
            services,
            [
                "ConsoleService",
                "DebugService",
                "EventService",
                "HitService",
                "HostService",
                "ImageService",
                "ProbeService",
                "SessionService",
                "SymbolService",
                "VmService"
            ]
        );
    }

    #[test]
    fn an_event_with_kernel_addresses_in_every_register_stays_under_200_bytes() {
        // A stream's messages are limited in bytes: how many events one carries follows from this size.
        let high = u64::MAX;
        let registers = v1::Registers {
            rax: high,
            rbx: high,
            rcx: high,
            rdx: high,
            rsi: high,
            rdi: high,
            rsp: high,
            rbp: high,
            r8: high,
            r9: high,
            r10: high,
            r11: high,
            r12: high,
            r13: high,
            r14: high,
            r15: high,
            rip: high,
            rflags: high,
        };
        let event = v1::Event {
            probe_id: 1000,
            vcpu: 7,
            tsc: high,
            task: high,
            registers: Some(registers),
            ..Default::default()
        };
        assert!(event.encoded_len() < 200, "{} bytes", event.encoded_len());
    }
}
