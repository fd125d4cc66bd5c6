//! Values in the protocol's form.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};

/// A text.
pub fn text(text: impl Into<String>) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(text.into())),
    }
}

/// An attribute.
pub fn attribute(key: impl Into<String>, value: AnyValue) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: Some(value),
        ..KeyValue::default()
    }
}

/// Nanoseconds since 1970 began (UTC), which last until 2554.
#[must_use]
pub fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().try_into().unwrap_or(u64::MAX)
}
