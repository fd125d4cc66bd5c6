//! Return addresses that the guest's own tracers have replaced.
//!
//! Kretprobes put `arch_rethook_trampoline` on the stack, and keep what was there in a list of the task's
//! (`rethook_find_ret_addr` in `kernel/trace/rethook.c`). The function graph tracer puts `return_to_handler`
//! there, and keeps what was there on a stack of its own (`ftrace_graph_ret_addr` in `kernel/trace/fgraph.c`).

use guest_state::GuestVirtAddr;

use crate::btf::{Btf, TypeError};
use crate::symbols::Symbols;

/// How much of a task's list one walk looks at: more than there are return addresses on a stack. A longer list
/// is taken to be circular.
const MAX_NODES: u32 = 4096;
/// The longest stack of the function graph tracer, in bytes: 50 entries (`FTRACE_RETFUNC_DEPTH`), and a page
/// from Linux 6.11 (`SHADOW_STACK_SIZE`).
const MAX_SHADOW: u64 = 4096;

/// How to find replaced return addresses.
#[derive(Debug, Clone, Default)]
pub(super) struct Replaced {
    rethooks: Option<Rethooks>,
    graph: Option<Graph>,
}

/// Where a task's replaced return addresses are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rethooks {
    trampoline: GuestVirtAddr,
    /// Of the list's head in a task.
    head: u64,
    /// Of the list's node in a `struct rethook_node`, and of the other members.
    node: u64,
    original: u64,
    slot: u64,
}

/// The same for the function graph tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Graph {
    trampoline: GuestVirtAddr,
    /// Of the pointer to the entries in a task.
    entries: u64,
    /// Of the member that says how many there are.
    top: u64,
    /// In a `struct ftrace_ret_stack`.
    original: u64,
    slot: u64,
    /// The size of an entry, where `top` is the number of the last one. `None` where it is the number of
    /// words of 8 bytes in use, some of which are no part of an entry.
    size: Option<u64>,
}

/// How far a walk has come in a task's lists, which are in the stack's order.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    rethook: Cursor,
    /// How many nodes of the list have been looked at.
    nodes: u32,
    graph: Cursor,
}

#[derive(Debug, Default, Clone, Copy)]
enum Cursor {
    #[default]
    Start,
    /// The last that was found.
    At(GuestVirtAddr),
    /// There are no more.
    Done,
}

type Memory<'a> = &'a mut dyn FnMut(GuestVirtAddr) -> Option<u64>;

impl Replaced {
    /// Finds what a kernel's symbols and types tell.
    pub(super) fn find(symbols: &Symbols, btf: Option<&Btf>) -> Self {
        Self {
            rethooks: btf.and_then(|btf| Rethooks::find(symbols, btf)),
            graph: btf.and_then(|btf| Graph::find(symbols, btf)),
        }
    }

    /// Returns the return address that `address` has replaced on the stack; `None` where `address` is no trampoline, or
    /// nothing is known of it.
    pub(super) fn recover(
        &self,
        address: GuestVirtAddr,
        slot: GuestVirtAddr,
        task: Option<GuestVirtAddr>,
        cursors: &mut Cursors,
        memory: Memory<'_>,
    ) -> Option<GuestVirtAddr> {
        let rethooks = self.rethooks.filter(|r| r.trampoline == address);
        if let Some(rethooks) = rethooks {
            return rethooks.original(slot, task?, cursors, memory);
        }
        let graph = self.graph.filter(|g| g.trampoline == address)?;
        graph.original(slot, task?, &mut cursors.graph, memory)
    }
}

impl Rethooks {
    fn find(symbols: &Symbols, btf: &Btf) -> Option<Self> {
        let trampoline = symbols.get("arch_rethook_trampoline")?.address;
        let offsets = || {
            Ok::<_, TypeError>(Self {
                trampoline,
                head: btf.member("task_struct", "rethooks.first")?.offset,
                node: btf.member("rethook_node", "llist")?.offset,
                original: btf.member("rethook_node", "ret_addr")?.offset,
                slot: btf.member("rethook_node", "frame")?.offset,
            })
        };
        offsets().ok()
    }

    fn original(
        self,
        slot: GuestVirtAddr,
        task: GuestVirtAddr,
        cursors: &mut Cursors,
        memory: Memory<'_>,
    ) -> Option<GuestVirtAddr> {
        let mut link = match std::mem::replace(&mut cursors.rethook, Cursor::Done) {
            Cursor::Start => task.wrapping_add(self.head),
            // `next` is all that a `struct llist_node` has.
            Cursor::At(node) => node,
            Cursor::Done => return None,
        };
        while cursors.nodes < MAX_NODES {
            cursors.nodes += 1;
            let node = GuestVirtAddr(memory(link)?);
            if node.0 == 0 {
                return None;
            }
            let start = node.wrapping_add(self.node.wrapping_neg());
            let original = GuestVirtAddr(memory(start.wrapping_add(self.original))?);
            let its_slot = memory(start.wrapping_add(self.slot))?;
            // Of several kretprobes of one function, the first has the original address.
            if original != self.trampoline && its_slot == slot.0 {
                cursors.rethook = Cursor::At(node);
                return Some(original);
            }
            link = node;
        }
        None
    }
}

impl Graph {
    fn find(symbols: &Symbols, btf: &Btf) -> Option<Self> {
        let trampoline = symbols.get("return_to_handler")?.address;
        let offsets = || {
            // From Linux 6.11, several tracers may have something in between the entries.
            let is_words = btf.member("fgraph_ops", "idx").is_ok();
            Ok::<_, TypeError>(Self {
                trampoline,
                entries: btf.member("task_struct", "ret_stack")?.offset,
                top: btf.member("task_struct", "curr_ret_stack")?.offset,
                original: btf.member("ftrace_ret_stack", "ret")?.offset,
                slot: btf.member("ftrace_ret_stack", "retp")?.offset,
                size: (!is_words)
                    .then(|| btf.size_of("ftrace_ret_stack"))
                    .transpose()?,
            })
        };
        offsets().ok()
    }

    fn original(
        self,
        slot: GuestVirtAddr,
        task: GuestVirtAddr,
        cursor: &mut Cursor,
        memory: Memory<'_>,
    ) -> Option<GuestVirtAddr> {
        let was = std::mem::replace(cursor, Cursor::Done);
        let start = GuestVirtAddr(memory(task.wrapping_add(self.entries))?);
        let end = match was {
            Cursor::Start => {
                // An int, -1 where there are none.
                let top = memory(task.wrapping_add(self.top))? as i32;
                let len = match self.size {
                    Some(size) => u64::try_from(top.checked_add(1)?).ok()?.checked_mul(size)?,
                    None => u64::try_from(top).ok()? * 8,
                };
                start.wrapping_add(len.min(MAX_SHADOW))
            }
            Cursor::At(end) => end,
            Cursor::Done => return None,
        };
        // Wherever an entry begins, the word at its end is where on the stack it belongs.
        let words = end.offset_from(start)? / 8;
        for word in (0..words).rev() {
            let at = start.wrapping_add(word * 8);
            if memory(at)? != slot.0 {
                continue;
            }
            let entry = at.wrapping_add(self.slot.wrapping_neg());
            let original = GuestVirtAddr(memory(entry.wrapping_add(self.original))?);
            // An entry has the trampoline itself if another function jumped to this one instead of calling it.
            if original != self.trampoline {
                *cursor = Cursor::At(at);
                return Some(original);
            }
        }
        None
    }
}
