//! The description of a sender.

use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource as Described;
use opentelemetry_sdk::resource::EnvResourceDetector;

/// The variable with a name that replaces the program's own.
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";

/// Returns a program's description: its name, its version, and what tells it from others of its name, by the names of
/// OpenTelemetry's semantic conventions ("Service", "Host"). `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`
/// override these. The host is named if the program is about one.
#[must_use]
pub fn resource(service: &str, version: &str, instance: &str, host: Option<&str>) -> Resource {
    let own = [
        ("service.name", Some(service)),
        ("service.version", Some(version)),
        ("service.instance.id", Some(instance)),
        ("host.name", host),
    ];
    let own = own
        .into_iter()
        .filter_map(|(key, value)| Some(KeyValue::new(key, value?.to_owned())));
    let named = std::env::var(SERVICE_NAME)
        .ok()
        .filter(|name| !name.is_empty());
    let named = named.map(|name| KeyValue::new("service.name", name));
    let described = Described::builder_empty()
        .with_attributes(own)
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(named)
        .build();
    let told = ResourceAttributesWithSchema::from(&described);
    let mut attributes = told.attributes.0;
    attributes.sort_by(|one, other| one.key.cmp(&other.key));
    Resource {
        attributes,
        ..Resource::default()
    }
}

/// Returns the name of this host (`uname(2)`).
#[must_use]
pub fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::text;

    #[test]
    fn a_program_says_which_one_it_is() {
        let told = resource("vmprobed", "1.2.3", "web-7/unix:a.sock", Some("web-7"));
        for (key, value) in [
            ("service.name", "vmprobed"),
            ("service.version", "1.2.3"),
            ("service.instance.id", "web-7/unix:a.sock"),
            ("host.name", "web-7"),
        ] {
            let found = told.attributes.iter().find(|it| it.key == key);
            assert_eq!(found.unwrap().value, Some(text(value)));
        }
        assert!(!host_name().is_empty());
    }
}
