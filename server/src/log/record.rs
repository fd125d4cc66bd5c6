//! An event of a log, as programs get it.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::Event;
use tracing::field::{Field, Visit};

/// The field with the name of a VM.
pub(super) const VM: &str = "vm";
const MESSAGE: &str = "message";
/// What a logger of another kind adds to its events (tracing-log).
const FOREIGN: &str = "log.";
/// What a record takes beside its texts, in bytes, roughly.
const FRAME: usize = 128;

/// An event of a log. As JSON it is a line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// To the microsecond.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    /// `ERROR` to `TRACE`.
    pub level: Cow<'static, str>,
    /// The part of the program that tells it.
    pub target: Cow<'static, str>,
    /// The VM that it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    pub message: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

impl Record {
    /// What is told now, about `vm` if it doesn't say of which.
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

    /// Bytes of memory, roughly.
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

/// To the microsecond, so that all forms of a record have the same time.
fn now() -> SystemTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since.unwrap_or_default().as_micros();
    UNIX_EPOCH + Duration::from_micros(micros.try_into().unwrap_or(u64::MAX))
}

/// Times as RFC 3339 has them.
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
