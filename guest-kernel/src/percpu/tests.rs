use super::*;
use crate::btf::synthetic::Builder;
use crate::symbols::synthetic;

const TEXT: u64 = synthetic::TEXT;

fn symbols(more: &[(u64, &str)]) -> Symbols {
    let bounds = [(TEXT, "_stext"), (TEXT + 0x1000, "_etext")];
    let all = bounds.iter().chain(more);
    let all: Vec<_> = all.map(|(at, name)| (*at, 'T', (*name).into())).collect();
    Symbols::from_elf_symtab(&synthetic::unstripped(&all)).unwrap()
}

const AREA: [(u64, &str); 2] = [(0, "__per_cpu_start"), (0x3_4000, "__per_cpu_end")];

#[test]
fn variables_of_their_own_are_found_by_name() {
    let variables = [
        (0x1_fb80, "current_task"),
        (0x1_9160, "cpu_number"),
        (0x1_fb84, "__preempt_count"),
        (0x1_fb88, "hardirq_stack_ptr"),
    ];
    let found = Variables::find(&symbols(&[&AREA[..], &variables].concat()), None);
    let expected = Variables {
        current_task: Some(0x1_fb80),
        cpu_number: Some(0x1_9160),
        preempt_count: Some(0x1_fb84),
        interrupt_stack: Some(0x1_fb88),
        ..Variables::default()
    };
    assert_eq!(found, expected);
    // As from Linux 6.15 on.
    let high = 0xffff_ffff_8300_0000;
    let symbols = symbols(&[
        (high, "__per_cpu_start"),
        (high + 0x1000, "__per_cpu_end"),
        (high + 0x10, "current_task"),
        (high + 0x1000, "cpu_number"),
    ]);
    let found = Variables::find(&symbols, None);
    assert_eq!(found.current_task, Some(0x8300_0010_u32.cast_signed()));
    assert_eq!(found.cpu_number, None, "it is behind the area");
}

#[test]
fn variables_in_a_common_structure_and_members_of_tasks_are_found_by_types() {
    let mut types = Builder::new();
    let int = types.int("int", 4);
    let long = types.int("long", 8);
    let short = types.int("unsigned short", 2);
    let pointer = types.pointer(0);
    let info = [("flags", long, 8)];
    let info = types.structure("thread_info", 24, &info);
    let hot = [
        ("current_task", pointer, 0),
        ("preempt_count", int, 8),
        ("cpu_number", int, 12),
        ("hardirq_stack_ptr", pointer, 32),
    ];
    types.structure("pcpu_hot", 64, &hot);
    let members = [
        ("__state", int, 24),
        ("on_cpu", int, 52),
        ("pid", int, 2432),
        ("tgid", long, 2440),
        ("stack_canary", long, 2448),
        ("thread_info", info, 0),
        ("migration_disabled", short, 900),
    ];
    types.structure("task_struct", 4096, &members);
    let types = Btf::parse(&types.bytes()).unwrap();
    let symbols = symbols(&[&AREA[..], &[(0x3_0000, "pcpu_hot")]].concat());
    let expected = Variables {
        current_task: Some(0x3_0000),
        cpu_number: Some(0x3_000c),
        pid: Some(2432),
        // The member doesn't have the size that a detour would read.
        tgid: None,
        stack_canary: Some(2448),
        state: Some((24, 4)),
        on_cpu: Some(52),
        comm: None,
        preempt_count: Some(0x3_0008),
        interrupt_stack: Some(0x3_0020),
        thread_flags: Some(8),
        migration_disabled: Some((900, 2)),
    };
    assert_eq!(Variables::find(&symbols, Some(&types)), expected);
    assert_eq!(Variables::find(&symbols, None), Variables::default());
}
