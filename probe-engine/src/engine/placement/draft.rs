//! Registrations that are worked out before the guest stops for them.

use guest_kernel::kprobes::GuestKprobes;
use guest_state::GuestMemory;

use crate::engine::Engine;
use crate::engine::placement::body::{Body, KernelBody};
use crate::engine::placement::locate::Located;
use crate::probe::{Place, ProbeKind, ProbeSpec};

/// A batch of probes, with what could be found of them while the guest runs: their instructions, decoded, and
/// how each is executed, with its copy in the arena.
///
/// The guest may change its text meanwhile. So the stop compares the text that was decoded, and finds anew what
/// has changed, and what isn't here: what is in a module, data, and what was refused.
#[derive(Debug)]
pub struct Draft<'s> {
    pub(crate) specs: &'s [ProbeSpec],
    located: Vec<Option<Box<Located>>>,
    /// Whether the kernel had freed its init text.
    init_freed: bool,
}

impl Engine {
    /// Works out what can be worked out of a batch while the guest runs.
    pub fn draft<'s>(&self, memory: &dyn GuestMemory, specs: &'s [ProbeSpec]) -> Draft<'s> {
        let init_freed = self.is_started();
        let table = self.table();
        // The guest may be changing them: the stop looks again.
        let kprobes = GuestKprobes::default();
        let body = KernelBody {
            kernel: &self.kernel,
            table: &table,
            memory,
            kprobes: &kprobes,
            init_freed,
        };
        let locate = |spec: &ProbeSpec| {
            let is_one = self.is_in_kernel(&spec.place)
                && matches!(
                    spec.kind,
                    ProbeKind::Instruction { .. } | ProbeKind::Return { .. }
                );
            let located = is_one.then(|| self.locate(memory, &body, &spec.place, spec.kind));
            Some(Box::new(located?.ok()?))
        };
        let located = match self.has_room(specs.len()) {
            true => specs.iter().map(locate).collect(),
            // Room is made at the stop.
            false => Vec::new(),
        };
        Draft {
            specs,
            located,
            init_freed,
        }
    }

    fn is_in_kernel(&self, place: &Place) -> bool {
        match place {
            Place::Symbol { module, .. } => module.is_none(),
            Place::Address(at) => self.kernel.symbols.is_text(*at),
        }
    }
}

impl Draft<'_> {
    /// Takes what was found for a probe of the batch, if that is still so.
    pub(crate) fn take(&mut self, index: usize, body: &KernelBody<'_>) -> Option<Box<Located>> {
        let located = self.located.get_mut(index)?.take()?;
        let is_current = self.init_freed == body.init_freed && located.is_current(body);
        is_current.then_some(located)
    }
}

impl Located {
    /// Returns true if the text is still the one that was decoded, and none of the guest's kprobes is in the
    /// way.
    fn is_current(&self, body: &KernelBody<'_>) -> bool {
        let (start, read) = &self.text;
        let text = body.text(*start, read.len());
        let same = matches!(text, Some(Ok(text)) if text == *read);
        same && !self.conflicts(body)
    }
}
