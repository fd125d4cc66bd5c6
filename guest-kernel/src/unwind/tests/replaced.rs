use super::*;
use crate::btf::synthetic::Builder;
use crate::symbols::synthetic::unstripped;

const LEAF: u64 = 0x100;
const OUTERMOST: u64 = 0x400;
const RETHOOK: u64 = 0x600;
const GRAPH: u64 = 0x700;
const TASK: u64 = 0xffff_8880_0000_1000;
const NODES: u64 = 0xffff_8880_0000_2000;

/// Types of a kernel before or from Linux 6.11.
fn types(is_words: bool) -> Btf {
    let mut b = Builder::new();
    let long = b.int("long unsigned int", 8);
    let int = b.int("int", 4);
    let head = b.structure("llist_head", 8, &[("first", long, 0)]);
    let node = b.structure("llist_node", 8, &[("next", long, 0)]);
    b.structure(
        "rethook_node",
        48,
        &[
            ("llist", node, 16),
            ("ret_addr", long, 32),
            ("frame", long, 40),
        ],
    );
    b.structure(
        "ftrace_ret_stack",
        32,
        &[("ret", long, 0), ("retp", long, 24)],
    );
    if is_words {
        b.structure("fgraph_ops", 16, &[("idx", int, 8)]);
    }
    let members = [
        ("curr_ret_stack", int, 0x20),
        ("ret_stack", long, 0x28),
        ("rethooks", head, 0x40),
    ];
    b.structure("task_struct", 0x80, &members);
    Btf::parse(&b.bytes()).unwrap()
}

fn table(is_words: bool) -> Unwinder {
    let symbols: Vec<_> = [
        ("_stext", 0),
        ("arch_rethook_trampoline", RETHOOK),
        ("return_to_handler", GRAPH),
        ("_etext", TEXT_LEN),
    ]
    .map(|(name, offset)| (TEXT + offset, 'T', name.to_owned()))
    .to_vec();
    let symbols = Symbols::from_elf_symtab(&unstripped(&symbols)).unwrap();
    let nothing = entry(FrameType::Undefined, Base::Undefined, 0);
    let entries = [
        (LEAF, OrcEntry::CALLED),
        (OUTERMOST, END),
        (OUTERMOST + 0x100, nothing),
    ];
    Unwinder {
        replaced: Replaced::find(&symbols, Some(&types(is_words))),
        ..unwinder(Some(orc(&entries)))
    }
}

fn trace(unwinder: &Unwinder, words: &Words, task: Option<u64>) -> StackTrace {
    // Three for each node, however the list goes round, and those of the stack.
    let most = 3 * 4096 + 2 * words.0.len();
    let mut reads = 0;
    let around = Surroundings {
        memory: &mut |at| {
            reads += 1;
            words.read(at)
        },
        kernel: &mut |_| None,
        foreign: &mut |_, _, _| None,
        task: task.map(GuestVirtAddr),
    };
    let trace = unwinder.unwind(&at(LEAF, STACK, 0), around, MAX_FRAMES);
    assert!(reads <= most, "{reads}");
    trace
}

/// Makes a stack on which two return addresses were replaced by a trampoline.
fn stack(trampoline: u64) -> Words {
    Words::new()
        .put(STACK, &[TEXT + trampoline, TEXT + LEAF + 2])
        .put(STACK + 16, &[TEXT + trampoline, TEXT + OUTERMOST + 1])
}

const EXPECTED: [u64; 5] = [LEAF, LEAF + 1, LEAF + 2, LEAF + 3, OUTERMOST + 1];

/// Makes the nodes of a list: what was there, and where.
fn list(mut words: Words, nodes: &[(u64, u64)]) -> Words {
    let mut link = TASK + 0x40;
    for ((original, slot), i) in nodes.iter().zip(0..) {
        let node = NODES + i * 0x100;
        words = words
            .put(link, &[node + 16])
            .put(node + 32, &[TEXT.wrapping_add(*original), *slot]);
        link = node + 16;
    }
    words.put(link, &[0])
}

#[test]
fn what_kretprobes_replaced_is_found_in_the_task_s_list() {
    let mut several_of_one = vec![(RETHOOK, STACK); 9];
    several_of_one.extend([(LEAF + 1, STACK), (LEAF + 3, STACK + 16)]);
    let with_others = [
        (LEAF + 9, STACK - 64),
        (LEAF + 1, STACK),
        (LEAF + 9, STACK + 8),
        (LEAF + 3, STACK + 16),
    ];
    for nodes in [
        &[(LEAF + 1, STACK), (LEAF + 3, STACK + 16)][..],
        &several_of_one,
        &with_others,
    ] {
        let found = trace(&table(false), &list(stack(RETHOOK), nodes), Some(TASK));
        assert_eq!(offsets(&found), EXPECTED, "{nodes:?}");
        assert_eq!(found.end, TraceEnd::Complete);
    }
}

#[test]
fn what_the_function_graph_tracer_replaced_is_found_on_its_stack() {
    let entry = |original: u64, slot: u64| [TEXT + original, 1, 2, slot];
    let mut entries = vec![
        entry(LEAF + 9, STACK + 0x100),
        entry(LEAF + 3, STACK + 16),
        entry(LEAF + 1, STACK),
    ];
    // Functions that another one jumped to, and which were called then.
    entries.extend([entry(GRAPH, STACK); 9]);
    let used = entries.concat();
    let unused = entry(LEAF + 8, STACK);
    // The number of the last one.
    let words = stack(GRAPH)
        .put(TASK + 0x20, &[0x5_0000_000b, NODES])
        .put(NODES, &used)
        .put(NODES + 12 * 32, &unused);
    let found = trace(&table(false), &words, Some(TASK));
    assert_eq!(offsets(&found), EXPECTED);
    // The number of words, with one more between the entries.
    let mut spaced: Vec<_> = entries
        .iter()
        .flat_map(|e| [&e[..], &[7]].concat())
        .collect();
    let len = spaced.len() as u64;
    spaced.extend(unused);
    let words = stack(GRAPH)
        .put(TASK + 0x20, &[len, NODES])
        .put(NODES, &spaced);
    let found = trace(&table(true), &words, Some(TASK));
    assert_eq!(offsets(&found), EXPECTED);
}

#[test]
fn a_trampoline_is_shown_where_nothing_is_known_of_it() {
    let list = |words, nodes| list(words, nodes);
    let empty = u64::from(u32::MAX);
    for (words, task) in [
        (stack(RETHOOK), None),
        (stack(RETHOOK), Some(TASK)),
        (list(stack(RETHOOK), &[]), Some(TASK)),
        (list(stack(RETHOOK), &[(LEAF + 1, STACK + 8)]), Some(TASK)),
        // A list that is a circle.
        (
            list(stack(RETHOOK), &[(LEAF + 1, STACK + 8)]).put(NODES + 16, &[NODES + 16]),
            Some(TASK),
        ),
        (stack(GRAPH), None),
        (stack(GRAPH), Some(TASK)),
        (stack(GRAPH).put(TASK + 0x20, &[empty, NODES]), Some(TASK)),
        (
            stack(GRAPH).put(TASK + 0x20, &[0x7fff_fffe, NODES]),
            Some(TASK),
        ),
    ] {
        let found = trace(&table(false), &words, task);
        let trampoline = words.read(GuestVirtAddr(STACK)).unwrap() - TEXT;
        assert_eq!(offsets(&found), [LEAF, trampoline]);
        assert_eq!(found.end, TraceEnd::NoEntry);
    }
}

#[test]
fn a_list_is_gone_through_once_however_many_were_replaced() {
    const COUNT: u64 = 500;
    let mut words = Words::new();
    let mut nodes = Vec::new();
    for i in 0..COUNT {
        let slot = STACK + i * 8;
        words = words.put(slot, &[TEXT + RETHOOK]);
        nodes.push((LEAF + 1 + i % 64, slot));
    }
    let words = list(
        words.put(STACK + COUNT * 8, &[TEXT + OUTERMOST + 1]),
        &nodes,
    );
    let found = trace(&table(false), &words, Some(TASK));
    assert_eq!(found.addresses.len() as u64, COUNT + 2);
    assert_eq!(found.end, TraceEnd::Complete);
}

#[test]
fn trampolines_of_the_kernel_and_others_can_replace_each_other() {
    let ours = 0xffff_ffff_1000_0000;
    // One of vmprobe's trampolines took the place of the kernel's, or the other way round.
    for (slot, foreign, node) in [
        (ours, TEXT + RETHOOK, TEXT + LEAF + 1),
        (TEXT + RETHOOK, TEXT + LEAF + 1, ours),
    ] {
        let words = Words::new()
            .put(STACK, &[slot])
            .put(STACK + 8, &[TEXT + OUTERMOST + 1]);
        let words = list(words, &[(node.wrapping_sub(TEXT), STACK)]);
        let around = Surroundings {
            memory: &mut |at| words.read(at),
            kernel: &mut |_| None,
            foreign: &mut |at, _, _| {
                (at.0 == ours).then_some(Foreign::Returned {
                    original: GuestVirtAddr(foreign),
                })
            },
            task: Some(GuestVirtAddr(TASK)),
        };
        let found = table(false).unwind(&at(LEAF, STACK, 0), around, 64);
        assert_eq!(offsets(&found), [LEAF, LEAF + 1, OUTERMOST + 1]);
    }
}
