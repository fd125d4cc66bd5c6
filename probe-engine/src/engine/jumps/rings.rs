//! Reading what detours leave behind.

use guest_kernel::ImageMap;
use guest_kernel::unwind::CapturedStack;
use guest_state::{Action, GuestMemory, GuestVirtAddr, MemoryError, Registers, StoppedGuest, Vcpu};

use crate::arena::{Arena, RAM_WINDOW, RINGS, RecordingCode, TRAMPOLINE};
use crate::detour::{Environment, Pointers, Root};
use crate::engine::Engine;
use crate::engine::code::room::rips;
use crate::engine::hits::stack::AsOf;
use crate::engine::jumps::credit::Credit;
use crate::engine::jumps::known_detour::KnownDetour;
use crate::engine::jumps::reader::ReaderState;
use crate::percpu::PerCpu;
use crate::probe::NoJump;
use crate::ring::{self, layout};
use crate::value::stack_pieces;

/// Where the kernel has its direct mapping unless it says otherwise (`__PAGE_OFFSET_BASE_L4` in
/// `arch/x86/include/asm/page_64_types.h`).
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

/// Drains in a row that find nothing, with no jump left, after which breakpoints' events need not wait for records any
/// more.
const QUIET: u32 = 16;

/// The result of reading the rings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Records.
    pub records: u64,
    /// How often something unreadable was skipped: the guest has damaged its rings.
    pub damaged: u64,
    /// Events that are held back until it is known that no earlier one can come.
    pub held: usize,
}

impl Engine {
    /// Returns what detours have to know of the guest. The first call lays the rings out.
    pub(crate) fn environment(&self, memory: &dyn GuestMemory) -> Result<Environment, NoJump> {
        self.reader.environment(|| self.lay_out_rings(memory))
    }

    /// Returns how detours follow pointers in this guest. The kernel has decided where its direct mapping is before
    /// its CPUs had variables of their own.
    fn pointers(&self, memory: &dyn GuestMemory, image: &ImageMap) -> Option<Pointers> {
        let read = |name| {
            let symbol = self.kernel.symbols.get(name)?;
            let (phys, _) = image.to_phys(symbol.address)?;
            memory.read_u64(phys).ok()
        };
        // `unsigned int`; a kernel without it has 4 levels only (arch/x86/include/asm/pgtable_64_types.h).
        let has_5_levels = read("__pgtable_l5_enabled").is_some_and(|word| word as u32 != 0);
        let ram = self.arena.with(|arena| arena.mapped_ram())??;
        Some(Pointers {
            window: RAM_WINDOW.0,
            ram: [ram.low, ram.high],
            direct_map: read("page_offset_base").unwrap_or(DIRECT_MAP),
            levels: if has_5_levels { 5 } else { 4 },
            root: Root::Cr3,
        })
    }

    fn lay_out_rings(&self, memory: &dyn GuestMemory) -> Result<ReaderState, NoJump> {
        let not = |reason: String| NoJump::NoRings { reason };
        let table = self.table();
        let image = &table.image;
        let kernel = &self.kernel;
        let (symbols, variables) = (&kernel.symbols, &kernel.variables);
        let percpu = PerCpu::find(memory, image, symbols, variables, self.vcpus);
        let percpu = percpu.map_err(|error| not(error.to_string()))?;
        let percpu = percpu.with_pointers(self.pointers(memory, image));
        let to_phys = |at| self.arena.phys(at).ok_or_else(|| not(self.arena.note()));
        let mut places = Vec::new();
        for (number, block) in (0..).zip(percpu.blocks()) {
            let ring = RINGS.wrapping_add(number * 2 * layout::RING_LEN);
            places.push(ring::VcpuMemory {
                block: to_phys(*block)?,
                ring: to_phys(ring)?,
            });
        }
        let cells = percpu.cells();
        let mut rings = ring::Rings::new(places, cells);
        rings.init(memory).map_err(|error| not(error.to_string()))?;
        let environment = percpu.environment();
        let first_cpu = percpu.first_cpu();
        let follower = self.make_follower(memory, &environment);
        Ok(ReaderState {
            first_cpu,
            rings,
            environment,
            cells,
            credit: Credit::default(),
            follower,
            damaged: 0,
            quiet: 0,
        })
    }

    /// Reads all that the guest has put into its rings before the probes change, so that it is reported to those that
    /// it belongs to. To be called at a stop, before the next table is published.
    pub(crate) fn settle(&self, memory: &dyn GuestMemory) {
        self.reader
            .with(|state| self.drain_locked(state, memory, true));
    }

    /// Reads what the guest has put into its rings and reports it. To be called often while there are jumps. The
    /// youngest events are held back until the next call, as an earlier one may still come from another vCPU.
    pub fn drain(&self, memory: &dyn GuestMemory) -> Drained {
        let drain = |state: &mut ReaderState| self.drain_locked(state, memory, false).0;
        self.reader.with(drain).unwrap_or_default()
    }

    /// As [`Self::drain`], and holds nothing back: what comes later is reported later. For when the
    /// guest stands still: whole records behind unfinished ones are read too.
    pub fn drain_all(&self, memory: &dyn GuestMemory) -> Drained {
        let drain = |state: &mut ReaderState| self.drain_locked(state, memory, true).0;
        let drained = self.reader.with(drain).unwrap_or_default();
        self.merger.flush();
        Drained { held: 0, ..drained }
    }

    /// Returns how often something unreadable was skipped in the rings so far: the guest has
    /// damaged them.
    pub fn ring_damage(&self) -> u64 {
        self.reader.damage()
    }

    /// As [`Self::drain_all`] for a guest that has ended: a record that isn't whole will never be finished, so it
    /// counts as missed, and no call under way returns any more.
    pub fn drain_ended(&self, memory: &dyn GuestMemory) -> Drained {
        self.end_all_calls(memory);
        let drained = self.drain_all(memory);
        self.reader.with(|state| {
            let lost = state.rings.give_up(memory, |_| true);
            state.credit.lose(&lost);
        });
        drained
    }

    /// Returns true if an unfinished record has held a ring up for so long that the caller should stop the guest and
    /// call [`Self::recover_rings`].
    pub fn is_held_up(&self) -> bool {
        self.reader.may_have_dead()
    }

    /// Gives up those unfinished records whose writers don't exist any more: a task that died in the middle. They
    /// count as missed. Reads all of the guest's memory to be sure. Returns how many there were.
    ///
    /// # Errors
    /// Part of the memory can't be read. Nothing is given up then.
    pub fn recover_rings(&self, guest: &dyn StoppedGuest) -> Result<usize, MemoryError> {
        let memory = guest.memory();
        self.settle(memory);
        let Some(rips) = rips(guest) else {
            return Ok(0);
        };
        let recover = |state: &mut ReaderState| {
            let looked = |arena: &mut Arena| arena.inside(memory, &guest.ram(), &rips);
            let Some(inside) = self.arena.with(looked) else {
                return Ok(0);
            };
            let inside = inside?;
            let lost = state.rings.give_up(memory, |header| match header {
                None => inside.is_empty(),
                Some(header) if header.returns => !inside.contains(&RecordingCode::Trampoline),
                Some(header) => !inside.contains(&RecordingCode::Detour(header.detour)),
            });
            state.credit.lose(&lost);
            self.drain_locked(state, memory, true);
            Ok(lost.iter().filter(|it| it.header.is_some()).count())
        };
        self.reader.with(recover).unwrap_or(Ok(0))
    }

    /// Reads the rings and reports what is in them. `ahead`: no vCPU runs. Also returns which rings
    /// are blocked.
    fn drain_locked(
        &self,
        state: &mut ReaderState,
        memory: &dyn GuestMemory,
        ahead: bool,
    ) -> (Drained, ring::RingsRead) {
        let table = self.table();
        let ReaderState {
            rings,
            credit,
            follower,
            damaged,
            quiet,
            first_cpu,
            ..
        } = state;
        let shape = |header| credit.shape(header);
        let of_cpu = self.last_tables.get().map(|tables| (*first_cpu, tables));
        let time = |tsc| of_cpu.map_or(0, |of_cpu| self.time(memory, of_cpu, tsc));
        let stack = |record: &ring::Record<'_>, registers: &Registers, bytes: &[u8], most| {
            let pieces = stack_pieces(registers.rsp, bytes).map(|(start, bytes)| CapturedStack {
                start: GuestVirtAddr(start),
                bytes,
            });
            let task = Some(record.task).filter(|task| *task != 0);
            self.stack(
                registers,
                task,
                (memory, AsOf::Time(record.tsc)),
                &mut |at| pieces.iter().find_map(|piece| piece.read(at)),
                most,
            )
        };
        let found = rings.read(memory, ahead, shape, |at, record| {
            credit.record(at, &record, (&table, &self.merger), time, stack);
        });
        credit.forget_eras(rings);
        *damaged = damaged.saturating_add(found.damaged);
        let held = self.merger.drained(found.is_blocked());
        let mut counters = credit.counters().iter().cloned();
        if counters.all(|numbers| rings.count(memory, numbers).is_ok()) {
            credit.count(rings);
        }
        if let Ok(follower) = follower
            && credit.follows()
            && let Ok(now) = follower.calls.tallies(memory, credit.numbers() as usize)
        {
            if credit.is_crowded(&now) {
                // Tasks may have ended inside the functions, which has to be checked.
                self.outstanding.add_crowded_calls();
            }
            credit.count_calls(&table, now);
        }
        let is_quiet = found.records == 0 && !found.is_blocked() && !table.has_jumps();
        *quiet = if is_quiet { *quiet + 1 } else { 0 };
        if *quiet == QUIET {
            self.merger.set_active(false);
        }
        let drained = Drained {
            records: found.records,
            damaged: found.damaged,
            held,
        };
        (drained, found)
    }

    /// Handles the int3 of a lossless detour, which a vCPU comes to when its ring is full. Makes
    /// room, or gives up this record where an earlier one is unfinished because its writer was
    /// interrupted by this one.
    pub(crate) fn ring_is_full(
        &self,
        rip: GuestVirtAddr,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Option<Action> {
        self.reader
            .with(|state| self.make_room_in_ring(state, rip, memory, vcpu))?
    }

    fn make_room_in_ring(
        &self,
        state: &mut ReaderState,
        rip: GuestVirtAddr,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Option<Action> {
        let in_detour = self.arena.detour_at(rip);
        let number = in_detour.unwrap_or(vcpu.registers().rax as u32);
        let known = state.credit.known(number);
        let (code, full) = match (in_detour, &state.follower) {
            (Some(_), _) => known?.waits_at()?,
            (None, Ok(follower)) => (TRAMPOLINE, follower.full),
            (None, Err(_)) => return None,
        };
        if code.wrapping_add(full.trap.into()) != rip {
            return None;
        }
        let probes: Vec<_> = known
            .into_iter()
            .flat_map(KnownDetour::probes)
            .cloned()
            .collect();
        let ring = vcpu.id().0 as usize;
        let before = state.rings.tails().nth(ring);
        let (_, found) = self.drain_locked(state, memory, false);
        // Room in other vCPUs' rings is of no use to this one.
        let is_stuck = before == state.rings.tails().nth(ring);
        let blocked = found.blocked.get(ring).copied().unwrap_or(true) && is_stuck;
        vcpu.registers_mut().rip = if blocked {
            code.wrapping_add(full.gives_up.into()).0
        } else {
            rip.0 + 1
        };
        probes.iter().for_each(|probe| probe.exit());
        Some(Action::Resume)
    }
}
