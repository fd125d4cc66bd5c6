//! Events as ftrace's lines, with registers where a probe has no arguments.

use std::io::{self, Write};

use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{Ftrace, Guest, Header, Writer};

use crate::render::RegisterText;

/// Writes events as the kernel's `trace_pipe` has them. Behind the place of an event whose probe has no
/// arguments stand registers. Lines are written when the writer is flushed or finished.
pub struct TraceLines<W> {
    ftrace: Ftrace<Vec<u8>>,
    registers: RegisterText,
    out: W,
}

impl<W: Write> TraceLines<W> {
    /// Makes a writer to `out`.
    ///
    /// # Errors
    /// There is no temporary file for [`Header::Full`].
    pub fn new(out: W, guest: &Guest, header: Header) -> io::Result<Self> {
        Ok(Self {
            ftrace: Ftrace::new(Vec::new(), guest, header)?,
            registers: RegisterText::new(guest.tsc_hz),
            out,
        })
    }

    fn move_on(&mut self) -> io::Result<()> {
        let lines = self.ftrace.get_mut();
        self.out.write_all(lines)?;
        lines.clear();
        Ok(())
    }
}

impl<W: Write> Writer for TraceLines<W> {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.registers.learn(probes);
        self.ftrace.begin(probes)
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.move_on()?;
        self.ftrace.event(event)?;
        let Some(text) = self.registers.of(event) else {
            return Ok(());
        };
        let lines = self.ftrace.get_mut();
        // The stack's lines follow the event's own, and a header comes before it.
        let is_header = |line: &&[u8]| line.starts_with(b"#");
        let header = lines.split_inclusive(|byte| *byte == b'\n');
        let start: usize = header.take_while(is_header).map(<[u8]>::len).sum();
        let own = lines.iter().skip(start).position(|byte| *byte == b'\n');
        let end = own.map_or(lines.len(), |own| start + own);
        lines.splice(end..end, format!(" {text}").into_bytes());
        Ok(())
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        self.ftrace.lost(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.move_on()?;
        self.out.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.ftrace.finish()?;
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vmprobe_client::v1::value::Value as Kind;
    use vmprobe_client::v1::{Argument, Value};
    use vmprobe_trace_formats::Place;

    use super::*;
    use crate::render::samples;

    fn lines(header: Header, probe: Probe, events: &[Event]) -> String {
        let guest = Guest {
            tsc_hz: 1_000_000_000,
            cpus: 1,
            symbols: Arc::new(|address: u64| Some(Place::new("f", address & 0xf))),
        };
        let mut out = Vec::new();
        let mut writer = TraceLines::new(&mut out, &guest, header).unwrap();
        writer.begin(&[probe]).unwrap();
        for event in events {
            writer.event(event).unwrap();
        }
        writer.finish().unwrap();
        drop(writer);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_event_without_arguments_shows_registers_before_its_stack() {
        let mut event = samples::event(1_500_000);
        event.stack = vec![0x1001];
        let expected =
            "           <...>-0       [001] X....     0.001500: vfs_read+0x5: (vfs_read+0x5) \
             rdi=0xffff888001234567 rsi=0x7ffc0000 rdx=0x1
           <...>-0       [001] X....     0.001500: <stack trace>
 => f
";
        assert_eq!(
            lines(Header::None, samples::probe(), std::slice::from_ref(&event)),
            expected
        );
        let with_header = lines(Header::Columns, samples::probe(), &[event]);
        assert!(with_header.ends_with(expected), "{with_header}");
        assert!(with_header.starts_with("# tracer: nop\n"), "{with_header}");
    }

    #[test]
    fn an_event_with_arguments_is_ftraces_own_line() {
        let mut probe = samples::probe();
        probe.name = "read".into();
        probe.arguments = vec![Argument {
            name: "count".into(),
            ..Default::default()
        }];
        let mut event = samples::event(1_500_000);
        event.values = vec![Value {
            value: Some(Kind::Unsigned(7)),
        }];
        assert_eq!(
            lines(Header::None, probe, &[event.clone(), event]),
            "           <...>-0       [001] X....     0.001500: read: (vfs_read+0x5) count=7\n"
                .repeat(2)
        );
    }
}
