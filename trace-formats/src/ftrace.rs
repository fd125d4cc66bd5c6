//! The text of the kernel's `trace` and `trace_pipe` files.

use std::fmt::Write as _;
use std::io::{self, Write};

use vmprobe_proto::v1::{Context, Event, Probe};

use crate::clock::{Clock, Time};
use crate::kinds::note;
use crate::names::Names;
use crate::spool::Spool;
use crate::text::printable;
use crate::values;
use crate::writer::{Guest, Writer};

/// Which header the lines have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// As in `trace`. The header has the number of entries, so everything is written at the end.
    Full,
    /// As in `trace`, without the number of entries. Each line is written at once.
    Columns,
    /// As in `trace_pipe`. Each line is written at once.
    None,
}

/// Writes events as the kernel prints them, Linux 6.12 with the `nop` tracer and default options
/// (`trace_print_context` in `kernel/trace/trace_output.c`):
///
/// ```text
///              cat-1234    [001] d..1.   123.456789: open: (do_sys_openat2+0x0/0x90) dfd=0xffffff9c
///              cat-1234    [001] d..1.   123.456801: done: (ksys_read+0x6a/0xe0 <- vfs_read) ret=0x10
/// ```
///
/// What is different:
/// - Where a symbol's size isn't known, `/0x90` is left out.
/// - Control characters in names and strings, and bytes that aren't UTF-8, are `\xNN`, so that a guest can't
///   make up lines.
/// - Where the context isn't known, the task is `<...>-0` and the flags are `X....`; the kernel's `X` stands
///   for "interrupts off isn't known".
/// - An event that the kernel doesn't have ends in a note: `(post)`, `(access)`, `(tail call)`, `(fault ...)`.
/// - `[LOST 5 EVENTS]` names no CPU.
/// - Without any known clock, times are ticks, in the kernel's form for its `x86-tsc` clock.
pub struct Ftrace<W> {
    out: W,
    waiting: Option<Spool>,
    names: Names,
    clock: Clock,
    cpus: u32,
    entries: u64,
    lost: u64,
    line: String,
    /// What has to be written before the first line.
    first: Option<String>,
}

impl<W: Write> Ftrace<W> {
    /// Makes a writer to `out`.
    ///
    /// # Errors
    /// There is no temporary file for lines that wait for their header.
    pub fn new(out: W, guest: &Guest, header: Header) -> io::Result<Self> {
        Ok(Self {
            out,
            waiting: match header {
                Header::Full => Some(Spool::new()?),
                Header::Columns | Header::None => None,
            },
            first: (header == Header::Columns).then(|| format!("{TRACER}{COLUMNS}")),
            names: Names::new(guest),
            clock: Clock::new(guest.tsc_hz),
            cpus: guest.cpus,
            entries: 0,
            lost: 0,
            line: String::new(),
        })
    }

    /// Returns what the lines go to.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    fn push_event(&mut self, event: &Event) {
        let time = self.clock.time(event);
        let line = &mut self.line;
        push_context(line, event, time);
        // Writing to a string succeeds.
        let (_, name) = self.names.event_name(event);
        let _ = write!(line, "{name}: ({})", self.names.places(event));
        for (at, value) in event.values.iter().enumerate() {
            let argument = self.names.argument(event, at);
            let _ = write!(line, " {}=", values::name(argument, at));
            values::push_value(line, argument, value);
        }
        if let Some(note) = note(event) {
            let _ = write!(line, " {note}");
        }
        line.push('\n');
    }

    /// Appends the stack as an entry of its own behind the event's, as `trace_stack_print` in
    /// `kernel/trace/trace_output.c`.
    fn push_stack(&mut self, event: &Event) {
        let time = self.clock.time(event);
        push_context(&mut self.line, event, time);
        self.line.push_str("<stack trace>\n");
        for address in &event.stack {
            let _ = writeln!(self.line, " => {}", self.names.function(*address));
        }
    }

    fn write_line(&mut self) -> io::Result<()> {
        if let Some(first) = self.first.take() {
            self.out.write_all(first.as_bytes())?;
        }
        match &mut self.waiting {
            Some(waiting) => waiting.append(self.line.as_bytes()),
            None => self.out.write_all(self.line.as_bytes()),
        }
    }
}

impl<W: Write> Writer for Ftrace<W> {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.names.learn(probes);
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.line.clear();
        self.push_event(event);
        self.entries += 1;
        if !event.stack.is_empty() {
            self.push_stack(event);
            self.entries += 1;
        }
        self.write_line()
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        self.lost = self.lost.saturating_add(count);
        self.line = format!("[LOST {count} EVENTS]\n");
        self.write_line()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(mut waiting) = self.waiting.take() {
            let header = header(self.entries, self.lost, self.cpus);
            self.out.write_all(header.as_bytes())?;
            waiting.copy_to(&mut self.out)?;
        }
        self.out.flush()
    }
}

/// Makes the header, as `print_event_info` and `print_func_help_header_irq` in `kernel/trace/trace.c`.
fn header(entries: u64, lost: u64, cpus: u32) -> String {
    let written = entries.saturating_add(lost);
    format!(
        "{TRACER}\
# entries-in-buffer/entries-written: {entries}/{written}   #P:{cpus}
#
{COLUMNS}"
    )
}

/// `print_trace_header` in `kernel/trace/trace.c`.
const TRACER: &str = "# tracer: nop
#
";

/// `print_func_help_header_irq`.
const COLUMNS: &str = "\
#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
";

fn push_context(line: &mut String, event: &Event, time: Time) {
    let context = event.context.as_ref();
    let (task, pid) = match context {
        None => ("<...>".to_owned(), 0),
        // `__trace_find_cmdline` in `kernel/trace/trace_sched_switch.c` has these two names as well.
        Some(context) if context.pid == 0 => ("<idle>".to_owned(), 0),
        Some(context) if context.comm.is_empty() => ("<...>".to_owned(), context.pid),
        Some(context) => (printable(&context.comm), context.pid),
    };
    // Writing to a string succeeds.
    let _ = write!(
        line,
        "{task:>16}-{pid:<7} [{:03}] {} ",
        event.vcpu,
        flags(context)
    );
    let _ = match time {
        Time::Nanoseconds(ns) => {
            let micros = ns / 1000;
            write!(
                line,
                "{:>5}.{:06}: ",
                micros / 1_000_000,
                micros % 1_000_000
            )
        }
        Time::Ticks(ticks) => write!(line, "{ticks:>12}: "),
    };
}

/// Returns the five characters of `trace_print_lat_fmt` in `kernel/trace/trace_output.c`.
fn flags(context: Option<&Context>) -> String {
    let Some(context) = context else {
        return "X....".into();
    };
    let interrupts = match (context.interrupts_off, context.soft_interrupts_off) {
        (true, true) => 'D',
        (true, false) => 'd',
        (false, true) => 'b',
        (false, false) => '.',
    };
    // The letters for lazy rescheduling are those of 6.13 and newer.
    let resched = match (
        context.need_resched,
        context.preempt_need_resched,
        context.need_resched_lazy,
    ) {
        (true, true, true) => 'B',
        (true, true, false) => 'N',
        (true, false, true) => 'L',
        (false, true, true) => 'b',
        (true, false, false) => 'n',
        (false, false, true) => 'l',
        (false, true, false) => 'p',
        (false, false, false) => '.',
    };
    let inside = match (
        context.in_nmi,
        context.in_interrupt,
        context.in_soft_interrupt,
    ) {
        (true, true, _) => 'Z',
        (true, false, _) => 'z',
        (false, true, true) => 'H',
        (false, true, false) => 'h',
        (false, false, true) => 's',
        (false, false, false) => '.',
    };
    let [preempt, migrate] = [context.preempt_disabled, context.migrate_disabled].map(depth);
    format!("{interrupts}{resched}{inside}{preempt}{migrate}")
}

/// Returns the digit of a depth. It has four bits (`tracing_gen_ctx_irq_test` in `kernel/trace/trace.c`), so more than
/// 15 is `f`.
fn depth(depth: u32) -> char {
    match depth.min(15) {
        0 => '.',
        depth => char::from_digit(depth, 16).unwrap_or('f'),
    }
}

#[cfg(test)]
mod tests;
