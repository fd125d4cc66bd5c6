//! Events as columns.

use std::sync::Arc;

use arrow_array::builder::{
    Int64Builder, ListBuilder, MapBuilder, MapFieldNames, StringBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::ArrowError;
use vmprobe_trace_formats::{Address, Value};

use crate::Record;

/// The zone of all times.
const UTC: &str = "UTC";

type Texts = MapBuilder<StringBuilder, StringBuilder>;
type Numbers = MapBuilder<StringBuilder, Int64Builder>;

/// Rows that are not written yet. `docs/exports.md` describes the columns. Their types are those that DuckDB, Spark and
/// pyarrow support: no unsigned numbers, and no timestamps of nanoseconds, which Spark refuses.
pub(super) struct Columns {
    time: TimestampMicrosecondBuilder,
    unix_ns: Int64Builder,
    vm: StringBuilder,
    probe: StringBuilder,
    kind: StringBuilder,
    symbol: StringBuilder,
    address: StringBuilder,
    cpu: Int64Builder,
    pid: Int64Builder,
    tgid: Int64Builder,
    comm: StringBuilder,
    arguments: Texts,
    numbers: Numbers,
    return_value: Int64Builder,
    duration_ns: Int64Builder,
    caller: StringBuilder,
    stack: ListBuilder<StringBuilder>,
    registers: Texts,
    fault: StringBuilder,
    fault_address: StringBuilder,
    tsc: Int64Builder,
    guest_ns: Int64Builder,
}

impl Columns {
    pub fn new() -> Self {
        // The names that the format requires (LogicalTypes.md of parquet-format).
        let names = || {
            Some(MapFieldNames {
                entry: "key_value".into(),
                key: "key".into(),
                value: "value".into(),
            })
        };
        let texts = || Texts::new(names(), StringBuilder::new(), StringBuilder::new());
        Self {
            time: TimestampMicrosecondBuilder::new().with_timezone(UTC),
            unix_ns: Int64Builder::new(),
            vm: StringBuilder::new(),
            probe: StringBuilder::new(),
            kind: StringBuilder::new(),
            symbol: StringBuilder::new(),
            address: StringBuilder::new(),
            cpu: Int64Builder::new(),
            pid: Int64Builder::new(),
            tgid: Int64Builder::new(),
            comm: StringBuilder::new(),
            arguments: texts(),
            numbers: Numbers::new(names(), StringBuilder::new(), Int64Builder::new()),
            return_value: Int64Builder::new(),
            duration_ns: Int64Builder::new(),
            caller: StringBuilder::new(),
            stack: ListBuilder::new(StringBuilder::new()),
            registers: texts(),
            fault: StringBuilder::new(),
            fault_address: StringBuilder::new(),
            tsc: Int64Builder::new(),
            guest_ns: Int64Builder::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// There are more values than a column can have.
    pub fn push(&mut self, record: &Record) -> Result<(), ArrowError> {
        let event = &record.event;
        // Signed nanoseconds don't reach the year 2554, but microseconds do.
        self.time
            .append_value((record.unix_ns / 1000).cast_signed());
        self.unix_ns.append_value(record.unix_ns.cast_signed());
        self.vm.append_value(&record.vm);
        self.probe.append_value(&event.probe);
        self.kind.append_value(event.kind);
        self.symbol.append_option(event.place.symbol.as_deref());
        self.address.append_value(hex(event.place.address));
        self.cpu.append_value(event.vcpu.into());
        let task = event.context.as_ref();
        self.pid.append_option(task.map(|task| task.pid.into()));
        self.tgid.append_option(task.map(|task| task.tgid.into()));
        self.comm.append_option(task.map(|task| &task.comm));
        self.push_arguments(&event.arguments)?;
        let returned = event.returned.as_ref();
        let value = returned.and_then(|returned| returned.value);
        self.return_value.append_option(value.map(u64::cast_signed));
        let duration = returned.and_then(|returned| returned.duration_ns);
        self.duration_ns
            .append_option(duration.map(u64::cast_signed));
        let caller = returned.map(|returned| Address {
            address: returned.caller,
            symbol: returned.caller_symbol.clone(),
        });
        self.caller.append_option(caller.as_ref().map(place));
        for address in &event.stack {
            self.stack.values().append_value(place(address));
        }
        self.stack.append(true);
        for (name, value) in &event.registers {
            self.registers.keys().append_value(name);
            self.registers.values().append_value(hex(*value));
        }
        self.registers.append(true)?;
        let fault = event.fault.as_ref();
        self.fault
            .append_option(fault.map(|fault| match fault.name {
                "" => format!("vector {}", fault.vector),
                name => name.to_owned(),
            }));
        let address = fault.and_then(|fault| fault.address);
        self.fault_address.append_option(address.map(hex));
        self.tsc.append_value(event.tsc.cast_signed());
        self.guest_ns
            .append_option(event.time_ns.map(u64::cast_signed));
        Ok(())
    }

    fn push_arguments(&mut self, arguments: &[(String, Value)]) -> Result<(), ArrowError> {
        for (name, value) in arguments {
            self.arguments.keys().append_value(name);
            self.arguments.values().append_option(text(value));
            if let Some(number) = number(value) {
                self.numbers.keys().append_value(name);
                self.numbers.values().append_value(number);
            }
        }
        self.arguments.append(true)?;
        self.numbers.append(true)
    }

    /// Returns the rows in the form in which they are written, and leaves none here.
    ///
    /// # Errors
    /// The columns are not of one length.
    pub fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        let Self {
            time,
            unix_ns,
            vm,
            probe,
            kind,
            symbol,
            address,
            cpu,
            pid,
            tgid,
            comm,
            arguments,
            numbers,
            return_value,
            duration_ns,
            caller,
            stack,
            registers,
            fault,
            fault_address,
            tsc,
            guest_ns,
        } = self;
        let always = |name, array: ArrayRef| (name, array, false);
        let maybe = |name, array: ArrayRef| (name, array, true);
        RecordBatch::try_from_iter_with_nullable([
            always("time", Arc::new(time.finish())),
            always("unix_ns", Arc::new(unix_ns.finish())),
            always("vm", Arc::new(vm.finish())),
            always("probe", Arc::new(probe.finish())),
            always("kind", Arc::new(kind.finish())),
            maybe("symbol", Arc::new(symbol.finish())),
            always("address", Arc::new(address.finish())),
            always("cpu", Arc::new(cpu.finish())),
            maybe("pid", Arc::new(pid.finish())),
            maybe("tgid", Arc::new(tgid.finish())),
            maybe("comm", Arc::new(comm.finish())),
            always("arguments", Arc::new(arguments.finish())),
            always("numbers", Arc::new(numbers.finish())),
            maybe("return_value", Arc::new(return_value.finish())),
            maybe("duration_ns", Arc::new(duration_ns.finish())),
            maybe("caller", Arc::new(caller.finish())),
            always("stack", Arc::new(stack.finish())),
            always("registers", Arc::new(registers.finish())),
            maybe("fault", Arc::new(fault.finish())),
            maybe("fault_address", Arc::new(fault_address.finish())),
            always("tsc", Arc::new(tsc.finish())),
            maybe("guest_ns", Arc::new(guest_ns.finish())),
        ])
    }
}

/// Returns the symbol and offset, or the address if there is no symbol.
fn place(address: &Address) -> String {
    let symbol = address.symbol.clone();
    symbol.unwrap_or_else(|| hex(address.address))
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}

/// Returns a value as text. A list becomes JSON.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Unsigned(number) => Some(number.to_string()),
        Value::Signed(number) => Some(number.to_string()),
        Value::Hex(number) => Some(hex(*number)),
        Value::Text(text) => Some(text.clone()),
        Value::List(_) => serde_json::to_string(value).ok(),
        Value::Missing => None,
    }
}

/// Returns a value as a number, if it fits into a signed one.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Unsigned(number) | Value::Hex(number) => i64::try_from(*number).ok(),
        Value::Signed(number) => Some(*number),
        Value::Text(_) | Value::List(_) | Value::Missing => None,
    }
}
