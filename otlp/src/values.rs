//! Values in the protocol's form.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, KeyValueList};
use serde_json::Value as Json;

/// Makes a text.
pub fn text(text: impl Into<String>) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(text.into())),
    }
}

/// Makes an attribute.
pub fn attribute(key: impl Into<String>, value: AnyValue) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: Some(value),
        ..KeyValue::default()
    }
}

/// Converts a JSON value. Null has no value, and a number that the protocol has no type for becomes
/// a text.
#[must_use]
pub fn json(value: Json) -> AnyValue {
    let value = match value {
        Json::Null => None,
        Json::Bool(value) => Some(Value::BoolValue(value)),
        Json::Number(number) => Some(match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::IntValue(number),
            (None, Some(value)) if number.is_f64() => Value::DoubleValue(value),
            _ => Value::StringValue(number.to_string()),
        }),
        Json::String(text) => Some(Value::StringValue(text)),
        Json::Array(values) => Some(Value::ArrayValue(ArrayValue {
            values: values.into_iter().map(json).collect(),
        })),
        Json::Object(fields) => {
            let fields = fields.into_iter();
            Some(Value::KvlistValue(KeyValueList {
                values: fields
                    .map(|(key, value)| attribute(key, json(value)))
                    .collect(),
            }))
        }
    };
    AnyValue { value }
}

/// Returns a time in nanoseconds since 1970 began (UTC). The numbers suffice until 2554.
#[must_use]
pub fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json as of;

    use super::*;

    #[test]
    fn values_of_json_keep_their_types() {
        for (value, expected) in [
            (of!(-7), Value::IntValue(-7)),
            (of!(0.5), Value::DoubleValue(0.5)),
            (of!(true), Value::BoolValue(true)),
            (of!("a"), Value::StringValue("a".to_owned())),
            (
                of!(u64::MAX),
                Value::StringValue("18446744073709551615".to_owned()),
            ),
            (
                of!([null, "b"]),
                Value::ArrayValue(ArrayValue {
                    values: vec![AnyValue { value: None }, text("b")],
                }),
            ),
            (
                of!({"c": "d"}),
                Value::KvlistValue(KeyValueList {
                    values: vec![attribute("c", text("d"))],
                }),
            ),
        ] {
            assert_eq!(json(value).value, Some(expected));
        }
    }
}
