use guest_state::GuestPhysAddr;
use guest_state::testing::TestMemory;
use guest_state::x86_64::paging::PagingMode;

use super::*;

const OLD: ReschedBits = ReschedBits { now: 3, lazy: None };
const NEW: ReschedBits = ReschedBits {
    now: 4,
    lazy: Some(5),
};

/// Returns the flags of a count and a task's flags, as ftrace's letters.
fn letters(preempt_count: u32, thread_flags: u64, bits: ReschedBits) -> String {
    let flags = decode(
        &TaskContext {
            preempt_count,
            thread_flags,
            ..TaskContext::default()
        },
        bits,
    );
    let letters = [
        ('Z', flags.in_nmi),
        ('h', flags.in_interrupt),
        ('s', flags.in_soft_interrupt),
        ('b', flags.soft_interrupts_off),
        ('n', flags.need_resched),
        ('p', flags.preempt_need_resched),
        ('l', flags.need_resched_lazy),
    ];
    let set = letters.iter().filter(|(_, set)| *set);
    let set: String = set.map(|(letter, _)| letter).collect();
    format!("{set}{}", flags.preempt_disabled)
}

#[test]
fn the_preemption_count_tells_in_what_the_cpu_was() {
    for (count, expected) in [
        (0x8000_0000, "0"),
        (0x8000_0001, "1"),
        (0x8000_00ff, "255"),
        // Soft interrupts: handled; disabled once, twice; both.
        (0x8000_0100, "s0"),
        (0x8000_0200, "b0"),
        (0x8000_0401, "b1"),
        (0x8000_0300, "sb0"),
        (0x8001_0000, "h0"),
        (0x8001_0102, "hs2"),
        // `__nmi_enter` counts an interrupt, too.
        (0x8011_0000, "Zh0"),
        (0x80f0_0000, "Z0"),
        // The bit is inverted.
        (0, "p0"),
        (2, "p2"),
    ] {
        assert_eq!(letters(count, 0, OLD), expected, "{count:#x}");
    }
}

#[test]
fn a_tasks_flags_tell_whether_it_shall_give_the_cpu_up() {
    for (flags, old, new) in [
        (0, "0", "0"),
        (1 << 3, "n0", "0"),
        (1 << 4, "0", "n0"),
        (1 << 5, "0", "l0"),
        (0x38, "n0", "nl0"),
        (!0x38, "0", "0"),
    ] {
        assert_eq!(letters(1 << 31, flags, OLD), old, "{flags:#x}");
        assert_eq!(letters(1 << 31, flags, NEW), new, "{flags:#x}");
    }
}

#[test]
fn the_numbers_of_the_flags_go_by_the_release() {
    for (release, now, lazy) in [
        ("6.1.0-56-cloud-amd64 (...) #1 SMP", 3, None),
        ("6.12.118+deb13-cloud-amd64", 3, None),
        ("6.13.0", 3, Some(4)),
        ("6.17-rc1", 3, Some(4)),
        ("6.18.1", 4, Some(5)),
        ("7.0.2", 4, Some(5)),
        ("5.10", 3, None),
        ("", 3, None),
        ("6", 3, None),
        ("x.y", 3, None),
        ("99999999999.1", 3, None),
    ] {
        assert_eq!(
            ReschedBits::of(release),
            ReschedBits { now, lazy },
            "{release}"
        );
    }
}

const TABLES: PageTables = PageTables {
    root: GuestPhysAddr(0),
    mode: PagingMode::Off,
    no_execute: false,
};
/// The start of a CPU's variables, and its task.
const CPU: u64 = 0x1000;
const TASK: u64 = 0x3000;

fn put(memory: &TestMemory, at: u64, bytes: &[u8]) {
    memory.write(GuestPhysAddr(at), bytes).unwrap();
}

#[test]
fn a_context_is_read_by_the_offsets_that_are_known() {
    let memory = TestMemory::new(0x4000);
    put(&memory, CPU - 8, &TASK.to_le_bytes());
    put(&memory, CPU + 4, &0x8001_0002_u32.to_le_bytes());
    put(&memory, TASK, &8_u64.to_le_bytes());
    put(&memory, TASK + 0x10, &[3, 0, 7, 0]);
    put(&memory, TASK + 0x20, &77_u32.to_le_bytes());
    put(&memory, TASK + 0x24, &70_u32.to_le_bytes());
    put(&memory, TASK + 0x30, b"kworker/0:1\0-mm_");
    let all = Variables {
        current_task: Some(-8),
        pid: Some(0x20),
        tgid: Some(0x24),
        comm: Some(0x30),
        preempt_count: Some(4),
        thread_flags: Some(0),
        migration_disabled: Some((0x10, 2)),
        ..Variables::default()
    };
    let read = |known| {
        let found = TaskContext::read(&memory, TABLES, GuestVirtAddr(CPU), &known);
        found.map(|(_, context)| context)
    };
    let found = read(all).unwrap();
    let expected = TaskContext {
        pid: 77,
        tgid: 70,
        comm: *b"kworker/0:1\0-mm_",
        preempt_count: 0x8001_0002,
        thread_flags: 8,
        migration_disabled: 3,
    };
    assert_eq!(found, expected);
    assert_eq!(found.name(), b"kworker/0:1");
    let wide = Variables {
        migration_disabled: Some((0x10, 4)),
        ..all
    };
    assert_eq!(read(wide).unwrap().migration_disabled, 0x7_0003);

    let little = Variables {
        current_task: Some(-8),
        ..Variables::default()
    };
    assert_eq!(read(little), Some(TaskContext::default()));
    assert_eq!(read(Variables::default()), None);
    let nowhere = Variables {
        current_task: Some(0x7000),
        ..all
    };
    assert_eq!(read(nowhere), None);
}

#[test]
fn a_name_without_a_nul_is_the_whole_array() {
    let context = TaskContext {
        comm: *b"0123456789abcdef",
        ..TaskContext::default()
    };
    assert_eq!(context.name(), b"0123456789abcdef");
    assert_eq!(TaskContext::default().name(), b"");
}
