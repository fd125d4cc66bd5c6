//! Answering traps.

use std::sync::Arc;

use super::table::{INT3, Site, Table, Way};
use super::{Action, Engine, Stepping};
use crate::addr::{GuestPhysAddr, GuestVirtAddr};
use crate::emulate::{self, Outcome, View};
use crate::event::Hit;
use crate::guest::GuestMemory;
use crate::paging::{PageTables, walk};
use crate::vcpu::{Registers, Vcpu};

/// What a trap's address turned out to be.
enum Found {
    Ours(Arc<Site>),
    /// No probe there, and no int3 any more: it was removed since the trap.
    Stale,
    /// The guest's.
    Foreign,
}

impl Engine {
    /// Answers an int3; RIP is at it. Records a hit of each probe there and gets
    /// past the probed instruction if the engine can.
    pub fn on_breakpoint(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
        let table = self.table();
        let site = match find(&table, memory, vcpu) {
            Found::Ours(site) => site,
            Found::Stale => return Action::Resume,
            Found::Foreign => return Action::GiveBack,
        };
        if site.milestone {
            self.release_init_text(memory);
            if site.probes.is_empty() {
                return Action::Resume;
            }
        }
        self.record(&site, vcpu);
        pass(&site, memory, vcpu)
    }

    /// Puts the original instruction back for a lone step; RIP is at it and all
    /// other vCPUs are stopped. `false`: the probe went away meanwhile, so there
    /// is nothing to step; just resume.
    pub fn before_step(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> bool {
        let Found::Ours(site) = find(&self.table(), memory, vcpu) else {
            return false;
        };
        if site.lift(memory).is_err() {
            return false;
        }
        let (id, rip) = (vcpu.id(), vcpu.registers().rip);
        let mut stepping = self.stepping();
        stepping.retain(|step| step.vcpu != id);
        stepping.push(Stepping {
            vcpu: id,
            site: site.virt,
            rip,
        });
        true
    }

    /// Ends a lone step: plants the breakpoint again. To be called after
    /// `before_step` said `true`, wherever RIP is now, before the other vCPUs go
    /// on. [`Action::StepAlone`] when a repeated string instruction has more
    /// rounds to go.
    pub fn after_step(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
        let id = vcpu.id();
        let step = {
            let mut stepping = self.stepping();
            let index = stepping.iter().position(|step| step.vcpu == id);
            index.map(|index| stepping.swap_remove(index))
        };
        let Some(step) = step else {
            return Action::Resume;
        };
        let table = self.table();
        let Some(site) = table.site(step.site) else {
            return Action::Resume;
        };
        // Failing means that the text is no memory any more: nothing can trap there.
        let _planted = site.plant(memory);
        match &site.way {
            Way::Step { repeats: true, .. } if vcpu.registers().rip == step.rip => {
                pass(site, memory, vcpu)
            }
            _ => Action::Resume,
        }
    }

    fn record(&self, site: &Site, vcpu: &dyn Vcpu) {
        let registers = Registers {
            rip: site.virt.0,
            ..*vcpu.registers()
        };
        let (vcpu, tsc) = (vcpu.id(), vcpu.tsc());
        for probe in &site.probes {
            probe.count();
            self.sink.hit(&Hit {
                probe: probe.id,
                vcpu,
                tsc,
                registers,
            });
        }
    }
}

/// Gets past the site's instruction, or says how to.
fn pass(site: &Site, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
    match &site.way {
        Way::Emulate(plan) => match emulate::run(plan, memory, vcpu) {
            Outcome::Done => Action::Resume,
            Outcome::Halted => Action::Halt,
            Outcome::Fault {
                address,
                error_code,
            } => Action::PageFault {
                address,
                error_code,
            },
            Outcome::Step => Action::StepAlone,
        },
        Way::Step { touched, .. } => {
            let fault = (!touched.is_empty())
                .then(|| View::new(memory, vcpu.control().ok()?).ok())
                .flatten()
                .and_then(|view| touched.fault(&view, vcpu.registers()));
            match fault {
                Some((address, error_code)) => Action::PageFault {
                    address,
                    error_code,
                },
                None => Action::StepAlone,
            }
        }
    }
}

/// The site at RIP. Early boot code runs identity-mapped, so an address that is
/// no site is looked for in physical memory as well.
fn find(table: &Table, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Found {
    let rip = GuestVirtAddr(vcpu.registers().rip);
    // User mode can't execute at an address of the image.
    if let Some(site) = table.site(rip) {
        return Found::Ours(Arc::clone(site));
    }
    let in_image = table.image.as_ref().and_then(|image| image.to_phys(rip));
    let phys = match in_image {
        Some((phys, _)) => phys,
        None => match translate(memory, vcpu, rip) {
            Some(phys) => phys,
            None => return Found::Foreign,
        },
    };
    if let Some(site) = table.site_at_phys(phys) {
        return Found::Ours(Arc::clone(site));
    }
    let mut byte = [0];
    match memory.read(phys, &mut byte) {
        Ok(()) if byte != [INT3] => Found::Stale,
        _ => Found::Foreign,
    }
}

/// Where an address of 64-bit supervisor code is; `None` for any other code.
fn translate(
    memory: &dyn GuestMemory,
    vcpu: &mut dyn Vcpu,
    at: GuestVirtAddr,
) -> Option<GuestPhysAddr> {
    let control = vcpu
        .control()
        .ok()
        .filter(|control| control.cpl == 0 && control.code64)?;
    let tables =
        PageTables::from_registers(control.cr0, control.cr3, control.cr4, control.efer).ok()?;
    walk(memory, tables, at).ok().map(|page| page.phys)
}
