use guest_state::{Registers, VcpuId};
use parking_lot::Mutex;

use super::*;
use crate::event::{Detail, Stack};
use crate::probe::ProbeId;
use crate::value::Recorded;

/// Remembers the times of the events that it gets.
#[derive(Default)]
struct Got(Mutex<Vec<u64>>);

impl EventSink for Got {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.tsc.0);
    }
}

struct Setup {
    merger: Merger,
    got: Arc<Got>,
}

impl Setup {
    fn new() -> Self {
        let got = Arc::new(Got::default());
        let merger = Merger::new(Arc::<Got>::clone(&got));
        Self { merger, got }
    }

    fn active() -> Self {
        let setup = Self::new();
        setup.merger.set_active(true);
        setup
    }

    fn events(&self, times: impl IntoIterator<Item = u64>) {
        for time in times {
            self.merger.event(&event(time));
        }
    }

    /// What has come out since the last time.
    fn out(&self) -> Vec<u64> {
        std::mem::take(&mut self.got.0.lock())
    }
}

fn event(tsc: u64) -> Event {
    Event {
        probe: ProbeId(1),
        vcpu: VcpuId(0),
        tsc: Tsc(tsc),
        registers: Registers::default(),
        task: 0,
        context: None,
        time_ns: 0,
        stack: Stack::default(),
        flags: None,
        values: Recorded::default(),
        detail: Detail::Pre,
    }
}

#[test]
fn without_jumps_events_go_straight_through() {
    let setup = Setup::new();
    setup.events([5, 3]);
    assert_eq!(setup.out(), [5, 3]);
    assert_eq!(setup.merger.drained(false), 0);
}

#[test]
fn an_event_waits_until_a_drain_that_began_after_it_has_ended() {
    let setup = Setup::active();
    setup.events([50, 40]);
    assert_eq!(setup.merger.drained(false), 2);
    assert_eq!(setup.out(), []);
    // The next drain finds records from before and after what there was.
    setup.events([45, 60, 10, 55]);
    assert_eq!(setup.merger.drained(false), 2);
    assert_eq!(setup.out(), [10, 40, 45, 50]);
    setup.events([57]);
    assert_eq!(setup.merger.drained(false), 0);
    assert_eq!(setup.out(), [55, 57, 60]);
    assert_eq!(setup.merger.late(), 0);
}

#[test]
fn events_of_one_time_go_out_as_they_came() {
    /// Remembers the vCPUs.
    #[derive(Default)]
    struct Vcpus(Mutex<Vec<u32>>);
    impl EventSink for Vcpus {
        fn event(&self, event: &Event) {
            self.0.lock().push(event.vcpu.0);
        }
    }
    let got = Arc::new(Vcpus::default());
    let merger = Merger::new(Arc::<Vcpus>::clone(&got));
    merger.set_active(true);
    for vcpu in 0..40 {
        let vcpu = VcpuId(vcpu);
        merger.event(&Event { vcpu, ..event(7) });
        if vcpu.0 % 10 == 3 {
            merger.drained(true);
        }
    }
    merger.flush();
    assert_eq!(*got.0.lock(), (0..40).collect::<Vec<_>>());
}

#[test]
fn events_wait_for_a_record_that_is_being_written_but_not_for_ever() {
    let setup = Setup::active();
    setup.events([20]);
    assert_eq!(setup.merger.drained(false), 1);
    for _ in 0..PATIENCE {
        assert_eq!(setup.merger.drained(true), 1);
        assert_eq!(setup.out(), []);
    }
    assert_eq!(setup.merger.drained(true), 0);
    assert_eq!(setup.out(), [20]);
    // While the ring stays blocked, events come at the usual pace.
    setup.events([30]);
    assert_eq!(setup.merger.drained(true), 1);
    assert_eq!(setup.merger.drained(true), 0);
    assert_eq!(setup.out(), [30]);
    // Then the record is whole after all.
    setup.events([15, 40]);
    assert_eq!(setup.merger.drained(false), 2);
    assert_eq!(setup.merger.drained(false), 0);
    assert_eq!(setup.out(), [15, 40]);
    assert_eq!(setup.merger.late(), 1);
}

#[test]
fn a_record_that_is_written_in_time_comes_in_its_order() {
    let setup = Setup::active();
    setup.events([20]);
    setup.merger.drained(true);
    setup.events([25]);
    setup.merger.drained(true);
    setup.events([10, 30]);
    assert_eq!(setup.merger.drained(false), 1);
    assert_eq!(setup.out(), [10, 20, 25]);
}

#[test]
fn at_a_stop_and_when_the_last_jump_goes_all_goes_out_in_order() {
    let setup = Setup::active();
    setup.events([3, 1]);
    setup.merger.drained(true);
    setup.events([2]);
    setup.merger.flush();
    assert_eq!(setup.out(), [1, 2, 3]);
    setup.events([6, 5]);
    setup.merger.set_active(false);
    assert_eq!(setup.out(), [5, 6]);
    setup.events([4]);
    assert_eq!(setup.out(), [4]);
}

#[test]
fn a_time_out_of_nowhere_spoils_one_drain_only() {
    let setup = Setup::active();
    setup.events([u64::MAX, 5]);
    setup.merger.drained(false);
    setup.events([7]);
    assert_eq!(setup.merger.drained(false), 0);
    assert_eq!(setup.out(), [5, 7, u64::MAX]);
    setup.events([9, 8]);
    assert_eq!(setup.merger.drained(false), 2);
    assert_eq!(setup.merger.drained(false), 0);
    assert_eq!(setup.out(), [8, 9]);
    assert_eq!(setup.merger.late(), 1);
}

#[test]
fn more_than_can_be_held_goes_out_oldest_first() {
    let setup = Setup::active();
    let count = CAPACITY as u64;
    setup.events((0..count - 1).rev());
    assert_eq!(setup.out(), []);
    setup.events([count]);
    assert_eq!(setup.out(), (0..count / 2).collect::<Vec<_>>());
    assert_eq!(setup.merger.drained(false), CAPACITY / 2);
    assert_eq!(setup.merger.drained(false), 0);
    assert_eq!(setup.out().len(), CAPACITY / 2);
}

#[test]
fn each_event_comes_out_once_whoever_brings_it_and_whatever_is_switched() {
    const EACH: u64 = 5_000;
    let setup = Setup::new();
    std::thread::scope(|threads| {
        for thread in 0..3 {
            let setup = &setup;
            threads.spawn(move || setup.events((0..EACH).map(|i| i * 3 + thread)));
        }
        for round in 0..300 {
            setup.merger.set_active(round % 7 != 0);
            setup.merger.drained(round % 5 == 0);
        }
    });
    setup.merger.set_active(false);
    let mut out = setup.out();
    out.sort_unstable();
    assert_eq!(out, (0..EACH * 3).collect::<Vec<_>>());
}
