//! What the guest tells of an exception that it didn't expect: an oops.
//!
//! Where the instruction was executed in a detour or a slot, the saved registers (`struct pt_regs`) have an address in
//! the arena, of which the kernel knows no symbol, no text and no stack frame. The engine makes them what they would be
//! without the probe, right before the kernel looks at them. It must not do so earlier: after a fault that the kernel
//! mends, as of a page that it has to make writable, the task goes back into the detour. An instruction whose fault the
//! kernel has a fix-up for (`__ex_table`) is never in a detour, and is stepped in a slot, so that its handler sees the
//! original address.
//!
//! The text around RIP, which an oops shows too, is what is there without probes.

use std::sync::Arc;

use guest_kernel::blacklist::Reason;
use guest_kernel::kprobes::GuestKprobes;
use guest_state::x86_64::paging::{read_virt, write_virt};
use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};

use crate::engine::Engine;
use crate::engine::life::milestones::entry;
use crate::engine::placement::body::{Body, KernelBody};
use crate::engine::placement::locate::Located;
use crate::engine::placement::walk::Walks;
use crate::engine::returns::stack::{WORD, read_word, write_word};
use crate::engine::sites::site::{Milestone, Site};
use crate::engine::sites::table::Table;
use crate::insn::decode;
use crate::probe::{Place, ProbeKind};

/// Functions through which the kernel ends a task for an exception: the second argument is the registers.
/// Source: `arch/x86/kernel/dumpstack.c`.
const ENDS_TASK: [&str; 3] = ["__die", "die", "die_addr"];
/// Functions in which the kernel copies the text around RIP to show it, and the one that copies.
/// Sources: `arch/x86/kernel/dumpstack.c`, `mm/maccess.c`.
const SHOWS_TEXT: [&str; 2] = ["show_opcodes", "copy_code"];
const COPIES_TEXT: &str = "copy_from_kernel_nofault";
/// How many bytes the kernel shows at most (`OPCODE_BUFSIZE` in `arch/x86/kernel/dumpstack.c`).
const SHOWN: u64 = 64;

/// Where RIP and RSP are in the saved registers (`struct pt_regs` in `arch/x86/include/asm/ptrace.h`).
const SAVED_RIP: u64 = 0x80;
const SAVED_RSP: u64 = 0x98;

impl Engine {
    /// Says which functions this kernel lacks that the engine needs to have oopses tell original addresses; `None` if
    /// it has all of them.
    pub fn oops_note(&self) -> Option<String> {
        let symbols = &self.kernel.symbols;
        let lacks = |name: &&&str| symbols.by_name(name).next().is_none();
        let needed = [ENDS_TASK[0], ENDS_TASK[2], SHOWS_TEXT[0], COPIES_TEXT];
        let missing: Vec<_> = needed.iter().filter(lacks).copied().collect();
        (!missing.is_empty()).then(|| {
            let missing = missing.join(", ");
            format!("the kernel has no symbol {missing}: what it tells of an exception in a detour isn't put right")
        })
    }

    /// Where oopses are still to be waited for, as far as the kernel has the functions for it and no kprobe of the
    /// guest's is there.
    pub(crate) fn find_oopses(
        &self,
        memory: &dyn GuestMemory,
        kprobes: &GuestKprobes,
        table: &Table,
    ) -> Vec<(Located, Milestone)> {
        let waits = |site: &Arc<Site>| site.milestone.is_some_and(Milestone::is_of_oops);
        if table.sites().any(waits) {
            return Vec::new();
        }
        let body = KernelBody {
            kernel: &self.kernel,
            table,
            memory,
            kprobes,
        };
        // The kernel has no kprobes in text that its own handling of int3s may come to. Ours are handled outside of the
        // guest.
        let rules_out = |reason| reason != Reason::KprobeBlacklist;
        let find = |place: &Place| {
            let walks = &mut Walks::default();
            self.locate_if(walks, memory, &body, place, ProbeKind::PRE, rules_out)
        };
        let is_there = |name: &&str| self.kernel.symbols.by_name(name).next().is_some();
        let ends = ENDS_TASK.iter().filter(|it| is_there(it));
        let ends = ends.map(|name| (entry(name), Milestone::EndsTask));
        let shows = SHOWS_TEXT.iter().filter(|it| is_there(it));
        let shows =
            shows.filter_map(|name| Some((self.copies_text(&body, name)?, Milestone::ShowsText)));
        let found = ends.chain(shows);
        found
            .filter_map(|(at, what)| Some((find(&at).ok()?, what)))
            .collect()
    }

    /// Where a function calls the one that copies text.
    fn copies_text(&self, body: &KernelBody<'_>, name: &str) -> Option<Place> {
        let copies = self.kernel.symbols.get(COPIES_TEXT)?.address;
        let function = body.function(&entry(name)).ok()?;
        let text = body.text(function.start, function.size as usize)?.ok()?;
        let mut done = 0;
        while let Ok(code) = decode(text.get(done..)?, function.start.wrapping_add(done as u64)) {
            let insn = &code.insn;
            if insn.is_call_near() && insn.near_branch64() == copies.0 {
                return Some(Place::Address(GuestVirtAddr(insn.ip())));
            }
            done += insn.len();
        }
        None
    }

    /// Has the saved registers say where in the guest's text an exception was, for which the kernel is about to end a
    /// task.
    pub(crate) fn ends_task(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        let saved = GuestVirtAddr(vcpu.registers().rsi);
        let (rip_at, rsp_at) = (saved.wrapping_add(SAVED_RIP), saved.wrapping_add(SAVED_RSP));
        let Some(tables) = vcpu.page_tables() else {
            return;
        };
        let read = |at: GuestVirtAddr| read_word(memory, tables, at.0);
        let (Some(rip), Some(rsp)) = (read(rip_at), read(rsp_at)) else {
            return;
        };
        let rip = GuestVirtAddr(rip);
        let Some(original) = self.original(rip) else {
            return;
        };
        // Memory that the guest can't write holds no saved registers.
        write_word(memory, tables, rip_at.0, original.0);
        if self.arena.has_pushed(rip) {
            write_word(memory, tables, rsp_at.0, rsp.wrapping_add(WORD));
        }
    }

    /// Copies the original text in the place of the kernel, which is about to copy text to show it, if that text
    /// differs. Returns true if it did.
    pub(crate) fn shows_text(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> bool {
        let registers = *vcpu.registers();
        let (to, from) = (GuestVirtAddr(registers.rdi), GuestVirtAddr(registers.rsi));
        let Some(tables) = vcpu.page_tables().filter(|_| registers.rdx <= SHOWN) else {
            return false;
        };
        let mut text = vec![0; registers.rdx as usize];
        if read_virt(memory, tables, from, &mut text).is_err() {
            return false;
        }
        let patched = text.clone();
        self.table().unmask(from, &mut text);
        if text == patched || write_virt(memory, tables, to, &text).is_err() {
            return false;
        }
        // As the function that copies returns on success.
        vcpu.registers_mut().rax = 0;
        true
    }
}
