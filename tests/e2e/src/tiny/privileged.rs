//! Probes on instructions of the kernel that don't just run on: on interrupt flag and shadow, `hlt`, stack and
//! branches. Each guest notes what it sees, and sees the same with probes as without.

use std::collections::BTreeMap;

use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, eax, ptr, qword_ptr, r8, r12, r13, r14, r15, rax, rbx, rcx, rsi,
    rsp,
};
use vmprobe_client::spec;
use vmprobe_client::v1::{EventKind, Probe, Registers, Strategy, probe};

use super::image::{self, DATA, Names};
use super::interrupts::{self, NMI, VECTOR};
use super::vm::{Tiny, VM, number};
use crate::context::{Context, Place};
use crate::events;
use crate::test::{Failure, Needs, Outcome, Test, TestResult, check_eq, pass_with, wrong};

pub const FLAGS: Test = Test {
    name: "tiny_probed_pushfq_popfq_sti_and_cli_leave_the_right_flags",
    ids: &["KP11"],
    needs: Needs::Tiny,
    run: flags,
};

pub const INTERRUPTS: Test = Test {
    name: "tiny_interrupts_come_where_probed_popfq_sti_and_cli_let_them",
    ids: &["KP11"],
    needs: Needs::Tiny,
    run: interrupt_flag,
};

pub const HALT: Test = Test {
    name: "tiny_a_probed_hlt_wakes_by_what_wakes_it_unprobed",
    ids: &["KP11"],
    needs: Needs::Tiny,
    run: halt,
};

pub const BRANCHES: Test = Test {
    name: "tiny_probed_calls_returns_and_loops_go_where_they_go_unprobed",
    ids: &["KP11"],
    needs: Needs::Tiny,
    run: branches,
};

/// Where a guest notes what it sees, word by word.
const NOTES: u64 = DATA + 0x2000;
/// Where the NMI handler leaves the RIP of the interrupted code.
const INTERRUPTED: u64 = DATA + 0x3000;
/// A value in the notes for a place that the guest has reached.
pub const REACHED: u64 = 0x5ec0_0000_0000_0000;
/// IF of RFLAGS, and its bit 1, which is always set.
const IF: u64 = 1 << 9;
const FIXED: u64 = 1 << 1;
/// All flags that `popfq` changes in kernel mode, without IF and TF: CF, PF, AF, ZF, SF, DF, OF,
/// IOPL, NT, AC, ID.
const POPPED: u64 = 0x24_7cd5;

/// A guest, its probes and how many words it notes.
pub struct Case {
    kernel: Vec<u8>,
    probes: &'static [&'static str],
    notes: usize,
    /// True if each probe has to be emulated.
    emulated: bool,
}

/// The results of a run.
pub struct Run {
    pub notes: Vec<u64>,
    /// The registers of the events after instructions, by their symbols.
    pub posts: BTreeMap<String, Registers>,
    symbols: BTreeMap<String, u64>,
}

impl Run {
    /// The address of a symbol; 0, which is nowhere, if there is none.
    pub fn symbol(&self, name: &str) -> u64 {
        self.symbols.get(name).copied().unwrap_or_default()
    }
}

impl Case {
    /// Builds the guest: `code` begins with the notes' address in `r15`.
    pub fn new(
        probes: &'static [&'static str],
        notes: usize,
        code: impl FnOnce(&mut CodeAssembler, &mut Names) -> Result<(), IcedError>,
    ) -> Result<Self, Failure> {
        let kernel = image::build(|a, names| {
            a.mov(r15, NOTES)?;
            code(a, names)
        })?;
        Ok(Self {
            kernel,
            probes,
            notes,
            emulated: true,
        })
    }

    /// Lets its probes have any strategy.
    pub fn by_any_way(self) -> Self {
        Self {
            emulated: false,
            ..self
        }
    }

    /// Runs the guest without and with probes, and compares. Returns the run without.
    async fn compare(&self, cx: &Context) -> Result<Run, Failure> {
        let without = self.run(cx, &[]).await?;
        let with = self.run(cx, self.probes).await?;
        check_eq!(
            Hex(&with.notes),
            Hex(&without.notes),
            "what the guest noted under probes"
        );
        Ok(without)
    }

    /// Runs the guest with probes. Each must be hit once, and have one event, or two if it asks for a post event.
    pub async fn run(&self, cx: &Context, probes: &[&str]) -> Result<Run, Failure> {
        let mut guest = Tiny::new(cx, &self.kernel, 64).await?;
        let specs: Result<Vec<_>, _> = probes.iter().map(|text| spec::parse(text)).collect();
        let specs = specs.map_err(|error| wrong!("{error}"))?;
        let probes = guest.client.register_probes(VM, specs).await?;
        for probe in &probes {
            if self.emulated {
                check_eq!(
                    probe.strategy(),
                    Strategy::Emulate,
                    "how `{}` is passed",
                    probe.instruction
                );
            }
        }
        let (symbols, _) = guest.client.lookup_symbols(VM, "*", 0).await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.start().await?;
        let bytes = guest.console.bytes(self.notes * 8).await?;
        let events = events::all(&mut stream).await?;
        guest.power_off().await?;
        let ids = |probe: &Probe| [Some(probe.id), has_post(probe).then_some(probe.id)];
        let mut expected: Vec<u64> = probes.iter().flat_map(ids).flatten().collect();
        let mut hit: Vec<u64> = events.iter().map(|event| event.probe_id).collect();
        expected.sort_unstable();
        hit.sort_unstable();
        check_eq!(hit, expected, "events of each probe");
        for probe in guest.client.list_probes(VM).await? {
            let counts = (probe.hits, probe.missed);
            check_eq!(counts, (1, 0), "hits and misses of {}", probe.name);
        }
        let posts = events
            .iter()
            .filter(|event| event.kind() == EventKind::Post);
        let posts = posts.filter_map(|event| {
            let probe = probes.iter().find(|probe| probe.id == event.probe_id)?;
            Some((probe.symbol.clone(), event.registers?))
        });
        Ok(Run {
            posts: posts.collect(),
            notes: bytes.chunks(8).map(number).collect(),
            symbols: symbols
                .into_iter()
                .map(|it| (it.name, it.address))
                .collect(),
        })
    }
}

/// Returns true if it asks for a post event.
fn has_post(probe: &Probe) -> bool {
    matches!(&probe.kind, Some(probe::Kind::InstructionProbe(it)) if it.post)
}

/// Numbers that are shown in hexadecimal.
#[derive(PartialEq)]
pub struct Hex<'a>(pub &'a [u64]);

impl std::fmt::Debug for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x?}", self.0)
    }
}

/// Notes a register; changes no flag.
pub fn note(a: &mut CodeAssembler, register: AsmRegister64) -> Result<(), IcedError> {
    a.mov(ptr(r15), register)?;
    a.lea(r15, ptr(r15 + 8))
}

/// Notes that the guest has come here; changes `rbx`.
pub fn reached(a: &mut CodeAssembler, place: u64) -> Result<(), IcedError> {
    a.mov(rbx, REACHED + place)?;
    note(a, rbx)
}

/// Notes the flags; changes `rbx`.
pub fn note_flags(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.pushfq()?;
    a.pop(rbx)?;
    note(a, rbx)
}

/// Sends this many notes and switches the guest off.
pub fn finish(a: &mut CodeAssembler, notes: usize) -> Result<(), IcedError> {
    let mut again = a.create_label();
    a.mov(rsi, NOTES)?;
    a.mov(r8, notes as u64)?;
    a.set_label(&mut again)?;
    a.mov(rax, ptr(rsi))?;
    image::send_rax(a)?;
    a.add(rsi, 8)?;
    a.dec(r8)?;
    a.jnz(again)?;
    image::power_off(a)
}

fn flags(cx: &Context) -> TestResult {
    const NOTED: usize = 8;
    const PROBES: &[&str] = &[
        "push_off",
        "pop_all",
        "sti",
        "push_on",
        "pop_off",
        "pop_on",
        "cli",
        "cli_again",
    ];
    let case = Case::new(PROBES, NOTED, |a, names| {
        a.xor(eax, eax)?;
        names.here(a, "push_off")?;
        a.pushfq()?;
        a.pop(rbx)?;
        note(a, rbx)?;
        a.mov(rbx, POPPED | FIXED)?;
        a.push(rbx)?;
        names.here(a, "pop_all")?;
        a.popfq()?;
        note_flags(a)?;
        names.here(a, "sti")?;
        a.sti()?;
        note_flags(a)?;
        names.here(a, "push_on")?;
        a.pushfq()?;
        a.pop(rbx)?;
        note(a, rbx)?;
        for (name, value) in [("pop_off", FIXED), ("pop_on", IF | FIXED)] {
            a.push(value as i32)?;
            names.here(a, name)?;
            a.popfq()?;
            note_flags(a)?;
        }
        for name in ["cli", "cli_again"] {
            names.here(a, name)?;
            a.cli()?;
            note_flags(a)?;
        }
        finish(a, NOTED)
    })?;
    cx.block_on(async {
        let notes = case.compare(cx).await?.notes;
        let all = POPPED | FIXED;
        let expected = [all, all | IF, all | IF, FIXED, IF | FIXED, FIXED, FIXED];
        check_eq!(notes[0] & IF, 0, "IF at the start");
        check_eq!(Hex(&notes[1..]), Hex(&expected), "the flags");
        pass_with(format!("{} probes", PROBES.len()))
    })
}

/// An interrupt is pending whenever the flag is switched on. Its handler notes where it came.
fn interrupt_flag(cx: &Context) -> TestResult {
    const NOTED: usize = 5;
    const PROBES: &[&str] = &["pop_on", "pop_off", "sti", "cli"];
    let case = Case::new(PROBES, NOTED, |a, names| {
        let mut handler = a.create_label();
        interrupts::gates(a, &[(VECTOR, handler)])?;
        interrupts::enable_apic(a)?;
        interrupts::interrupt_self(a)?;
        a.push((IF | FIXED) as i32)?;
        names.here(a, "pop_on")?;
        a.popfq()?;
        names.here(a, "behind_pop")?;
        a.nop()?;

        a.push(FIXED as i32)?;
        names.here(a, "pop_off")?;
        a.popfq()?;
        interrupts::interrupt_self(a)?;
        a.nop()?;
        reached(a, 1)?;
        names.here(a, "sti")?;
        a.sti()?;
        names.here(a, "in_shadow")?;
        a.nop()?;
        names.here(a, "behind_shadow")?;
        a.nop()?;

        names.here(a, "cli")?;
        a.cli()?;
        interrupts::interrupt_self(a)?;
        a.nop()?;
        reached(a, 2)?;
        a.push((IF | FIXED) as i32)?;
        a.popfq()?;
        names.here(a, "behind_cli")?;
        a.nop()?;
        finish(a, NOTED)?;

        a.set_label(&mut handler)?;
        a.mov(r14, ptr(rsp))?;
        note(a, r14)?;
        interrupts::end_of_interrupt(a)?;
        a.iretq()
    })?;
    cx.block_on(async {
        let without = case.run(cx, &[]).await?;
        // SDM vol. 2, `POPF` and `STI`: the interrupt comes at once, or after the next instruction.
        let expected = [
            without.symbol("behind_pop"),
            REACHED + 1,
            without.symbol("behind_shadow"),
            REACHED + 2,
            without.symbol("behind_cli"),
        ];
        // A KVM that emulates kernel-mode code looks for interrupts only now and then.
        if without.notes != expected && cx.place == Place::Host {
            let places = Hex(&without.notes);
            let text = format!("this KVM interrupts a guest too late: {places:?}");
            return Ok(Outcome::Skip(text));
        }
        check_eq!(Hex(&without.notes), Hex(&expected), "without probes");
        let with = case.run(cx, case.probes).await?;
        check_eq!(Hex(&with.notes), Hex(&expected), "under probes");
        // The shadow ends with the next instruction, whether the CPU or the engine executes it.
        let all = [case.probes, &["in_shadow", "behind_shadow"]].concat();
        let with = case.run(cx, &all).await?;
        check_eq!(Hex(&with.notes), Hex(&expected), "under more probes");
        pass_with(format!("{} probes", PROBES.len()))
    })
}

/// With the interrupt flag off, `hlt` waits for an NMI although an interrupt is pending. With `sti` before it, it waits
/// for that interrupt.
fn halt(cx: &Context) -> TestResult {
    const NOTED: usize = 4;
    const PROBES: &[&str] = &["halt_off", "sti", "halt_on"];
    let case = Case::new(PROBES, NOTED, |a, names| {
        let (mut handler, mut nmi) = (a.create_label(), a.create_label());
        let mut woken = a.create_label();
        interrupts::gates(a, &[(VECTOR, handler), (NMI, nmi)])?;
        interrupts::enable_apic(a)?;
        a.mov(r12, INTERRUPTED)?;
        interrupts::interrupt_self(a)?;
        interrupts::timer_makes_nmis(a)?;
        interrupts::start_timer(a)?;
        names.here(a, "halt_off")?;
        a.hlt()?;
        // An NMI before the `hlt` hasn't woken it; no NMI can come between it and this.
        names.here(a, "behind_halt_off")?;
        a.mov(rbx, ptr(r12))?;
        interrupts::timer_makes_nothing(a)?;
        note(a, rbx)?;
        reached(a, 1)?;

        names.here(a, "sti")?;
        a.sti()?;
        names.here(a, "halt_on")?;
        a.hlt()?;
        names.here(a, "behind_halt_on")?;
        a.nop()?;
        a.set_label(&mut woken)?;
        reached(a, 2)?;
        finish(a, NOTED)?;

        // Continues behind the `hlt`, even if the NMI came before it.
        a.set_label(&mut handler)?;
        a.mov(r14, ptr(rsp))?;
        note(a, r14)?;
        a.lea(r14, ptr(woken))?;
        a.mov(ptr(rsp), r14)?;
        interrupts::end_of_interrupt(a)?;
        a.iretq()?;

        a.set_label(&mut nmi)?;
        a.mov(r13, ptr(rsp))?;
        a.mov(ptr(r12), r13)?;
        interrupts::start_timer(a)?;
        a.iretq()
    })?;
    cx.block_on(async {
        let run = case.compare(cx).await?;
        let expected = [
            run.symbol("behind_halt_off"),
            REACHED + 1,
            run.symbol("behind_halt_on"),
            REACHED + 2,
        ];
        check_eq!(
            Hex(&run.notes),
            Hex(&expected),
            "what woke the guest, and where"
        );
        pass_with("an NMI with interrupts off, the pending interrupt after sti")
    })
}

fn branches(cx: &Context) -> TestResult {
    const NOTED: usize = 13;
    const PROBES: &[&str] = &[
        "return_16",
        "loop_1",
        "loop_0",
        "prefixed",
        "call_rsp",
        "call_below",
        "push_rsp",
        "pop_rsp",
    ];
    let case = Case::new(PROBES, NOTED, |a, names| {
        let (mut back, mut function) = (a.create_label(), a.create_label());
        a.push(0x11)?;
        a.push(0x22)?;
        a.lea(rax, ptr(back))?;
        a.push(rax)?;
        names.here(a, "return_16")?;
        a.ret_1(16)?;
        a.ud2()?;
        a.set_label(&mut back)?;
        note(a, rsp)?;

        for (name, count, place) in [("loop_1", 1_u64, 1), ("loop_0", 0, 3)] {
            let (mut taken, mut behind) = (a.create_label(), a.create_label());
            a.mov(rcx, count)?;
            names.here(a, name)?;
            a.loop_(taken)?;
            reached(a, place)?;
            a.jmp(behind)?;
            a.set_label(&mut taken)?;
            reached(a, place + 1)?;
            a.set_label(&mut behind)?;
            note(a, rcx)?;
        }

        // cs call rax
        a.lea(rax, ptr(function))?;
        names.here(a, "prefixed")?;
        a.db(&[0x2e, 0xff, 0xd0])?;
        names.here(a, "behind_prefixed")?;
        note(a, rsp)?;

        a.push(rax)?;
        a.push(0)?;
        names.here(a, "call_rsp")?;
        a.call(qword_ptr(rsp + 8))?;
        names.here(a, "behind_call_rsp")?;
        a.lea(rsp, ptr(rsp + 16))?;

        // The target is read from where the return address is pushed.
        a.mov(ptr(rsp - 8), rax)?;
        names.here(a, "call_below")?;
        a.call(qword_ptr(rsp - 8))?;
        names.here(a, "behind_call_below")?;
        note(a, rsp)?;

        names.here(a, "push_rsp")?;
        a.push(rsp)?;
        a.pop(rbx)?;
        note(a, rbx)?;
        // The address of the operand is that after the pop.
        a.mov(rbx, REACHED)?;
        a.push(0)?;
        a.push(rbx)?;
        names.here(a, "pop_rsp")?;
        a.pop(qword_ptr(rsp))?;
        a.pop(rbx)?;
        note(a, rbx)?;
        note(a, rsp)?;
        finish(a, NOTED)?;

        // Notes where it returns to.
        a.set_label(&mut function)?;
        a.mov(r14, ptr(rsp))?;
        note(a, r14)?;
        a.ret()
    })?;
    cx.block_on(async {
        let run = case.compare(cx).await?;
        let stack = image::TEXT;
        let expected = [
            stack,
            REACHED + 1,
            0,
            REACHED + 4,
            u64::MAX,
            run.symbol("behind_prefixed"),
            stack,
            run.symbol("behind_call_rsp"),
            run.symbol("behind_call_below"),
            stack,
            stack,
            REACHED,
            stack,
        ];
        check_eq!(Hex(&run.notes), Hex(&expected), "where the guest went");
        pass_with(format!("{} probes", PROBES.len()))
    })
}
