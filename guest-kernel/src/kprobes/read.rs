//! Reading the guest's table of kprobes.

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr};

use super::{GuestJump, GuestKprobe, GuestKprobes};
use crate::btf::{Btf, TypeError};
use crate::image_map::ImageMap;
use crate::kernel_memory::KernelMemory;
use crate::symbols::Symbols;

/// Lists in the table (`KPROBE_HASH_BITS` is 6).
const LISTS: usize = 64;
/// More kprobes than any guest has. A longer list is taken to be circular.
const MAX_KPROBES: usize = 1 << 14;
/// `KPROBE_FLAG_GONE`: its text has been freed. `KPROBE_FLAG_FTRACE`: it goes by an ftrace site.
const NOT_IN_TEXT: u32 = 1 << 0 | 1 << 3;
/// How many bytes a guest copies for a jump: at most four bytes and an instruction (`MAX_OPTIMIZED_LENGTH`).
const JUMP_LENGTHS: std::ops::RangeInclusive<u64> = 5..=19;
/// Low bits of a mutex's owner that are no part of its address (`MUTEX_FLAGS`).
const MUTEX_FLAGS: u64 = 7;
/// `PF_WQ_WORKER` in a task's flags.
const IS_WORKER: u32 = 1 << 5;

/// Reads the kprobes of one kernel, whose layout it knows.
#[derive(Debug, Clone)]
pub struct KprobeReader {
    table: GuestVirtAddr,
    layout: KprobeLayout,
    /// How to read the kprobes that the guest can make jumps of.
    jumps: Option<Jumps>,
    /// How to find out whether the guest is changing its kprobes.
    changing: Option<Changing>,
}

/// Offsets in `struct kprobe`, in bytes.
#[derive(Debug, Clone, Copy)]
struct KprobeLayout {
    /// Of the node by which a kprobe is in its list.
    node: u64,
    address: u64,
    handler: u64,
    opcode: u64,
    flags: u64,
}

/// Offsets in `struct optimized_kprobe`, of which the kprobe is the first part.
#[derive(Debug, Clone, Copy)]
struct Jumps {
    /// A kprobe with this handler is part of a `struct optimized_kprobe`.
    handler: GuestVirtAddr,
    copied: u64,
    to: u64,
    len: u64,
}

/// A task that registers or removes a kprobe holds `kprobe_mutex` from before it reads the text until the
/// kprobe is in the table and the text. The worker that makes jumps of the kprobes holds it, too.
#[derive(Debug, Clone, Copy)]
struct Changing {
    /// Address of the mutex' owner.
    owner: GuestVirtAddr,
    /// Offset of the flags of a task.
    task_flags: u64,
}

impl KprobeReader {
    /// Finds out how a kernel describes its kprobes; `None` if it has none.
    ///
    /// # Errors
    /// The types differ from all known kernels'.
    pub fn new(btf: &Btf, symbols: &Symbols) -> Result<Option<Self>, TypeError> {
        let address = |name| Some(symbols.by_name(name).next()?.address);
        let Some(table) = address("kprobe_table") else {
            return Ok(None);
        };
        let offset = |of: &str, path: &str| Ok::<_, TypeError>(btf.member(of, path)?.offset);
        let jumps = || {
            let member = |path| offset("optimized_kprobe", path).ok();
            Some(Jumps {
                handler: address("aggr_pre_handler")?,
                copied: member("optinsn.copied_insn")?,
                to: member("optinsn.insn")?,
                len: member("optinsn.size")?,
            })
        };
        let changing = || {
            Some(Changing {
                owner: address("kprobe_mutex")?.wrapping_add(offset("mutex", "owner").ok()?),
                task_flags: offset("task_struct", "flags").ok()?,
            })
        };
        Ok(Some(Self {
            table,
            layout: KprobeLayout {
                node: offset("kprobe", "hlist")?,
                address: offset("kprobe", "addr")?,
                handler: offset("kprobe", "pre_handler")?,
                opcode: offset("kprobe", "opcode")?,
                flags: offset("kprobe", "flags")?,
            },
            jumps: jumps(),
            changing: changing(),
        }))
    }

    /// Reads the guest's kprobes, without those that can't be read. The guest may run meanwhile; then a kprobe that is
    /// added or removed may be missed.
    pub fn read(
        &self,
        memory: &dyn GuestMemory,
        image: &ImageMap,
        tables: Option<PageTables>,
    ) -> GuestKprobes {
        let guest = tables.map(|tables| KernelMemory { memory, tables });
        let in_image = |at| memory.read_u64(image.to_phys(at)?.0).ok();
        let mut probes = Vec::new();
        for list in 0..LISTS as u64 {
            let at = self.table.wrapping_add(list * 8);
            let mut node = in_image(at).unwrap_or(0);
            while node != 0 && probes.len() < MAX_KPROBES {
                let at = GuestVirtAddr(node.wrapping_sub(self.layout.node));
                let Some(probe) = guest.and_then(|guest| self.kprobe(guest, at)) else {
                    break;
                };
                probes.push(probe);
                let next = guest.and_then(|guest| guest.u64(GuestVirtAddr(node)).ok());
                node = next.unwrap_or(0);
            }
        }
        let probes = probes.into_iter().flatten().collect();
        let changing = self.changing.is_some_and(|changing| {
            let owner = in_image(changing.owner).unwrap_or(0);
            changing.by_a_task(guest, owner)
        });
        GuestKprobes::new(probes, changing)
    }

    /// Reads one kprobe: `None` if it can't be read, `Some(None)` if it isn't in the text.
    fn kprobe(&self, guest: KernelMemory<'_>, at: GuestVirtAddr) -> Option<Option<GuestKprobe>> {
        let layout = &self.layout;
        let flags = guest.u32(at.wrapping_add(layout.flags)).ok()?;
        let address = guest.u64(at.wrapping_add(layout.address)).ok()?;
        let [opcode] = guest.array(at.wrapping_add(layout.opcode)).ok()?;
        if flags & NOT_IN_TEXT != 0 {
            return Some(None);
        }
        let handler = guest.u64(at.wrapping_add(layout.handler)).ok()?;
        let jumps = self.jumps.filter(|jumps| jumps.handler.0 == handler);
        Some(Some(GuestKprobe {
            at: GuestVirtAddr(address),
            opcode,
            jump: jumps.and_then(|jumps| jumps.read(guest, at)),
        }))
    }
}

impl Changing {
    /// Returns true if a task other than the worker holds the mutex. `owner` is the mutex' word for its owner.
    fn by_a_task(&self, guest: Option<KernelMemory<'_>>, owner: u64) -> bool {
        let owner = GuestVirtAddr(owner & !MUTEX_FLAGS);
        if owner.0 == 0 {
            return false;
        }
        let flags = owner.wrapping_add(self.task_flags);
        let flags = guest.and_then(|guest| guest.u32(flags).ok());
        // The worker can hold the mutex for seconds, and only changes kprobes that are in the table already.
        flags.is_none_or(|flags| flags & IS_WORKER == 0)
    }
}

impl Jumps {
    fn read(&self, guest: KernelMemory<'_>, at: GuestVirtAddr) -> Option<GuestJump> {
        let len = guest.u64(at.wrapping_add(self.len)).ok()?;
        // Without a length, the guest has prepared no jump.
        JUMP_LENGTHS.contains(&len).then_some(())?;
        Some(GuestJump {
            to: guest.address(at.wrapping_add(self.to)).ok()?,
            len,
            copied: guest.array(at.wrapping_add(self.copied)).ok()?,
        })
    }
}
