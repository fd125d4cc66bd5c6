//! Watched data.

use guest_state::{Access, Action, Trap, TrapHandler, Watchpoint, WatchpointSet};

use super::fixture::{Fixture, TEXT, spec, vcpu_at};
use crate::condition::{Comparison, Operand, Relation};
use crate::error::ChangeError;
use crate::event::Detail;
use crate::fetch::{Fetch, Fetches};
use crate::probe::{Capture, ProbeState, Strategy, Switch};

#[test]
fn watched_data_is_found_by_symbol_or_address() {
    let f = Fixture::new();
    let probe = f.probe("table+0x8/8");
    assert_eq!(
        (probe.name.as_str(), probe.strategy),
        ("table+0x8/8", Strategy::Watch)
    );
    f.probe("0xffff888000001000/1r");
    let points = f.engine.debugging().watchpoints;
    let expected = [
        (TEXT + 0xb08, 8, Access::Write),
        (0xffff_8880_0000_1000, 1, Access::ReadWrite),
    ];
    let expected = expected.map(|(address, len, access)| Watchpoint {
        address: address.into(),
        len,
        access,
    });
    assert_eq!(points, expected);
    assert!(!f.engine.debugging().breakpoints);
}

#[test]
fn a_watchpoint_that_a_debug_register_can_t_have_is_refused() {
    for (place, words) in [
        ("table/3", &["1, 2, 4 or 8 bytes", "3"][..]),
        ("table/0", &["1, 2, 4 or 8 bytes"]),
        ("table+0x4/8", &["not aligned to 8", "0xffffffff81000b04"]),
        ("per_cpu/8", &["per-CPU variable", "0x10040"]),
        ("ext4:table/8", &["in a module"]),
        ("no_such_datum/8", &["no_such_datum"]),
    ] {
        let f = Fixture::new();
        let message = f.refusal(place).to_string();
        for word in words {
            assert!(message.contains(word), "{place}: {message}");
        }
        assert!(f.engine.debugging().watchpoints.is_empty());
    }
}

#[test]
fn the_same_data_shares_a_register_and_a_fifth_place_is_refused() {
    let f = Fixture::new();
    let four = ["table/8", "table+0x8/8", "table+0x10/8", "table/4"];
    f.register(&four).unwrap();
    let shared = f.probe("shared=table/8").id;
    assert_eq!(f.engine.debugging().watchpoints.len(), 4);
    let message = f
        .register(&["plain", "fifth=table/8r"])
        .unwrap_err()
        .to_string();
    assert!(message.contains("no debug register is free"), "{message}");
    assert_eq!((f.byte(9), f.engine.list().len()), (0x55, 5));
    // The other probe still needs the debug register.
    f.unregister(&[shared]);
    assert_eq!(f.engine.debugging().watchpoints.len(), 4);
}

#[test]
fn a_disabled_watchpoint_frees_its_register() {
    let f = Fixture::new();
    let probes = f.register(&["table/8", "table+0x8/8", "table+0x10/8", "table/4"]);
    let first = probes.unwrap()[0].id;
    f.enable(first, false);
    assert_eq!(f.engine.debugging().watchpoints.len(), 3);
    f.probe("table/2");
    let error = f
        .engine
        .switch(&f.guest(), Some(&[first]), Switch::Enabled(true))
        .unwrap_err();
    assert!(
        matches!(error, ChangeError::NoDebugRegister { .. }),
        "{error}"
    );
    assert_eq!(f.info(first).state, ProbeState::Disabled);
    assert_eq!(f.engine.debugging().watchpoints.len(), 4);
}

#[test]
fn an_access_is_reported_to_the_probes_whose_watchpoints_it_met() {
    let f = Fixture::new();
    let probes = f
        .register(&["table/8", "table+0x8/8", "again=table+0x8/8"])
        .unwrap();
    let [first, second, again] = [0, 1, 2].map(|i: usize| probes[i].id);
    let mut vcpu = vcpu_at(0x700);
    let hit = WatchpointSet::from_bits;
    let action = f.engine.on_watchpoint(&*f.memory, &mut vcpu, hit(2));
    assert_eq!(action, Action::Resume);
    assert_eq!(
        f.details(),
        [(second, Detail::Access), (again, Detail::Access)]
    );
    assert_eq!(f.events()[0].registers, vcpu.registers);
    f.engine.on_watchpoint(&*f.memory, &mut vcpu, hit(3));
    assert_eq!([first, second, again].map(|id| f.info(id).hits), [1, 2, 2]);
    assert_eq!(f.info(second).exits, 2);
}

#[test]
fn an_access_is_reported_with_what_its_probe_asks_for_where_its_condition_is_met() {
    /// Its number in instruction encodings (Intel SDM vol. 2, table 2-4).
    const RDI: u8 = 7;
    let f = Fixture::new();
    let on_cpu = |cpu| Comparison {
        operand: Operand::Cpu,
        relation: Relation::Equal,
        constant: cpu,
        signed: false,
    };
    let [mut some, mut counts, mut elsewhere] =
        ["some=table/8", "counts=table/8", "elsewhere=table/8"].map(spec);
    some.options.capture = Capture::Event(Fetches::default().with(Fetch::Register(RDI)));
    some.options.condition = vec![on_cpu(0)];
    counts.options.capture = Capture::Count;
    elsewhere.options.condition = vec![on_cpu(1)];
    let probes = f.engine.register(&f.guest(), &[some, counts, elsewhere]);
    let ids: Vec<_> = probes.unwrap().iter().map(|probe| probe.id).collect();

    let mut vcpu = vcpu_at(0x700);
    (vcpu.registers.rdi, vcpu.registers.rsi) = (1, 2);
    let hit = Trap::Watchpoint(WatchpointSet::from_bits(1));
    assert_eq!(f.engine.trap(&mut vcpu, &*f.memory, hit), Action::Resume);
    assert_eq!(f.details(), [(ids[0], Detail::Access)]);
    let registers = f.events()[0].registers;
    assert_eq!((registers.rdi, registers.rsi), (1, 0));
    assert_eq!(registers.rip, TEXT + 0x700);
    let counts = ids
        .iter()
        .map(|id| f.info(*id))
        .map(|it| (it.hits, it.exits));
    assert_eq!(counts.collect::<Vec<_>>(), [(1, 1), (1, 1), (0, 1)]);
}

#[test]
fn disarming_all_stops_watching() {
    let f = Fixture::new();
    let id = f.probe("table/8").id;
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    assert!(f.engine.debugging().watchpoints.is_empty());
    assert_eq!(f.info(id).state, ProbeState::Armed);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    assert_eq!(f.engine.debugging().watchpoints.len(), 1);
    f.unregister(&[id]);
    assert!(f.engine.debugging().watchpoints.is_empty());
}

#[test]
fn an_access_by_a_copy_is_one_by_its_original() {
    let f = Fixture::with_arena();
    f.register(&["table/8", "copied+0xb"]).unwrap();
    let mut vcpu = vcpu_at(0x2cb);
    vcpu.registers.rdi = TEXT + 0xb00;
    f.trap(&mut vcpu);
    vcpu.registers.rip += 3;
    let rip = vcpu.registers.rip;
    f.engine
        .on_watchpoint(&*f.memory, &mut vcpu, WatchpointSet::from_bits(1));
    assert_eq!(f.events()[1].registers.rip, TEXT + 0x2ce);
    assert_eq!(vcpu.registers.rip, rip, "the way back is still to go");
}

#[test]
fn an_access_in_a_detour_is_one_by_the_original_and_one_by_the_detour_itself_is_none() {
    let f = Fixture::with_jumps(|_| {});
    let probes = f.register(&["table/8", "framed"]).unwrap();
    assert_eq!(f.optimize(), 1);
    let table = f.engine.table();
    let jump = table.site((TEXT + 0x340).into()).unwrap().jump().unwrap();
    // push %rbp; mov %rsp,%rbp; push %rbx, and the way back.
    let (detour, copies) = (jump.detour.at.0, jump.copy(0).unwrap().0);
    let mut vcpu = vcpu_at(0);
    let mut access = |rip| {
        vcpu.registers.rip = rip;
        f.engine
            .on_watchpoint(&*f.memory, &mut vcpu, WatchpointSet::from_bits(1));
        // Beside jumps, events wait for records that may belong before them.
        f.engine.drain_all(&*f.memory);
        f.events().last().map(|event| event.registers.rip)
    };
    for rip in [detour + 1, copies] {
        assert_eq!(access(rip), None, "at {:#x}", rip - detour);
    }
    for (after, original) in [(1, 0x341), (4, 0x344), (5, 0x345)] {
        assert_eq!(access(copies + after), Some(TEXT + original));
    }
    assert_eq!(f.hit_count(probes[0].id), 3);
}
