//! The names that probes get.
//!
//! Probes of one name are one event at several places, as in the kernel (`append_trace_kprobe` in
//! `kernel/trace/trace_kprobe.c`): they are of one kind, and each is at a place of its own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;

use guest_state::GuestVirtAddr;

use crate::engine::changes::registry::Registry;
use crate::engine::placement::target::Target;
use crate::engine::sites::probe::{Presence, Probe};
use crate::error::RegisterError;
use crate::probe::{Place, ProbeId, ProbeKind, ProbeSpec};

/// The names that are taken, those of a batch's earlier probes among them.
pub(crate) struct Names<'a> {
    registry: &'a Registry,
    /// The probes of each name that the batch has asked for so far.
    uses: HashMap<Arc<str>, NameUse>,
}

/// The probes of one name.
struct NameUse {
    kind: Option<Discriminant<ProbeKind>>,
    /// Where they are; `None` for those of the batch.
    places: HashMap<At, Option<(ProbeId, GuestVirtAddr)>>,
}

/// Where a probe is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum At {
    Address(GuestVirtAddr),
    /// Where the probe will be.
    Later(Place),
}

impl<'a> Names<'a> {
    pub(crate) fn new(registry: &'a Registry) -> Self {
        Self {
            registry,
            uses: HashMap::new(),
        }
    }

    /// Gives a probe its name.
    ///
    /// # Errors
    /// Another probe has the name, and isn't the same event at another place.
    pub(crate) fn take(
        &mut self,
        spec: &ProbeSpec,
        target: &Target,
    ) -> Result<Arc<str>, RegisterError> {
        let name: Arc<str> = target.name(spec)?.into();
        let used = self
            .uses
            .entry(Arc::clone(&name))
            .or_insert_with(|| NameUse::of(self.registry.by_name(&name)));
        let name_told = || name.to_string();
        // A name that is made from the place is of one probe.
        let first = used.places.values().next().filter(|_| spec.name.is_none());
        let at = match target {
            Target::Instruction(_) | Target::Data(_) => At::Address(target.spot().address),
            Target::Later(_) => At::Later(spec.place.clone()),
        };
        if let Some(other) = used.places.get(&at).or(first) {
            return Err(match *other {
                Some((id, address)) => RegisterError::AlreadyExists {
                    name: name_told(),
                    id,
                    address,
                },
                None => RegisterError::DuplicateName { name: name_told() },
            });
        }
        let kind = discriminant(&spec.kind);
        if used.kind.is_some_and(|others| others != kind) {
            return Err(RegisterError::OtherKind { name: name_told() });
        }
        used.kind = Some(kind);
        if let Entry::Vacant(place) = used.places.entry(at) {
            place.insert(None);
        }
        Ok(name)
    }
}

impl NameUse {
    fn of<'p>(probes: impl Iterator<Item = &'p Arc<Probe>>) -> Self {
        let mut used = Self {
            kind: None,
            places: HashMap::new(),
        };
        for probe in probes {
            let address = probe.address();
            let at = match probe.presence() {
                Presence::Pending => At::Later(probe.place.clone()),
                Presence::Placed | Presence::Gone => At::Address(address),
            };
            used.kind = Some(discriminant(&probe.kind));
            used.places.insert(at, Some((probe.id, address)));
        }
        used
    }
}
