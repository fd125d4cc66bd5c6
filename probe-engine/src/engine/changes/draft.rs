//! Registrations that are worked out before the guest stops for them.

use guest_kernel::kprobes::GuestKprobes;
use guest_state::GuestMemory;
use rustc_hash::FxHashSet;

use crate::engine::Engine;
use crate::engine::changes::plan::Generation;
use crate::engine::changes::registration::Registration;
use crate::engine::placement::body::{Body, KernelBody};
use crate::engine::placement::locate::Located;
use crate::engine::placement::walk::{TextId, WalkedText, Walks};
use crate::engine::sites::text_read::TextRead;
use crate::probe::{Place, ProbeId, ProbeKind, ProbeSpec};

/// A batch of probes, with what could be worked out while the guest runs: their instructions, decoded, and how
/// each is executed, with its copy in the arena; and the whole change, if all are instructions of the kernel.
///
/// Meanwhile the guest may change its text, and other clients may change probes. So the stop compares the text that was
/// decoded, and finds anew what has changed, and what isn't in the draft: what is in a module, data, and what was
/// refused.
#[derive(Debug)]
pub struct Draft<'s> {
    pub(crate) specs: &'s [ProbeSpec],
    /// Whether the kernel had freed its init text.
    init_freed: bool,
    located: Vec<Option<Box<Located>>>,
    /// Which of the decoded texts are still the guest's at this stop, once that has been looked at.
    current: Option<FxHashSet<TextId>>,
    planned: Option<(Registration, TextRead)>,
    /// What was committed: the generation before it is freed with this, and not while the guest stands still.
    pub(crate) done: Option<Registration>,
}

impl Engine {
    /// Works out what can be worked out of a batch while the guest runs.
    pub fn draft<'s>(&self, memory: &dyn GuestMemory, specs: &'s [ProbeSpec]) -> Draft<'s> {
        let generation = self.generation();
        // The guest may be changing them: the stop looks again.
        let kprobes = GuestKprobes::default();
        let body = KernelBody {
            kernel: &self.kernel,
            table: &generation.table,
            memory,
            kprobes: &kprobes,
        };
        let mut walks = Walks::default();
        let mut locate = |spec: &ProbeSpec| {
            let is_one = self.is_in_kernel(&spec.place)
                && matches!(
                    spec.kind,
                    ProbeKind::Instruction { .. } | ProbeKind::Return { .. }
                );
            let located = is_one
                .then(|| self.locate_among(&mut walks, memory, &body, &spec.place, spec.kind));
            Some(Box::new(located?.ok()?))
        };
        let located: Vec<_> = match self.arena.has_room(specs.len()) {
            true => specs.iter().map(&mut locate).collect(),
            // Room is made at the stop.
            false => specs.iter().map(|_| None).collect(),
        };
        let registration = self.plan_registration(&generation, specs, &located);
        let planned = registration.and_then(|registration| {
            let decoded = longest_texts(&located);
            let decoded = decoded.iter().map(|it| (it.start, it.bytes()));
            let text = TextRead::of(&generation.table, memory, decoded)?;
            Some((registration, text))
        });
        Draft {
            specs,
            init_freed: generation.table.init_freed,
            located,
            current: None,
            planned,
            done: None,
        }
    }

    /// Returns true if a place in the kernel's own text takes a probe, as far as can be told while the guest runs.
    pub fn can_probe(&self, memory: &dyn GuestMemory, place: &Place, kind: ProbeKind) -> bool {
        let table = self.table();
        let kprobes = GuestKprobes::default();
        let body = KernelBody {
            kernel: &self.kernel,
            table: &table,
            memory,
            kprobes: &kprobes,
        };
        self.is_in_kernel(place) && self.locate(memory, &body, place, kind).is_ok()
    }

    fn is_in_kernel(&self, place: &Place) -> bool {
        match place {
            Place::Symbol { module, .. } => module.is_none(),
            Place::Address(at) => self.kernel.symbols.is_text(*at),
        }
    }
}

impl Draft<'_> {
    /// The numbers of the batch's probes, in the order of the request; none before it was committed.
    pub fn registered(&self) -> &[ProbeId] {
        self.done.as_ref().map_or(&[], |done| &done.ids)
    }

    /// Takes the whole change, if it was worked out from this generation and the guest's text is as it was. To be
    /// called at each stop before [`Self::take`].
    pub(crate) fn registration(
        &mut self,
        now: &Generation,
        memory: &dyn GuestMemory,
        kprobes: &GuestKprobes,
    ) -> Option<Registration> {
        // The guest has run since an earlier stop.
        self.current = None;
        let (registration, text) = self.planned.take()?;
        let mut located = self.located.iter().flatten();
        let is_current = registration.plan.before.is(now)
            && (kprobes.is_empty() || located.all(|it| it.is_clear_of(kprobes)))
            && text.is_in(memory);
        is_current.then_some(registration)
    }

    /// Takes what was found for a probe of the batch, if that is still so. The guest stands still, and what is in the
    /// table besides this batch doesn't change.
    pub(crate) fn take(&mut self, index: usize, body: &KernelBody<'_>) -> Option<Box<Located>> {
        if self.init_freed != body.table.init_freed {
            return None;
        }
        let current = self.current.get_or_insert_with(|| {
            let texts = longest_texts(&self.located).into_iter();
            texts
                .filter(|text| is_in(text, body))
                .map(WalkedText::id)
                .collect()
        });
        let located = self.located.get_mut(index)?.take()?;
        let is_current = current.contains(&located.text.id());
        (is_current && located.is_clear_of(body.kprobes)).then_some(located)
    }
}

fn longest_texts(located: &[Option<Box<Located>>]) -> Vec<&WalkedText> {
    WalkedText::longest(located.iter().flatten().map(|it| &it.text))
}

/// Returns true if the text is still the one that was decoded.
fn is_in(text: &WalkedText, body: &KernelBody<'_>) -> bool {
    let now = body.text(text.start, text.bytes().len());
    matches!(now, Some(Ok(now)) if now == text.bytes())
}

impl Located {
    /// Returns true if none of the guest's kprobes is in the text that was decoded.
    fn is_clear_of(&self, kprobes: &GuestKprobes) -> bool {
        kprobes.overlapping(self.text.range()).is_none()
    }
}
