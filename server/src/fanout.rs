//! The way of one VM's events from its vCPU threads to the clients that follow them.
//!
//! Each subscriber has a bounded queue of its own. A client that reads too slowly loses its own newest hits, counted
//! exactly and at the right place in its stream; it slows neither the vCPU nor the other clients. A hit is encoded once
//! for all subscribers, and costs a vCPU thread one short lock for each of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use vmprobe_proto::batch::EncodedEvent;
use vmprobe_proto::v1::{Event, EventBatch};

/// Bytes of the events in one message to a client, if there are more than one: some 180 events, or 90 of
/// return probes. Larger messages leave the CPU's caches and cost the allocator fresh pages.
const BATCH: usize = 32 * 1024;

/// A woken subscriber waits this long for more hits, so that a busy probe wakes it at most a thousand times a second,
/// and not once for each hit.
const GATHER: Duration = Duration::from_millis(1);

thread_local! {
    /// The event that this thread is publishing.
    static ENCODED: RefCell<EncodedEvent> = RefCell::default();
}

/// The hits of one VM.
#[derive(Debug)]
pub struct Fanout {
    /// The most hits that wait for one subscriber.
    capacity: usize,
    inner: RwLock<Inner>,
    /// The number of queues, which can be read without the lock.
    followed_by: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    queues: Vec<Arc<Queue>>,
    ended: bool,
    /// The counts of former subscriptions.
    delivered: u64,
    lost: u64,
}

/// The counts of all subscriptions.
#[derive(Debug, Default)]
pub struct FanoutStats {
    /// The present subscriptions.
    pub queues: Vec<QueueStats>,
    /// Hits that were handed out, also to former subscriptions.
    pub delivered: u64,
    /// Hits that were lost, also by former subscriptions. Hits that still waited when a subscription ended are in
    /// neither count.
    pub lost: u64,
}

/// The counts of one subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// Hits that wait.
    pub queued: usize,
    /// Hits that can wait at most.
    pub capacity: usize,
    /// Hits that were handed out.
    pub delivered: u64,
    /// Hits that were lost, as the queue was full.
    pub lost: u64,
}

impl Fanout {
    /// Makes one without subscribers. At most `capacity` hits wait for each subscriber.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            inner: RwLock::default(),
            followed_by: AtomicUsize::new(0),
        }
    }

    /// Hands a hit to every subscriber that wants it. Never waits for a subscriber.
    pub fn publish(&self, event: &Event) {
        let inner = self.inner.read();
        let mut queues = inner.queues.iter().filter(|queue| queue.wants(event));
        let Some(first) = queues.next() else {
            return;
        };
        ENCODED.with_borrow_mut(|encoded| {
            encoded.encode(event);
            first.push(encoded);
            queues.for_each(|queue| queue.push(encoded));
        });
    }

    /// Returns true if no client follows events.
    pub fn is_idle(&self) -> bool {
        self.followed_by.load(Ordering::Acquire) == 0
    }

    /// Tells all subscribers that no more hits will come.
    pub fn end(&self) {
        let mut inner = self.inner.write();
        inner.ended = true;
        for queue in &inner.queues {
            queue.end();
        }
    }

    /// Subscribes to the hits of the probes with these ids, or of all probes if there are none. Every hit that is
    /// published from now on is delivered or counted as lost.
    pub fn subscribe(self: &Arc<Self>, probes: Vec<u64>) -> Subscription {
        self.subscribe_with(probes, self.capacity)
    }

    fn subscribe_with(self: &Arc<Self>, mut probes: Vec<u64>, capacity: usize) -> Subscription {
        probes.sort_unstable();
        let mut inner = self.inner.write();
        let queue = Arc::new(Queue {
            probes,
            capacity,
            state: Mutex::new(State {
                ended: inner.ended,
                ..State::default()
            }),
            wake: Notify::new(),
        });
        inner.queues.push(Arc::clone(&queue));
        self.count(&inner);
        Subscription {
            fanout: Arc::clone(self),
            queue,
        }
    }

    /// Returns the counts of all subscriptions so far.
    pub fn stats(&self) -> FanoutStats {
        let inner = self.inner.read();
        let queues: Vec<_> = inner.queues.iter().map(|queue| queue.stats()).collect();
        let sum = |of: fn(&QueueStats) -> u64| queues.iter().map(of).sum::<u64>();
        FanoutStats {
            delivered: inner.delivered + sum(|queue| queue.delivered),
            lost: inner.lost + sum(|queue| queue.lost),
            queues,
        }
    }

    fn count(&self, inner: &Inner) {
        self.followed_by
            .store(inner.queues.len(), Ordering::Release);
    }
}

/// One client's share of the hits. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription {
    fanout: Arc<Fanout>,
    queue: Arc<Queue>,
}

impl Subscription {
    /// Returns the next hits, in at most `BATCH` bytes, or `None` when the VM has ended and all are delivered.
    pub async fn next(&mut self) -> Option<EventBatch> {
        loop {
            match self.queue.take() {
                Taken::Batch(batch) => return Some(batch),
                Taken::End => return None,
                Taken::Nothing => {
                    self.queue.wake.notified().await;
                    tokio::time::sleep(GATHER).await;
                }
            }
        }
    }
}

impl Subscription {
    /// Returns how many hits wait.
    pub fn waiting(&self) -> usize {
        self.queue.state.lock().queued
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.fanout.inner.write();
        inner
            .queues
            .retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        let stats = self.queue.stats();
        inner.delivered += stats.delivered;
        inner.lost += stats.lost;
        self.fanout.count(&inner);
    }
}

#[derive(Debug)]
struct Queue {
    /// The probes' ids, sorted; empty for all probes.
    probes: Vec<u64>,
    capacity: usize,
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Batches that wait for the client; only the last can take more hits.
    batches: VecDeque<EventBatch>,
    /// Hits in `batches`.
    queued: usize,
    /// Hits lost since the last one that was queued.
    lost: u64,
    /// Hits that were handed out.
    delivered: u64,
    /// Hits lost since the beginning.
    ever_lost: u64,
    /// True if the subscriber has found nothing and wants to be woken.
    waiting: bool,
    ended: bool,
}

enum Taken {
    Batch(EventBatch),
    Nothing,
    End,
}

impl Queue {
    /// Returns true if the subscriber wants events of this event's probe.
    fn wants(&self, event: &Event) -> bool {
        self.probes.is_empty() || self.probes.binary_search(&event.probe_id).is_ok()
    }

    fn push(&self, event: &EncodedEvent) {
        let mut state = self.state.lock();
        if state.queued >= self.capacity {
            state.lost += 1;
            state.ever_lost += 1;
            return;
        }
        let lost = std::mem::take(&mut state.lost);
        match state.batches.back_mut() {
            // Hits after a loss begin a batch, as a batch reports only the losses before it.
            Some(batch) if lost == 0 && batch.has_room(event, BATCH) => batch.push(event),
            _ => {
                let mut batch = EventBatch::with_capacity(BATCH, lost);
                batch.push(event);
                state.batches.push_back(batch);
            }
        }
        state.queued += 1;
        self.wake(&mut state);
    }

    fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        self.wake(&mut state);
    }

    fn take(&self) -> Taken {
        let mut state = self.state.lock();
        if let Some(batch) = state.batches.pop_front() {
            state.queued -= batch.len();
            state.delivered += batch.len() as u64;
            return Taken::Batch(batch);
        }
        let lost = std::mem::take(&mut state.lost);
        if lost > 0 {
            return Taken::Batch(EventBatch::with_capacity(0, lost));
        }
        if state.ended {
            return Taken::End;
        }
        state.waiting = true;
        Taken::Nothing
    }

    fn stats(&self) -> QueueStats {
        let state = self.state.lock();
        QueueStats {
            queued: state.queued,
            capacity: self.capacity,
            delivered: state.delivered,
            lost: state.ever_lost,
        }
    }

    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.waiting) {
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    const QUEUE: usize = 64 << 10;

    fn hit(probe_id: u64, tsc: u64) -> Event {
        Event {
            probe_id,
            tsc,
            ..Event::default()
        }
    }

    async fn drain(subscription: &mut Subscription) -> Vec<EventBatch> {
        let mut batches = Vec::new();
        while let Some(batch) = subscription.next().await {
            batches.push(batch);
        }
        batches
    }

    fn tscs(batch: &EventBatch) -> Vec<u64> {
        let events = batch.clone().into_events().unwrap();
        events.iter().map(|event| event.tsc).collect()
    }

    #[tokio::test]
    async fn every_subscriber_gets_every_hit_in_order() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut subscriptions = [fanout.subscribe(vec![]), fanout.subscribe(vec![])];
        for tsc in 0..10_000 {
            fanout.publish(&hit(1, tsc));
        }
        fanout.end();
        for subscription in &mut subscriptions {
            let batches = drain(subscription).await;
            assert!(
                batches
                    .iter()
                    .all(|batch| batch.lost == 0 && batch.encoded_len() <= BATCH)
            );
            assert!(batches.len() > 1, "all in one");
            let all: Vec<u64> = batches.iter().flat_map(tscs).collect();
            assert_eq!(all, (0..10_000).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn an_event_that_is_larger_than_a_message_has_one_of_its_own() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut subscription = fanout.subscribe(vec![]);
        let large = Event {
            stack: vec![1; BATCH / 8],
            ..hit(1, 1)
        };
        for event in [&hit(1, 0), &large, &hit(1, 2), &hit(1, 3)] {
            fanout.publish(event);
        }
        fanout.end();
        let batches = drain(&mut subscription).await;
        let tscs: Vec<_> = batches.iter().map(tscs).collect();
        assert_eq!(tscs, [vec![0], vec![1], vec![2, 3]]);
    }

    #[tokio::test]
    async fn a_full_queue_counts_its_losses_where_they_happened() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut slow = fanout.subscribe_with(vec![], 3);
        for tsc in 0..5 {
            fanout.publish(&hit(1, tsc));
        }
        let first = slow.next().await.unwrap();
        assert_eq!((first.lost, tscs(&first)), (0, vec![0, 1, 2]));

        fanout.publish(&hit(1, 5));
        fanout.publish(&hit(1, 6));
        let second = slow.next().await.unwrap();
        assert_eq!((second.lost, tscs(&second)), (2, vec![5, 6]));
    }

    #[tokio::test]
    async fn each_queue_counts_what_waits_was_handed_out_and_was_lost_and_the_sums_outlive_it() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut slow = fanout.subscribe_with(vec![], 3);
        let quick = fanout.subscribe_with(vec![2], 5);
        for tsc in 0..5 {
            fanout.publish(&hit(1, tsc));
        }
        let full = QueueStats {
            queued: 3,
            capacity: 3,
            delivered: 0,
            lost: 2,
        };
        let unwanted = QueueStats {
            queued: 0,
            capacity: 5,
            delivered: 0,
            lost: 0,
        };
        assert_eq!(fanout.stats().queues, [full, unwanted]);
        slow.next().await.unwrap();
        let read = QueueStats {
            queued: 0,
            delivered: 3,
            ..full
        };
        assert_eq!(fanout.stats().queues[0], read);
        drop((slow, quick));
        let stats = fanout.stats();
        assert_eq!((stats.queues.len(), stats.delivered, stats.lost), (0, 3, 2));
    }

    #[tokio::test]
    async fn losses_at_the_end_are_told_in_an_empty_batch() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut slow = fanout.subscribe_with(vec![], 2);
        for tsc in 0..10 {
            fanout.publish(&hit(1, tsc));
        }
        fanout.end();
        let batches = drain(&mut slow).await;
        let summary: Vec<_> = batches.iter().map(|b| (b.lost, b.len())).collect();
        assert_eq!(summary, [(0, 2), (8, 0)]);
    }

    #[tokio::test]
    async fn a_slow_subscriber_costs_the_others_nothing() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut slow = fanout.subscribe_with(vec![], 1);
        let mut quick = fanout.subscribe(vec![]);
        for tsc in 0..100 {
            fanout.publish(&hit(1, tsc));
        }
        fanout.end();
        let quick: usize = drain(&mut quick).await.iter().map(EventBatch::len).sum();
        let slow: u64 = drain(&mut slow).await.iter().map(|b| b.lost).sum();
        assert_eq!((quick, slow), (100, 99));
    }

    #[tokio::test]
    async fn a_subscriber_of_chosen_probes_neither_gets_nor_loses_others() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut chosen = fanout.subscribe_with(vec![9, 4], 10);
        for probe in 0..100 {
            fanout.publish(&hit(probe, probe));
        }
        fanout.end();
        let batches = drain(&mut chosen).await;
        assert_eq!(batches.len(), 1);
        assert_eq!((batches[0].lost, tscs(&batches[0])), (0, vec![4, 9]));
    }

    #[tokio::test]
    async fn delivered_and_lost_add_up_with_several_vcpus() {
        const THREADS: u64 = 4;
        const EACH: u64 = 20_000;
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut subscription = fanout.subscribe_with(vec![], 700);
        let reader = tokio::spawn(async move { drain(&mut subscription).await });
        let vcpus: Vec<_> = (0..THREADS)
            .map(|_| {
                let fanout = Arc::clone(&fanout);
                std::thread::spawn(move || (0..EACH).for_each(|tsc| fanout.publish(&hit(1, tsc))))
            })
            .collect();
        tokio::task::spawn_blocking(|| vcpus.into_iter().for_each(|vcpu| vcpu.join().unwrap()))
            .await
            .unwrap();
        fanout.end();
        let batches = reader.await.unwrap();
        let total: u64 = batches.iter().map(|b| b.lost + b.len() as u64).sum();
        assert_eq!(total, THREADS * EACH);
    }

    #[tokio::test]
    async fn dropping_a_subscription_frees_its_queue() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let subscription = fanout.subscribe(vec![]);
        assert_eq!(fanout.stats().queues.len(), 1);
        drop(subscription);
        assert_eq!(fanout.stats().queues.len(), 0);
    }

    #[tokio::test]
    async fn a_subscription_after_the_end_ends_at_once() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        fanout.end();
        assert!(fanout.subscribe(vec![]).next().await.is_none());
    }

    #[tokio::test]
    async fn a_waiting_subscriber_is_woken_by_a_hit() {
        let fanout = Arc::new(Fanout::new(QUEUE));
        let mut subscription = fanout.subscribe(vec![]);
        let reader = tokio::spawn(async move { subscription.next().await });
        tokio::task::yield_now().await;
        fanout.publish(&hit(1, 7));
        assert_eq!(tscs(&reader.await.unwrap().unwrap()), [7]);
    }
}
