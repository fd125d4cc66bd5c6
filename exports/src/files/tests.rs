use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use super::*;
use crate::samples;

const HOUR: u64 = 3_600_000_000_000;

fn files(limits: FileLimits) -> (TempDir, Files) {
    let folder = TempDir::new().unwrap();
    let files = Parquet::new(folder.path().join("events"), limits).unwrap();
    (folder, files.0)
}

fn limits(bytes: u64) -> FileLimits {
    let age = Duration::from_secs(60);
    FileLimits { bytes, age }
}

/// Returns all names below a folder.
fn names(files: &Files) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![files.folder.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(&files.folder).unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

fn read(files: &Files, name: &PathBuf) -> Vec<RecordBatch> {
    let file = fs::File::open(files.folder.join(name)).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    reader.build().unwrap().map(Result::unwrap).collect()
}

fn rows(files: &Files, name: &PathBuf) -> usize {
    read(files, name).iter().map(RecordBatch::num_rows).sum()
}

#[test]
fn a_file_has_its_name_once_it_is_whole() {
    let (_folder, mut files) = files(limits(u64::MAX));
    let now = Instant::now();
    files.take(&samples::returned(), now).unwrap();
    let [unfinished] = &names(&files)[..] else {
        panic!("one file is open");
    };
    let name = unfinished.file_name().unwrap().to_str().unwrap();
    assert!(
        name.starts_with('.') && name.ends_with(".unfinished"),
        "{name}"
    );
    assert_eq!(files.exported, 0);
    files.close_all().unwrap();
    let [whole] = &names(&files)[..] else {
        panic!("one file is there");
    };
    assert!(whole.starts_with("host=kvm1/date=2026-11-27/hour=13"));
    assert!(
        whole
            .extension()
            .is_some_and(|extension| extension == "parquet")
    );
    assert_eq!((rows(&files, whole), files.exported), (1, 1));
}

#[test]
fn columns_tell_what_the_event_does() {
    let (_folder, mut files) = files(limits(u64::MAX));
    files.take(&samples::returned(), Instant::now()).unwrap();
    files.close_all().unwrap();
    let [batch] = &read(&files, &names(&files)[0])[..] else {
        panic!("one batch");
    };
    let column = |name: &str| batch.column_by_name(name).unwrap();
    let text = |name: &str| column(name).as_string::<i32>().value(0).to_owned();
    let number = |name: &str| column(name).as_primitive::<Int64Type>().value(0);
    let time = column("time").as_primitive::<TimestampMicrosecondType>();
    assert_eq!(time.value(0), 1_795_785_461_023_320);
    assert_eq!(time.timezone(), Some("UTC"));
    for (name, expected) in [
        ("unix_ns", 1_795_785_461_023_320_114),
        ("cpu", 1),
        ("pid", 61),
        ("tgid", 60),
        ("return_value", -2),
        ("duration_ns", 500_000),
        ("tsc", 4_000_000_000),
        ("guest_ns", 2_000_000_000),
    ] {
        assert_eq!(number(name), expected, "{name}");
    }
    for (name, expected) in [
        ("vm", "web-1"),
        ("probe", "read"),
        ("kind", "return"),
        ("symbol", "vfs_read+0x5"),
        ("address", "0xffffffff812f0c15"),
        ("comm", "cat"),
        ("caller", "ksys_read+0x6a"),
    ] {
        assert_eq!(text(name), expected, "{name}");
    }
    assert!(column("fault").is_null(0) && column("fault_address").is_null(0));
    let stack = column("stack").as_list::<i32>().value(0);
    let stack: Vec<_> = stack
        .as_string::<i32>()
        .iter()
        .flatten()
        .map(str::to_owned)
        .collect();
    assert_eq!(stack, ["ksys_read+0x6a", "0x401000"]);
    let map = |name: &str| {
        let entries = column(name).as_map().value(0);
        let keys = entries.column(0).as_string::<i32>().clone();
        (keys, Arc::clone(entries.column(1)))
    };
    let (keys, values) = map("arguments");
    let values = values.as_string::<i32>();
    let arguments: Vec<_> = keys.iter().flatten().zip(values.iter()).collect();
    assert_eq!(
        arguments,
        [
            ("count", Some("18446744073709551615")),
            ("dfd", Some("-100")),
            ("flags", Some("0x8000")),
            ("name", Some("/etc/passwd")),
            ("pair", Some("[1,null]")),
            ("gone", None),
        ]
    );
    // The values that fit into a signed number.
    let (keys, values) = map("numbers");
    let values = values.as_primitive::<Int64Type>();
    let numbers: Vec<_> = keys.iter().flatten().zip(values.iter().flatten()).collect();
    assert_eq!(numbers, [("dfd", -100), ("flags", 0x8000)]);
}

#[test]
fn a_file_ends_with_its_hour_its_host_its_size_and_its_age() {
    let (_folder, mut files) = files(limits(u64::MAX));
    let now = Instant::now();
    for (host, time) in [("a", 0), ("a", HOUR - 1), ("a", HOUR), ("b", 0)] {
        files.take(&samples::of(host, "vm", time), now).unwrap();
    }
    assert_eq!(files.open.len(), 3);
    let later = now + Duration::from_secs(30);
    files.take(&samples::of("c", "vm", 0), later).unwrap();
    let due = files.due().unwrap();
    assert_eq!(due, now + Duration::from_secs(60));
    files.close_old(due).unwrap();
    assert_eq!((files.open.len(), files.exported), (1, 4));
    assert_eq!(files.due(), Some(later + Duration::from_secs(60)));

    files.limits = limits(1);
    files.take(&samples::of("c", "vm", 1), later).unwrap();
    assert_eq!((files.open.len(), files.exported), (0, 6));
    let whole: Vec<_> = names(&files)
        .iter()
        .map(|name| rows(&files, name))
        .collect();
    assert_eq!(whole, [2, 1, 1, 2]);
}

#[test]
fn the_oldest_files_are_closed_where_there_are_too_many() {
    let (_folder, mut files) = files(limits(u64::MAX));
    let now = Instant::now();
    for at in 0..OPEN as u64 + 1 {
        let then = now + Duration::from_millis(at);
        files
            .take(&samples::of("a", "vm", at * HOUR), then)
            .unwrap();
    }
    assert_eq!((files.open.len(), files.exported), (OPEN, 1));
}

#[test]
fn rows_of_many_batches_keep_their_order() {
    let (_folder, mut files) = files(limits(u64::MAX));
    let now = Instant::now();
    for at in 0..5000 {
        files.take(&samples::of("a", "vm", at), now).unwrap();
    }
    files.close_all().unwrap();
    let batches = read(&files, &names(&files)[0]);
    let column = |batch: &RecordBatch| {
        let column = batch.column_by_name("unix_ns").unwrap();
        column.as_primitive::<Int64Type>().values().to_vec()
    };
    let times: Vec<i64> = batches.iter().flat_map(column).collect();
    assert_eq!(times, (0..5000).collect::<Vec<_>>());
}

#[test]
fn a_file_that_cannot_be_written_says_where_and_the_others_are_whole() {
    let (_folder, mut files) = files(limits(u64::MAX));
    let now = Instant::now();
    files.take(&samples::of("a", "vm", 0), now).unwrap();
    // Puts a file in the place of a folder.
    fs::write(files.folder.join("host=b"), "").unwrap();
    let error = files.take(&samples::of("b", "vm", 0), now).unwrap_err();
    let folder = files.folder.display().to_string();
    assert!(error.to_string().contains(&folder), "{error}");
    files.close_all().unwrap();
    assert_eq!(files.exported, 1);
    assert_eq!(rows(&files, &names(&files)[0]), 1);
}
