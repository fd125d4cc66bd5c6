//! A log event, in the form for programs.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::Event;
use tracing::field::{Field, Visit};

/// The field with a VM's name.
pub(super) const VM: &str = "vm";
const MESSAGE: &str = "message";
/// The prefix of fields that tracing-log adds to other loggers' events.
const FOREIGN: &str = "log.";
/// The approximate bytes that a record takes besides its texts.
const FRAME: usize = 128;

/// A log event. As JSON, it is a line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Exact to the microsecond.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    /// `ERROR` to `TRACE`.
    pub level: Cow<'static, str>,
    /// The part of the program that logs it.
    pub target: Cow<'static, str>,
    /// The VM that it is about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    pub message: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

impl Record {
    /// Makes a record of an event, at the present time. It is about `vm`, if the event itself names
    /// no VM.
    pub fn of(event: &Event<'_>, vm: Option<&str>) -> Self {
        let metadata = event.metadata();
        let mut record = Self {
            time: now(),
            level: metadata.level().as_str().into(),
            target: metadata.target().to_owned().into(),
            vm: None,
            message: String::new(),
            fields: Map::new(),
        };
        event.record(&mut record);
        record.vm = record.vm.or_else(|| vm.map(str::to_owned));
        record
    }

    /// Returns the approximate bytes of memory.
    pub fn size(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| {
            let text = value.as_str().map_or(0, str::len);
            name.len() + text + FRAME
        });
        FRAME + self.message.len() + self.target.len() + fields.sum::<usize>()
    }

    fn put(&mut self, field: &Field, value: Value) {
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        match field.name() {
            VM => self.vm = Some(text(value)),
            MESSAGE => self.message = text(value),
            name if name.starts_with(FOREIGN) => {}
            name => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Record {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}").into());
    }
}

/// Returns the time to the microsecond, so that all forms of a record have the same time.
fn now() -> SystemTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since.unwrap_or_default().as_micros();
    UNIX_EPOCH + Duration::from_micros(micros.try_into().unwrap_or(u64::MAX))
}

/// Times in the form of RFC 3339.
mod rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_rfc3339_micros(*time))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_rfc3339(&text).map_err(de::Error::custom)
    }
}
