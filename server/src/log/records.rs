//! Records that wait until they are sent elsewhere.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::record::Record;

/// The most records that wait.
const MOST: usize = 8192;
/// The approximate most bytes of them.
const MOST_BYTES: usize = 8 << 20;

/// A bounded queue of records. Clones share it. A record that finds it full is dropped and counted, so that a thread
/// that logs never waits.
#[derive(Clone, Debug, Default)]
pub struct Records(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    added: Notify,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    records: VecDeque<Record>,
    bytes: usize,
}

impl PartialEq for Records {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Records {}

impl Records {
    /// Adds a record.
    pub fn add(&self, record: Record) {
        let mut waiting = self.0.waiting.lock();
        let bytes = waiting.bytes + record.size();
        if waiting.records.len() >= MOST || bytes > MOST_BYTES {
            drop(waiting);
            self.count_dropped(1);
            return;
        }
        waiting.bytes = bytes;
        waiting.records.push_back(record);
        drop(waiting);
        self.0.added.notify_one();
    }

    /// Counts records that were dropped before they came here.
    pub fn count_dropped(&self, count: u64) {
        self.0.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns how many were dropped so far.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Returns how many wait.
    pub fn waiting(&self) -> usize {
        self.0.waiting.lock().records.len()
    }

    /// Takes the oldest records: at most `most`, of at most `most_bytes` together, but always the first one.
    pub fn take(&self, most: usize, most_bytes: usize) -> Vec<Record> {
        let mut waiting = self.0.waiting.lock();
        let mut taken = Vec::new();
        let mut bytes = 0;
        while taken.len() < most
            && let Some(record) = waiting.records.pop_front()
        {
            let size = record.size();
            if bytes + size > most_bytes && !taken.is_empty() {
                waiting.records.push_front(record);
                break;
            }
            bytes += size;
            taken.push(record);
        }
        waiting.bytes -= bytes;
        taken
    }

    /// Returns when `count` records wait, which is at least one. Only the task that takes them may wait.
    pub async fn wait_for(&self, count: usize) {
        while self.waiting() < count {
            self.0.added.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn record(message: impl Into<String>) -> Record {
        Record {
            time: UNIX_EPOCH,
            level: "WARN".into(),
            target: "a".into(),
            vm: None,
            message: message.into(),
            fields: serde_json::Map::new(),
        }
    }

    #[test]
    fn what_finds_the_queue_full_is_dropped_and_counted() {
        let records = Records::default();
        for number in 0..MOST + 3 {
            records.add(record(number.to_string()));
        }
        records.count_dropped(4);
        assert_eq!((records.waiting(), records.dropped()), (MOST, 7));
        let taken = records.take(2, usize::MAX);
        assert_eq!(taken, [record("0"), record("1")]);
        records.add(record("later"));
        assert_eq!((records.waiting(), records.dropped()), (MOST - 1, 7));
    }

    #[test]
    fn the_queue_is_bounded_in_bytes_and_so_is_what_is_taken() {
        let records = Records::default();
        let large = record("x".repeat(MOST_BYTES / 4));
        for _ in 0..5 {
            records.add(large.clone());
        }
        assert_eq!((records.waiting(), records.dropped()), (3, 2));
        assert_eq!(records.take(9, 1).len(), 1);
        assert_eq!(records.take(9, usize::MAX).len(), 2);
        assert_eq!(records.0.waiting.lock().bytes, 0);
    }

    #[tokio::test]
    async fn whoever_takes_records_waits_until_there_are_enough() {
        let records = Records::default();
        let waiting = tokio::spawn({
            let records = records.clone();
            async move { records.wait_for(2).await }
        });
        records.add(record("a"));
        records.add(record("b"));
        waiting.await.unwrap();
    }
}
