use guest_state::testing::TestMemory;
use guest_state::x86_64::paging::PagingMode;
use guest_state::{GuestPhysAddr, Tsc};

use proptest::prelude::*;

use super::*;
use crate::btf::synthetic::Builder;
use crate::symbols::synthetic;

const TEXT: u64 = synthetic::TEXT;
const NATIVE: u64 = TEXT + 0x100;
const KVM: u64 = TEXT + 0x200;
const OTHER: u64 = TEXT + 0x300;

/// Where the kernel's variables are: addresses are their own translations.
const CHOSEN: u64 = 0x1000;
const RUNNING: u64 = 0x1010;
const STABLE: u64 = 0x1020;
const IN_USE: u64 = 0x1030;
const STABLE_OFFSET: u64 = 0x1040;
const TICKS_OFFSET: u64 = 0x1048;
const START: u64 = 0x1050;
const JIFFIES: u64 = 0x1080;
/// The variables of a CPU, and offsets of those.
const CPU: u64 = 0x2000;
const CYC2NS: u64 = 0x40;
const HV_CLOCK: u64 = 0x80;
const TICKS: u64 = 0xc0;
/// What the host writes.
const TOLD: u64 = 0x3000;

const TABLES: PageTables = PageTables {
    root: GuestPhysAddr(0),
    mode: PagingMode::Off,
    no_execute: false,
};

fn symbols(without: &[&str]) -> Symbols {
    let all = [
        (TEXT, "_stext"),
        (NATIVE, "native_sched_clock"),
        (KVM, "kvm_sched_clock_read"),
        (TEXT + 0x1000, "_etext"),
        (CHOSEN, "__SCK__pv_sched_clock"),
        (RUNNING, "sched_clock_running"),
        (STABLE, "__sched_clock_stable"),
        (IN_USE, "__use_tsc"),
        (STABLE_OFFSET, "__sched_clock_offset"),
        (TICKS_OFFSET, "__gtod_offset"),
        (START, "kvm_sched_clock_offset"),
        (JIFFIES, "clocksource_jiffies"),
        (0, "__per_cpu_start"),
        (CYC2NS, "cyc2ns"),
        (HV_CLOCK, "hv_clock_per_cpu"),
        (TICKS, "sched_clock_data"),
        (0x800, "__per_cpu_end"),
    ];
    let all = all.iter().filter(|(_, name)| !without.contains(name));
    let all: Vec<_> = all.map(|(at, name)| (*at, 'T', (*name).into())).collect();
    Symbols::from_elf_symtab(&synthetic::unstripped(&all)).unwrap()
}

/// Makes types with the offsets of Linux 6.12, but for the key's and the call's, which are 0 there.
fn types() -> Btf {
    let mut b = Builder::new();
    let int = b.int("unsigned int", 4);
    let long = b.int("unsigned long", 8);
    let pointer = b.pointer(0);
    b.structure("static_key", 16, &[("enabled", int, 4)]);
    b.structure("static_call_key", 16, &[("func", pointer, 8)]);
    let data = [
        ("cyc2ns_mul", int, 0),
        ("cyc2ns_shift", int, 4),
        ("cyc2ns_offset", long, 8),
    ];
    let data = b.structure("cyc2ns_data", 16, &data);
    let copies = b.array(data, 2);
    let latch = b.structure("", 4, &[("sequence", int, 0)]);
    let latch = b.typedef("seqcount_latch_t", latch);
    b.structure("cyc2ns", 64, &[("data", copies, 0), ("seq", latch, 32)]);
    let ticks = [
        ("tick_raw", long, 0),
        ("tick_gtod", long, 8),
        ("clock", long, 16),
    ];
    b.structure("sched_clock_data", 64, &ticks);
    b.structure("clocksource", 64, &[("mult", int, 24), ("shift", int, 28)]);
    Btf::parse(&b.bytes()).unwrap()
}

struct Guest {
    memory: TestMemory,
    clock: Clock,
}

impl Guest {
    fn new() -> Self {
        Self {
            memory: TestMemory::new(0x4000),
            clock: Clock::find(&symbols(&[]), &types()).unwrap(),
        }
    }

    fn u64(&self, at: u64, value: u64) -> &Self {
        let at = GuestPhysAddr(at);
        self.memory.write_u64(at, value).unwrap();
        self
    }

    fn u32(&self, at: u64, value: u32) -> &Self {
        let at = GuestPhysAddr(at);
        self.memory.write(at, &value.to_le_bytes()).unwrap();
        self
    }

    fn key(&self, at: u64, count: i32) -> &Self {
        self.u32(at + 4, count.cast_unsigned())
    }

    fn chosen(&self, function: u64) -> &Self {
        self.u64(CHOSEN + 8, function)
    }

    /// Sets the counter to 1 GHz, plus `offset`.
    fn native(&self, copy: u64, offset: u64) -> &Self {
        let at = CPU + CYC2NS + copy * 16;
        self.u32(at, 1 << 20).u32(at + 4, 20).u64(at + 8, offset)
    }

    /// Sets KVM's clock to 1 GHz.
    fn kvm(&self, counter: u64, time: u64) -> &Self {
        self.u64(CPU + HV_CLOCK, TOLD)
            .told(2, counter, time, 1 << 31, 1)
    }

    fn told(&self, version: u32, counter: u64, time: u64, multiplier: u32, shift: i8) -> &Self {
        self.u32(TOLD, version)
            .u64(TOLD + 8, counter)
            .u64(TOLD + 16, time)
            .u32(TOLD + 24, multiplier)
            .u32(TOLD + 28, u32::from(shift.cast_unsigned()))
    }

    fn ticks(&self, raw: u64, time: u64, last: u64) -> &Self {
        let at = CPU + TICKS;
        self.u64(at, raw).u64(at + 8, time).u64(at + 16, last)
    }

    /// Sets a tick of 250 Hz, as `TICK_NSEC << 8`.
    fn hz_250(&self) -> &Self {
        let at = JIFFIES + 24;
        self.u32(at, 4_000_000 << 8).u32(at + 4, 8)
    }

    fn read(&self) -> Option<Conversion> {
        self.clock.read(&self.memory, TABLES, GuestVirtAddr(CPU))
    }

    fn ns(&self, tsc: u64) -> Option<u64> {
        Some(self.read()?.ns(Tsc(tsc)))
    }
}

#[test]
fn there_is_no_clock_before_the_kernel_has_set_it_up() {
    let guest = Guest::new();
    assert_eq!(guest.read(), None, "no function");
    guest.chosen(NATIVE).native(0, 0);
    assert_eq!(guest.read(), None, "its counter is not in use");
    guest.key(IN_USE, 1);
    assert_eq!(guest.ns(1234), Some(1234));
    guest.chosen(OTHER);
    assert_eq!(guest.read(), None, "a function that isn't known");
    guest.chosen(KVM);
    assert_eq!(guest.read(), None, "the host has told nothing");
    guest.u64(CPU + HV_CLOCK, TOLD);
    assert_eq!(guest.read(), None, "the host has told nothing there");
    guest.kvm(0, 0);
    assert_eq!(guest.ns(1234), Some(1234));
    guest.told(3, 0, 0, 1 << 31, 1);
    assert_eq!(guest.read(), None, "the host is writing");
    guest.kvm(0, 0).u64(CPU + HV_CLOCK, 1 << 40);
    assert_eq!(guest.read(), None, "an address of no memory");
}

#[test]
fn the_counter_is_scaled_by_the_copy_that_is_whole() {
    let guest = Guest::new();
    guest.chosen(NATIVE).key(IN_USE, 1);
    guest.native(0, 100).native(1, 200);
    for (number, expected) in [(0, 1100), (1, 1200), (6, 1100)] {
        guest.u32(CPU + CYC2NS + 32, number);
        assert_eq!(guest.ns(1000), Some(expected), "{number}");
    }
    // 2.4 GHz, as `clocks_calc_mult_shift` scales it.
    let at = CPU + CYC2NS;
    guest.u32(at, 894_784_853).u32(at + 4, 31);
    guest.u64(at + 8, 0_u64.wrapping_sub(5_000_000_000));
    let hour = 3600 * 2_400_000_000_u64;
    let ns = guest.ns(hour).unwrap();
    assert!(ns.abs_diff(3_595_000_000_000) < 10_000, "{ns}");
}

#[test]
fn kvms_clock_counts_from_what_the_host_wrote_last_and_when_the_kernel_began() {
    let guest = Guest::new();
    guest.chosen(KVM);
    guest.kvm(10_000, 70_000).u64(START, 50_000);
    for (tsc, expected) in [(10_000, 20_000), (10_500, 20_500), (9_000, 19_000)] {
        assert_eq!(guest.ns(tsc), Some(expected), "{tsc}");
    }
    for (multiplier, shift, passed, expected) in [
        (1 << 31, 0, 1000, 500),
        (1 << 31, 2, 1000, 2000),
        (1 << 31, -3, 1000, 62),
        // 3.4 GHz: half the counts, times 2/3.4.
        (2_526_451_350, -1, 34_000_000_000, 10_000_000_000),
        // Nonsense from the host.
        (u32::MAX, 127, 1000, 0),
        (u32::MAX, -128, 1000, 0),
    ] {
        guest.told(4, 0, 50_000, multiplier, shift);
        let ns = guest.ns(passed).unwrap();
        assert!(ns.abs_diff(expected) <= 3, "{multiplier} {shift}: {ns}");
    }
}

#[test]
fn a_stable_clock_adds_its_offset_and_lasts() {
    let guest = Guest::new();
    guest.chosen(KVM).kvm(0, 1_000_000);
    let early = guest.read().unwrap();
    assert!(!early.lasts());
    assert_eq!(early.unbounded(), early);
    guest.key(RUNNING, 2).key(STABLE, 1);
    guest.u64(STABLE_OFFSET, 0_u64.wrapping_sub(250));
    let stable = guest.read().unwrap();
    assert!(stable.lasts());
    assert_eq!(stable.ns(Tsc(1000)), 1_000_750);
    assert_eq!(stable.trace_ns(Tsc(1000)), 1_001_000);
    assert_eq!(stable.unbounded(), stable);
}

#[test]
fn a_clock_that_is_not_stable_goes_on_from_the_last_tick_and_not_far() {
    let guest = Guest::new();
    guest.chosen(KVM).kvm(0, 0).key(RUNNING, 1).hz_250();
    guest.u64(TICKS_OFFSET, 7);
    guest.ticks(1_000_000, 1_500_000, 1_500_107);
    let clock = guest.read().unwrap();
    assert!(!clock.lasts());
    for (tsc, expected) in [
        (1_000_300, 1_500_307),
        // Not before what the kernel told last, for any value of the counter.
        (1_000_050, 1_500_107),
        (900_000, 1_500_107),
        // Not more than a tick after the last one.
        (4_999_999, 5_500_006),
        (5_000_001, 5_500_007),
        (9_000_000, 5_500_007),
    ] {
        assert_eq!(clock.ns(Tsc(tsc)), expected, "{tsc}");
    }
    for (tsc, expected) in [
        (900_000, 1_400_007),
        (1_000_300, 1_500_307),
        (9_000_000, 9_500_007),
    ] {
        assert_eq!(clock.unbounded().ns(Tsc(tsc)), expected, "{tsc}");
    }
    assert_eq!(clock.trace_ns(Tsc(900_000)), 900_000);

    // The kernel has told a time that is later than a tick after the last one.
    guest.ticks(1_000_000, 1_500_000, 6_000_000);
    assert_eq!(guest.ns(1_000_300), Some(6_000_000));
    assert_eq!(guest.ns(9_000_000), Some(6_000_000));
}

#[test]
fn without_the_length_of_a_tick_there_are_no_bounds() {
    let guest = Guest::new();
    guest.chosen(KVM).kvm(0, 0).key(RUNNING, 1);
    guest.ticks(0, 500, 0);
    for (multiplier, shift) in [(0, 0), (1 << 31, 32), (u32::MAX, 0)] {
        let at = JIFFIES + 24;
        guest.u32(at, multiplier).u32(at + 4, shift);
        assert_eq!(guest.ns(9_000_000), Some(9_000_500), "{multiplier} {shift}");
    }
    let clock = Clock::find(&symbols(&["clocksource_jiffies"]), &types()).unwrap();
    let read = clock.read(&guest.memory, TABLES, GuestVirtAddr(CPU));
    assert_eq!(read.unwrap().ns(Tsc(9_000_000)), 9_000_500);
}

#[test]
fn a_kernel_without_paravirtual_calls_goes_by_its_own_function() {
    let guest = Guest::new();
    guest.native(0, 0).key(IN_USE, 1);
    assert_eq!(guest.read(), None);
    let clock = Clock::find(&symbols(&["__SCK__pv_sched_clock"]), &types()).unwrap();
    let read = clock.read(&guest.memory, TABLES, GuestVirtAddr(CPU));
    assert_eq!(read.unwrap().ns(Tsc(77)), 77);
}

#[test]
fn a_clock_needs_the_variables_of_the_schedulers_clock() {
    for name in [
        "__sched_clock_stable",
        "sched_clock_running",
        "__sched_clock_offset",
        "__gtod_offset",
        "sched_clock_data",
        "__per_cpu_end",
    ] {
        let clock = Clock::find(&symbols(&[name]), &types());
        assert!(clock.is_none(), "{name}");
    }
    let nothing = Btf::parse(&Builder::new().bytes()).unwrap();
    assert!(Clock::find(&symbols(&[]), &nothing).is_none());
}

proptest! {
    #[test]
    fn no_guest_memory_makes_it_panic(
        kvm: bool,
        keys in prop::array::uniform3(0..2_i32),
        words in prop::collection::vec((0..0x300_u64, any::<u64>()), 0..40),
        tsc: u64,
    ) {
        let guest = Guest::new();
        guest.native(0, 0).kvm(0, 0).hz_250();
        for (area, (at, word)) in (0..3).cycle().zip(words) {
            guest.u64([JIFFIES, CPU, TOLD][area] + at % 0x100, word);
        }
        guest.chosen(if kvm { KVM } else { NATIVE });
        for (key, count) in [RUNNING, STABLE, IN_USE].into_iter().zip(keys) {
            guest.key(key, count);
        }
        if let Some(clock) = guest.read() {
            clock.ns(Tsc(tsc));
            clock.unbounded().ns(Tsc(tsc));
            clock.trace_ns(Tsc(tsc));
        }
    }
}
