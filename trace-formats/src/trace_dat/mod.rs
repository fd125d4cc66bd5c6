//! trace-cmd's files, version 6: `trace-cmd.dat.v6(5)`.

mod layout;
mod page;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, Write};

use vmprobe_proto::v1::{Context, Event, Probe};

use self::layout::{Addresses, COMMON, Form, Layout};
use self::page::{DATA_MAX, HEADER, PAGE, Page};
use crate::clock::Clock;
use crate::kinds::{note, returned};
use crate::names::Names;
use crate::spool::Spool;
use crate::text::{identifier, printable};
use crate::writer::{Guest, Writer};

/// vCPUs that events can be of. The kernel itself has no more CPUs on x86 (`NR_CPUS` in `arch/x86/Kconfig`).
const CPUS_MAX: u32 = 8192;
/// Tasks whose names are kept.
const TASKS_MAX: usize = 1 << 16;
/// Addresses whose symbols are kept.
const ADDRESSES_MAX: usize = 1 << 16;
/// Bytes of a symbol's name (`KSYM_NAME_LEN` in `include/linux/kallsyms.h`).
const SYMBOL_MAX: usize = 512;
/// The number of the kernel's stack records (`TRACE_STACK` in `kernel/trace/trace.h`).
const STACK_ID: u16 = 4;
/// The first number of vmprobe's events; those of the kernel's own events are below.
const FIRST_ID: u16 = 2000;

/// `events/header_page` (`ring_buffer_print_page_header` in `kernel/trace/ring_buffer.c`).
const HEADER_PAGE: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;
";

/// `events/header_event` (`ring_buffer_print_entry_header` there).
const HEADER_EVENT: &str = "\
# compressed entry header
\ttype_len    :    5 bits
\ttime_delta  :   27 bits
\tarray       :   32 bits

\tpadding     : type == 29
\ttime_extend : type == 30
\ttime_stamp : type == 31
\tdata max type_len  == 28
";

/// `TRACE_FLAG_*` in `include/linux/trace_events.h`.
mod flag {
    pub(super) const IRQS_OFF: u8 = 1;
    pub(super) const IRQS_NOSUPPORT: u8 = 2;
    pub(super) const NEED_RESCHED: u8 = 4;
    pub(super) const HARDIRQ: u8 = 8;
    pub(super) const SOFTIRQ: u8 = 0x10;
    pub(super) const PREEMPT_RESCHED: u8 = 0x20;
    pub(super) const NMI: u8 = 0x40;
}

/// Writes `trace.dat`, which `trace-cmd report` and KernelShark open.
///
/// Each probe is an event with a `format` like that of a kprobe event, but its places are printed as symbols.
/// Characters of its name that ftrace doesn't allow become `_`. Values that don't fit their types, such as a
/// `(fault)` for a number, are in records of a second event of the same name, in which all values are texts. A
/// record fits a page; longer texts are cut. What the kernel has no event for has a note, see
/// [`Ftrace`](crate::Ftrace). A stack is a record of the kernel's own event `kernel_stack`.
///
/// The file has the symbols of the places in it, at most of 65536 addresses, and the names of at most 65536 tasks.
/// Records wait in a temporary file until the end. The number of lost events is at the CPU of the next event, as the
/// protocol tells no CPU for it. Without any known clock, ticks stand for nanoseconds.
pub struct TraceDat<W> {
    out: W,
    names: Names,
    clock: Clock,
    pages: Spool,
    cpus: Vec<Cpu>,
    layouts: HashMap<Key, Layout>,
    /// The `format` files by group.
    formats: BTreeMap<String, Vec<String>>,
    next_id: Option<u16>,
    tasks: HashMap<u32, String>,
    addresses: HashSet<u64>,
    /// Names by the addresses where they begin.
    symbols: BTreeMap<u64, String>,
    /// Pages in the temporary file.
    stored: u64,
    lost: u64,
}

/// What a layout is for: each combination has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    probe: u64,
    form: Form,
    is_return: bool,
    noted: bool,
}

/// A CPU's records.
#[derive(Debug, Default)]
struct Cpu {
    /// The numbers of its pages in the temporary file.
    pages: Vec<u64>,
    page: Option<Page>,
}

impl<W: Write> TraceDat<W> {
    /// Makes a writer to `out`. Everything is written at the end.
    ///
    /// # Errors
    /// There is no temporary file for the records.
    pub fn new(out: W, guest: &Guest) -> io::Result<Self> {
        let mut cpus = Vec::new();
        cpus.resize_with(guest.cpus.clamp(1, CPUS_MAX) as usize, Cpu::default);
        Ok(Self {
            out,
            names: Names::new(guest),
            clock: Clock::new(guest.tsc_hz),
            pages: Spool::new()?,
            cpus,
            layouts: HashMap::new(),
            formats: BTreeMap::new(),
            next_id: Some(FIRST_ID),
            tasks: HashMap::new(),
            addresses: HashSet::new(),
            symbols: BTreeMap::new(),
            stored: 0,
            lost: 0,
        })
    }

    /// Returns the layout of an event's record. Makes the layout, and its `format`, for the first event of a kind.
    fn layout(&mut self, event: &Event, key: Key) -> io::Result<&Layout> {
        if !self.layouts.contains_key(&key) {
            let full = || {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    "trace.dat has no numbers for more events",
                )
            };
            let id = self.next_id.ok_or_else(full)?;
            self.next_id = id.checked_add(1);
            let probe = self.names.probe(event);
            let arguments = probe.map_or(&[][..], |probe| &probe.arguments);
            let layout = Layout::new(id, key.form, arguments);
            let (group, name) = self.names.event_name(event);
            let format = layout.format(&identifier(&name), key.is_return, key.noted);
            self.formats
                .entry(identifier(&group))
                .or_default()
                .push(format);
            self.layouts.insert(key, layout);
        }
        self.layouts
            .get(&key)
            .ok_or_else(|| io::Error::other("no layout"))
    }

    fn learn_address(&mut self, address: u64) {
        if address == 0 || self.addresses.len() >= ADDRESSES_MAX || !self.addresses.insert(address)
        {
            return;
        }
        // A reader names an address by the last symbol before it, so an address without a name needs an entry too.
        // Otherwise it would have a wrong name.
        let (start, mut name, module) = match self.names.symbol(address) {
            Some(symbol) => (
                address.wrapping_sub(symbol.offset),
                symbol.name,
                symbol.module,
            ),
            None => (address, format!("{address:#x}"), String::new()),
        };
        name = word(&name);
        if !module.is_empty() {
            // Writing to a string succeeds.
            let _ = write!(name, "\t[{}]", word(&module));
        }
        self.symbols.entry(start).or_insert(name);
    }

    fn store(&mut self, cpu: u32, time: u64, data: &[u8]) -> io::Result<()> {
        let lost = std::mem::take(&mut self.lost);
        let at = cpu as usize;
        if self.cpus.len() <= at {
            self.cpus.resize_with(at + 1, Cpu::default);
        }
        let Some(cpu) = self.cpus.get_mut(at) else {
            return Ok(());
        };
        if lost == 0
            && let Some(page) = &mut cpu.page
            && page.push(time, data)
        {
            return Ok(());
        }
        if let Some(full) = cpu.page.take() {
            cpu.pages.push(self.stored);
            self.stored += 1;
            self.pages.append(&full.bytes())?;
        }
        let mut page = Page::new(lost);
        if !page.push(time, data) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a record is longer than a page",
            ));
        }
        cpu.page = Some(page);
        Ok(())
    }

    /// Makes everything before the pages.
    fn header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        // Magic, version, byte order, bytes of a long, size of a page.
        header.extend_from_slice(b"\x17\x08\x44tracing6\0\0\x08");
        push_u32(&mut header, PAGE);
        for (name, text) in [("header_page", HEADER_PAGE), ("header_event", HEADER_EVENT)] {
            header.extend_from_slice(name.as_bytes());
            header.push(0);
            push_file(&mut header, text);
        }
        // The events of ftrace itself: stacks (`kernel/trace/trace_entries.h` has `kernel_stack`).
        push_u32(&mut header, 1);
        push_file(
            &mut header,
            &format!(
                "name: kernel_stack\nID: {STACK_ID}\nformat:\n{COMMON}\n\
                 \tfield:int size;\toffset:8;\tsize:4;\tsigned:1;\n\
                 \tfield:unsigned long caller[8];\toffset:16;\tsize:64;\tsigned:0;\n\n\
                 print fmt: \"\\t=> %ps\\n\\t=> %ps\\n\", (void *)REC->caller[0], (void *)REC->caller[1]\n"
            ),
        );
        push_u32(&mut header, self.formats.len());
        for (group, formats) in &self.formats {
            header.extend_from_slice(group.as_bytes());
            header.push(0);
            push_u32(&mut header, formats.len());
            for format in formats {
                push_file(&mut header, format);
            }
        }
        let symbols = self.symbols.iter();
        let mut symbols: String = symbols
            .map(|(start, name)| format!("{start:016x} t {name}\n"))
            .collect();
        // A reader takes a symbol to end where the next one begins, and finds nothing in the last.
        if !symbols.is_empty() {
            symbols.push_str("ffffffffffffffff t end_of_symbols\n");
        }
        push_u32(&mut header, symbols.len());
        header.extend_from_slice(symbols.as_bytes());
        // No formats of `trace_printk`.
        push_u32(&mut header, 0);
        let mut tasks: Vec<_> = self.tasks.iter().collect();
        tasks.sort_unstable();
        let tasks: String = tasks
            .iter()
            .map(|(pid, comm)| format!("{pid} {comm}\n"))
            .collect();
        push_file(&mut header, &tasks);
        push_u32(&mut header, self.cpus.len());
        header.extend_from_slice(b"flyrecord\0");
        header
    }
}

impl<W: Write> Writer for TraceDat<W> {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.names.learn(probes);
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        if event.vcpu >= CPUS_MAX {
            let reason = format!("an event of vCPU {}, of at most {CPUS_MAX}", event.vcpu);
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let time = self.clock.time(event).number();
        let returned = returned(event);
        let address = self.names.event_address(event);
        let place = match returned {
            Some(returned) => Addresses::Return {
                function: address,
                caller: returned.caller,
            },
            None => Addresses::Hit(address),
        };
        self.learn_address(address);
        self.learn_address(returned.map_or(0, |returned| returned.caller));
        for address in &event.stack {
            self.learn_address(*address);
        }
        if let Some(context) = &event.context
            && context.pid != 0
            && !context.comm.is_empty()
            && (self.tasks.len() < TASKS_MAX || self.tasks.contains_key(&context.pid))
        {
            self.tasks.insert(context.pid, printable(&context.comm));
        }
        let note = note(event);
        let arguments = self
            .names
            .probe(event)
            .map_or(&[][..], |probe| &probe.arguments);
        let key = Key {
            probe: event.probe_id,
            form: Form::of(arguments, &event.values),
            is_return: returned.is_some(),
            noted: note.is_some(),
        };
        let layout = self.layout(event, key)?;
        let common = common(layout.id, event.context.as_ref());
        let record = layout.record(common, place, &event.values, note.as_deref());
        self.store(event.vcpu, time, &record)?;
        if !event.stack.is_empty() {
            let record = stack(event);
            self.store(event.vcpu, time, &record)?;
        }
        Ok(())
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        self.lost = self.lost.saturating_add(count);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        for cpu in &mut self.cpus {
            if let Some(page) = cpu.page.take() {
                cpu.pages.push(self.stored);
                self.stored += 1;
                self.pages.append(&page.bytes())?;
            }
        }
        let mut header = self.header();
        let data = (header.len() + 16 * self.cpus.len()).next_multiple_of(PAGE);
        let mut offset = data as u64;
        for cpu in &self.cpus {
            let size = cpu.pages.len() as u64 * PAGE as u64;
            header.extend_from_slice(&offset.to_le_bytes());
            header.extend_from_slice(&size.to_le_bytes());
            offset += size;
        }
        header.resize(data, 0);
        self.out.write_all(&header)?;
        let mut page = [0; PAGE];
        for at in self.cpus.iter().flat_map(|cpu| &cpu.pages) {
            self.pages.read_at(at * PAGE as u64, &mut page)?;
            self.out.write_all(&page)?;
        }
        self.out.flush()
    }
}

/// Makes a name for `/proc/kallsyms`, where blanks end a name.
fn word(name: &str) -> String {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    let name = name.chars().map(|c| if odd(c) { '_' } else { c });
    name.take(SYMBOL_MAX).collect()
}

/// Makes the fields that every record begins with.
fn common(id: u16, context: Option<&Context>) -> [u8; 8] {
    let (mut flags, mut depths, mut pid) = (flag::IRQS_NOSUPPORT, 0, 0);
    if let Some(context) = context {
        let bits = [
            (context.interrupts_off, flag::IRQS_OFF),
            (
                context.need_resched,
                flag::NEED_RESCHED | flag::PREEMPT_RESCHED,
            ),
            (context.in_interrupt, flag::HARDIRQ),
            (context.in_soft_interrupt, flag::SOFTIRQ),
            (context.in_nmi, flag::NMI),
        ];
        let set = bits.into_iter().filter(|(is, _)| *is);
        flags = set.fold(0, |flags, (_, flag)| flags | flag);
        let [preempt, migrate] = [context.preempt_disabled, context.migrate_disabled]
            .map(|depth| u8::try_from(depth.min(15)).unwrap_or(15));
        depths = migrate << 4 | preempt;
        pid = context.pid;
    }
    let [id_low, id_high] = id.to_le_bytes();
    let [a, b, c, d] = pid.to_le_bytes();
    [id_low, id_high, flags, depths, a, b, c, d]
}

/// Makes a stack's record: `struct stack_entry`, whose `size` is the number of addresses. Frames that don't fit a page
/// are left out.
fn stack(event: &Event) -> Vec<u8> {
    let mut record = common(STACK_ID, event.context.as_ref()).to_vec();
    let frames = event.stack.len().min((DATA_MAX - HEADER) / 8 - 1);
    push_u32(&mut record, frames);
    push_u32(&mut record, 0);
    for address in event.stack.iter().take(frames) {
        record.extend_from_slice(&address.to_le_bytes());
    }
    record
}

/// Appends a number of 32 bits. All numbers here have bounds far below that.
fn push_u32(out: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a length of 64 bits and a text.
fn push_file(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests;
