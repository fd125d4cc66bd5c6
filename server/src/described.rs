//! The calls of a protocol, from its descriptors.

use prost_types::FileDescriptorSet;

/// Returns each call's path, and the full name of its request's message.
pub fn calls(set: &FileDescriptorSet) -> impl Iterator<Item = (String, &str)> {
    let services = set.file.iter().flat_map(|file| {
        let package = file.package();
        file.service.iter().map(move |service| (package, service))
    });
    services.flat_map(|(package, service)| {
        service.method.iter().map(move |method| {
            let path = format!("/{package}.{}/{}", service.name(), method.name());
            (path, method.input_type())
        })
    })
}
