//! Answering traps.

use std::sync::Arc;
use std::time::Instant;

use guest_state::x86_64::supervisor::SupervisorMemory;
use guest_state::x86_64::vector;
use guest_state::{Action, GuestMemory, GuestVirtAddr, Registers, Trap, TrapHandler, Vcpu, VcpuId};

use crate::emulate::{self, Outcome, Touched};
use crate::engine::Engine;
use crate::engine::actions::attendants::{AskedHits, Then};
use crate::engine::code::arena::CodeArena;
use crate::engine::hits::int3::{Found, end_resume, find, is_gone};
use crate::engine::hits::stepping::StepIn;
use crate::engine::sites::foresight::Foreseen;
use crate::engine::sites::site::{Milestone, Site, Way};
use crate::engine::sites::table::Table;
use crate::event::Detail;
use crate::probe::ProbeKind;

impl TrapHandler for Engine {
    fn trap(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory, trap: Trap) -> Action {
        match trap {
            _ if self.debugger.is_attached() => self.trap_debugged(memory, vcpu, trap),
            // Most traps are such.
            Trap::Breakpoint => self.on_breakpoint(memory, vcpu),
            _ => self.answer_trap(memory, vcpu, trap),
        }
    }

    fn first_look(&self, rip: GuestVirtAddr) -> Option<usize> {
        Some(self.first_look.of(rip))
    }

    fn held_until(&self, vcpu: VcpuId) -> Option<Instant> {
        self.attendants.held_until(vcpu)
    }

    /// Puts the original instruction back for a lone step. Returns false if the probe has gone meanwhile, so
    /// that there is nothing to step.
    fn before_step(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory) -> bool {
        if self.frees_jumps(memory, vcpu) {
            // The records in the rings are reported for the probes that are there now.
            self.settle(memory);
            self.withdraw_module(memory, vcpu);
            // The vCPU comes to the milestone once more.
            return false;
        }
        self.lift_for_step(memory, vcpu)
    }
}

impl Engine {
    /// Answers a trap as if there were no debugger.
    pub(crate) fn answer_trap(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        trap: Trap,
    ) -> Action {
        match trap {
            Trap::Breakpoint => self.on_breakpoint(memory, vcpu),
            Trap::Watchpoint(hit) => self.on_watchpoint(memory, vcpu, hit),
            Trap::Step(end) => self.after_step(memory, vcpu, end),
            Trap::Released => self.released(memory, vcpu),
            Trap::StepWanted => {
                // The debugger that wanted it has gone.
                vcpu.pause_guest();
                Action::Resume
            }
        }
    }

    /// Answers an int3; RIP is at it. Reports the hit and gets past the probed
    /// instruction, or says how to.
    pub(crate) fn on_breakpoint(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
        let rip = GuestVirtAddr(vcpu.registers().rip);
        if CodeArena::covers(rip) {
            return self.on_breakpoint_in_arena(rip, memory, vcpu);
        }
        let table = self.table();
        match self.plain_hit(&table, rip, memory, vcpu) {
            Some(action) => action,
            None => self.on_other_breakpoint(&table, memory, vcpu),
        }
    }

    /// As [`Self::on_breakpoint`], for all but plain hits. It isn't inlined: behind an exit the processor's near caches
    /// hold little of this code, and a plain hit needs none of it.
    #[inline(never)]
    fn on_other_breakpoint(
        &self,
        table: &Table,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Action {
        let rip = GuestVirtAddr(vcpu.registers().rip);
        if let Some((site, copy)) = table.tripwire(rip) {
            return self.tripped(site, copy, vcpu);
        }
        let site = match find(table, memory, vcpu) {
            Found::Ours(site) => site,
            Found::Stale => {
                self.miss_departed(memory, vcpu);
                return Action::Resume;
            }
            Found::Foreign => return Action::Reinject,
        };
        end_resume(vcpu);
        match site.milestone {
            None => self.hit(site, memory, vcpu),
            Some(milestone) => self.on_milestone(milestone, site, memory, vcpu),
        }
    }

    /// Reports a hit of the site's probes and gets past its instruction.
    pub(crate) fn hit(
        &self,
        site: &Arc<Site>,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Action {
        if self.stop_at(site, vcpu) {
            return Action::Resume;
        }
        let before = Registers {
            rip: site.virt.0,
            ..*vcpu.registers()
        };
        let (rip, mut tsc, mut asked) = (vcpu.registers().rip, None, AskedHits::new());
        for probe in site.enabled() {
            probe.exit();
            let counts = matches!(probe.kind, ProbeKind::Instruction { .. });
            if counts && self.meets_condition(probe, memory, vcpu) {
                let told = (&mut tsc, &mut asked);
                self.take_hit(probe, (memory, vcpu), told, &before, Detail::Pre);
            }
        }
        let then = match vcpu.registers().rip == rip {
            true => Then::Pass(site.virt),
            // An action has sent the vCPU elsewhere.
            false => Then::Resume,
        };
        if self.hold(vcpu, asked, then) {
            return Action::Hold;
        }
        match then {
            Then::Pass(_) => self.follow(site, memory, vcpu),
            Then::Resume => Action::Resume,
        }
    }

    /// Gets past the site's instruction, with what return probes there have to do before and after.
    pub(crate) fn follow(
        &self,
        site: &Arc<Site>,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Action {
        if !site.follows {
            return self.pass(site, memory, vcpu);
        }
        let before = Registers {
            rip: site.virt.0,
            ..*vcpu.registers()
        };
        // `entering` reads the return address, which `enter` replaces for the other kind of return probe.
        let entering = self.entering(site, memory, vcpu);
        self.enter(site, memory, vcpu);
        let action = self.pass(site, memory, vcpu);
        if let Action::PageFault { .. } = action {
            self.enter_again(site, memory, vcpu, before.rsp);
            return action;
        }
        if let Some(entering) = entering {
            self.entered(entering, &before, memory, vcpu);
        }
        let mut asked = AskedHits::new();
        self.left(site, &before, &mut asked, memory, vcpu);
        // Where the processor has yet to execute the instruction, no attendant can be asked in between.
        match action {
            Action::Resume if self.hold(vcpu, asked, Then::Resume) => Action::Hold,
            action => action,
        }
    }

    fn on_milestone(
        &self,
        milestone: Milestone,
        site: &Arc<Site>,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Action {
        if milestone == Milestone::ModuleFreed && self.frees_jumps(memory, vcpu) {
            return self.stop_others(memory, vcpu);
        }
        self.reach(milestone, memory, vcpu);
        // The breakpoint may be gone now; its hit counts all the same.
        if site.enabled().next().is_some() {
            return self.hit(site, memory, vcpu);
        }
        match self.table().site(site.virt) {
            Some(site) if site.armed => self.pass(site, memory, vcpu),
            _ => Action::Resume,
        }
    }

    /// Answers an int3 in the arena: a followed call has returned, a ring is full, or the copy of
    /// an instruction is done.
    fn on_breakpoint_in_arena(
        &self,
        rip: GuestVirtAddr,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Action {
        if self.returns.trampoline() == Some(rip) {
            end_resume(vcpu);
            return self.returned(memory, vcpu);
        }
        if let Some(action) = self.ring_is_full(rip, memory, vcpu) {
            return action;
        }
        let Some(site) = self.copied_before(rip) else {
            // If the site was removed meanwhile, the byte is a `nop` by now. Otherwise the guest jumped there itself.
            return match self.arena.copy_around(rip) {
                Some((_, phys)) if is_gone(memory, phys) => Action::Resume,
                _ => Action::Reinject,
            };
        };
        vcpu.registers_mut().rip = site.next().0;
        self.done(&site, memory, vcpu);
        Action::Resume
    }

    /// The site whose instruction has a copy that ends at `rip`.
    pub(crate) fn copied_before(&self, rip: GuestVirtAddr) -> Option<Arc<Site>> {
        if !CodeArena::covers(rip) {
            return None;
        }
        let (probed, _) = self.arena.copy_around(rip)?;
        let ends_here = |site: &&Arc<Site>| site.copy().is_some_and(|copy| copy.end == rip);
        self.table().site(probed).filter(ends_here).cloned()
    }

    /// Reports that the site's instruction has been executed, where a probe wants that; RIP is where it led.
    pub(crate) fn done(&self, site: &Site, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        if site.wants_post() {
            for probe in site.enabled().filter(|probe| probe.wants_post()) {
                probe.exit();
            }
            let registers = *vcpu.registers();
            self.report(site, (memory, vcpu), &registers, &Detail::Post);
        }
    }

    /// Sends a post or fault event of each of the site's probes that wants it.
    pub(crate) fn report(
        &self,
        site: &Site,
        (memory, vcpu): (&dyn GuestMemory, &mut dyn Vcpu),
        registers: &Registers,
        detail: &Detail,
    ) {
        let mut tsc = None;
        // The instruction may have begun before a probe was disabled.
        let table = self.table();
        for probe in site.enabled().filter(|it| table.switches.is_enabled(it.id)) {
            let wanted = match detail {
                Detail::Post => probe.wants_post(),
                Detail::Fault { .. } => probe.wants_fault(),
                Detail::Pre | Detail::Return { .. } | Detail::Access => false,
            };
            if wanted {
                self.tell(probe, (memory, vcpu), &mut tsc, registers, detail.clone());
            }
        }
    }

    /// Answers an int3 in a jump's displacement: an instruction began there, and the vCPU executes its copy in the
    /// detour.
    fn tripped(&self, site: &Site, copy: GuestVirtAddr, vcpu: &mut dyn Vcpu) -> Action {
        site.enabled().for_each(|probe| probe.trip());
        if let Some(jump) = site.jump()
            && jump.trip()
        {
            self.outstanding.add();
        }
        vcpu.registers_mut().rip = copy.0;
        Action::Resume
    }

    /// Gets past the site's instruction, or says how to.
    pub(crate) fn pass(
        &self,
        site: &Arc<Site>,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Action {
        if site.milestone == Some(Milestone::ShowsText) && self.shows_text(memory, vcpu) {
            vcpu.registers_mut().rip = site.next().0;
            self.emulated(site, memory, vcpu);
            return Action::Resume;
        }
        let fault = match &*site.way {
            // The debug registers don't notice accesses of the engine.
            Way::Emulate { touched, .. } if self.is_watched(touched, memory, vcpu) => {
                return self.step(site, memory, vcpu, StepIn::Place);
            }
            Way::Emulate { compiled, .. } => match emulate::run(compiled, memory, vcpu) {
                Outcome::Done => {
                    self.emulated(site, memory, vcpu);
                    return Action::Resume;
                }
                Outcome::Halted => {
                    self.emulated(site, memory, vcpu);
                    return Action::Halt;
                }
                Outcome::Step => {
                    return self.step(site, memory, vcpu, StepIn::Place);
                }
                Outcome::Fault {
                    address,
                    error_code,
                } => (address, error_code),
            },
            Way::Boost {
                copy, foresight, ..
            } => match foresight.look(memory, vcpu) {
                Foreseen::Nothing if vcpu.registers().rip == site.virt.0 => {
                    vcpu.registers_mut().rip = copy.slot.address.0;
                    return Action::Resume;
                }
                Foreseen::Nothing | Foreseen::Unknown => {
                    return self.step(site, memory, vcpu, StepIn::Place);
                }
                Foreseen::PageFault {
                    address,
                    error_code,
                } => (address, error_code),
            },
            Way::Step {
                foresight, copy, ..
            } => match foresight.look(memory, vcpu) {
                Foreseen::PageFault {
                    address,
                    error_code,
                } => (address, error_code),
                Foreseen::Nothing | Foreseen::Unknown => {
                    // Identity-mapped early code doesn't see the arena, and an exception in
                    // the copy must not go unnoticed.
                    let noticed = self.table().watched.is_empty();
                    let place = match copy {
                        Some(copy) if noticed && vcpu.registers().rip == site.virt.0 => {
                            StepIn::Copy(copy.clone())
                        }
                        _ => StepIn::Place,
                    };
                    return self.step(site, memory, vcpu, place);
                }
            },
        };
        let (address, error_code) = fault;
        let registers = Registers {
            rip: site.virt.0,
            ..*vcpu.registers()
        };
        self.report(
            site,
            (memory, vcpu),
            &registers,
            &Detail::Fault {
                vector: vector::PAGE_FAULT,
                error_code: Some(error_code),
                address: Some(address),
            },
        );
        Action::PageFault {
            address,
            error_code,
        }
    }

    /// Returns true if the instruction at RIP may access watched data.
    fn is_watched(&self, touched: &Touched, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> bool {
        let table = self.table();
        if table.watched.is_empty() || table.switches.disarmed || touched.is_empty() {
            return false;
        }
        let registers = *vcpu.registers();
        let view = vcpu
            .control()
            .ok()
            .map(|control| SupervisorMemory::new(memory, control));
        let Some(Ok(view)) = view else {
            return true;
        };
        table.watched.iter().any(|(point, _)| {
            let start = point.address.0;
            touched.overlaps(&view, &registers, start..start + u64::from(point.len))
        })
    }

    /// As [`Self::done`], without an exit of its own.
    fn emulated(&self, site: &Site, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        if site.wants_post() {
            let registers = *vcpu.registers();
            self.report(site, (memory, vcpu), &registers, &Detail::Post);
        }
    }
}
